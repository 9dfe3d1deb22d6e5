"""Spark: sessions, ``format("headrace")``, native reads, and the jobs of the pipeline.

Names are imported lazily, so that a Python worker only pays for what it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Not lazily: a submodule has this name too, and importing it would put the module here instead.
from headrace.spark.session import session

if TYPE_CHECKING:
    from headrace.spark.checked import read_stream, write_stream
    from headrace.spark.epochs.listener import EpochListener
    from headrace.spark.java import find_java
    from headrace.spark.listener import LagListener, QueryLag
    from headrace.spark.native import read
    from headrace.spark.session import check_executors

_HOMES = {
    "EpochListener": "headrace.spark.epochs.listener",
    "LagListener": "headrace.spark.listener",
    "QueryLag": "headrace.spark.listener",
    "check_executors": "headrace.spark.session",
    "find_java": "headrace.spark.java",
    "read": "headrace.spark.native",
    "read_stream": "headrace.spark.checked",
    "write_stream": "headrace.spark.checked",
}

__all__ = [
    "EpochListener",
    "LagListener",
    "QueryLag",
    "check_executors",
    "find_java",
    "read",
    "read_stream",
    "session",
    "write_stream",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
