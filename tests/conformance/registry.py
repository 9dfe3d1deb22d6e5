"""What an adapter is, and how those there are get found."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.conformance import adapters


@dataclass(frozen=True, slots=True)
class Adapter:
    """How the cases of one format are decoded and checked.

    ``case`` is a ``msgspec.Struct`` with the fields that the format must have (others are
    notes); ``label`` names a case in the output; ``check`` drives the core and returns what
    did not hold, one line each.
    """

    format: str
    case: type[Any]
    label: Callable[[Any], str]
    check: Callable[[Any], list[str]]


def find_adapters() -> dict[str, Adapter]:
    """All adapters by the format that they are for."""
    found: dict[str, Adapter] = {}
    for module in pkgutil.iter_modules(adapters.__path__):
        adapter = importlib.import_module(f"{adapters.__name__}.{module.name}").ADAPTER
        assert isinstance(adapter, Adapter), f"{module.name}.ADAPTER is not an Adapter"
        assert adapter.format not in found, f"two adapters for {adapter.format}"
        found[adapter.format] = adapter
    return found
