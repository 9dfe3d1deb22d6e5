"""What connects the cores of regions to catalogs, stores and clocks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.regions.runtime import readers as readers


def __getattr__(name: str) -> Any:
    """Looks at the kinds of groups do without what reader groups need."""
    if name != "readers":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
