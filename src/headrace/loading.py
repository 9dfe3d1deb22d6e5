"""Names of a package that are loaded when they are first used.

Arrow, numpy and asyncio take longer to load than most commands take to answer, so a package whose
names need them hands those out later::

    __getattr__ = later(__name__, {"headrace.subjects.hashing": ("key_hash_array",)})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def later(module: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module: ``homes`` are the modules that have the names."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = getattr(import_module(home), name)
        setattr(sys.modules[module], name, found)
        return found

    return load
