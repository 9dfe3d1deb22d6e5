"""How many subjects a second are hashed, against the cost of only reading their bytes.

``python -m bench.hashing`` prints a line per operation; ``run()`` gives the figures.  The floor
touches what every hash must touch and does nothing with it: one pass over the bytes and one
over the offsets of the column.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from bench.harness import Result, at_least, show
from headrace.subjects import (
    first_invalid_subject,
    match_array,
    partition_array,
    route_hash_array,
)

SUBJECTS = 1_000_000
TARGET_M_PER_S = 10.0
_REPEATS = 5


def make_subjects(count: int = SUBJECTS, seed: int = 1) -> pa.Array:
    """Subjects of about 20 bytes and of many lengths, as orders of three regions have them."""
    chance = random.Random(seed)
    regions = ("eu", "us", "apac")
    states = ("new", "paid")
    return pa.array(
        f"orders.{chance.choice(regions)}.{chance.randrange(10**6)}.{chance.choice(states)}"
        for _ in range(count)
    )


def run(count: int = SUBJECTS) -> list[Result]:
    """Measure every operation on the same column, best of some repeats, on one core."""
    subjects = make_subjects(count)
    data = np.frombuffer(subjects.buffers()[2], np.uint8)
    offsets = np.frombuffer(subjects.buffers()[1], np.int32)
    operations: list[tuple[str, Callable[[], object], float | None]] = [
        ("floor: read bytes and offsets", lambda: (data.sum(), np.diff(offsets)), None),
        ("validate", lambda: first_invalid_subject(subjects), None),
        ("match orders.*.*.new", lambda: match_array("orders.*.*.new", subjects), None),
        (
            "partition by one wildcard",
            lambda: partition_array(subjects, "orders.*.*.*", [2], 1024),
            TARGET_M_PER_S,
        ),
        (
            "partition by whole subject",
            lambda: partition_array(subjects, "orders.>", [], 1024),
            TARGET_M_PER_S,
        ),
        ("key hash", lambda: route_hash_array(None, subjects), TARGET_M_PER_S),
        ("key hash of tokens 2 and 3", lambda: route_hash_array(None, subjects, (2, 3)), None),
    ]
    return [
        _result(name, count / _best_s(operation) / 1e6, target)
        for name, operation, target in operations
    ]


def _result(name: str, rate: float, target: float | None) -> Result:
    unit = "M subjects/s"
    return Result(name, rate, unit) if target is None else at_least(name, rate, target, unit)


def _best_s(operation: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        operation()
        best = min(best, time.perf_counter() - begun)
    return best


if __name__ == "__main__":
    show(run())
