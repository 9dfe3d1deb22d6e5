from __future__ import annotations

from typing import Any

from headrace.epochs.core.antichains import Frontier, check_frontier
from headrace.epochs.core.times import TimeShape

FrontierLike = Any


def frontier_of(shape: TimeShape, given: Any, what: str) -> Frontier:
    return check_frontier(shape, given if isinstance(given, list) else [given])
