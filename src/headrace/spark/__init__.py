"""Spark: sessions, ``format("headrace")``, native reads, and the jobs of the pipeline.

Names are loaded when they are used, so that a Python worker pays for what it needs only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spark.java import find_java
    from headrace.spark.session import check_executors, session

_HOMES = {
    "check_executors": "headrace.spark.session",
    "find_java": "headrace.spark.java",
    "session": "headrace.spark.session",
}

__all__ = ["check_executors", "find_java", "session"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Kept under its name: `session` is also the name of a module, which importing would leave.
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found
