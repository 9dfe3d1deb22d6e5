"""Many times at once, as arrays: one integer each, or one row of integers for tuples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.epochs.core.times import Time

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def rows_per_time(times: Times, rows: Times | None) -> Iterator[tuple[Time, int]]:
    """The rows of every time in `times` (one each if `rows` is None).

    Times close to one another are counted in one pass; others are sorted first.
    """
    lows = times.min(axis=0)
    # In Python's integers: the span of all times does not fit in 64 bits.
    ends = zip(np.atleast_1d(lows).tolist(), np.atleast_1d(times.max(axis=0)).tolist(), strict=True)
    spans = tuple(high - low + 1 for low, high in ends)
    keys, size = times - lows, math.prod(spans)
    if times.ndim == 2 and size >= 2**62:
        # Too far apart for one number per time.
        found, where = np.unique(times, axis=0, return_inverse=True)
        totals = np.bincount(where.reshape(-1), weights=rows)
        yield from zip(map(tuple, found.tolist()), map(int, totals.tolist()), strict=True)
        return
    if times.ndim == 2:
        keys = np.ravel_multi_index(tuple(keys.T), spans)
    if size <= 4 * len(times):
        counts = np.bincount(keys, weights=rows)
        seen = np.bincount(keys) if rows is not None else counts
        unique = np.flatnonzero(seen)
        counts = counts[unique]
    else:
        unique, where = np.unique(keys, return_inverse=True)
        counts = np.bincount(where, weights=rows)
    if times.ndim == 1:
        values: list[Any] = (unique + lows).tolist()
    else:
        parts = np.stack(np.unravel_index(unique, spans), axis=1)
        values = list(map(tuple, (parts + lows).tolist()))
    yield from zip(values, map(int, counts.tolist()), strict=True)


def at_or_after(times: Times, frontier: Iterable[Time]) -> Mask:
    """Which of many times a lower frontier covers."""
    return _covered(times, frontier, np.greater_equal)


def at_or_before(times: Times, frontier: Iterable[Time]) -> Mask:
    """Which of many times a filter covers."""
    return _covered(times, frontier, np.less_equal)


def _covered(times: Times, frontier: Iterable[Time], reaches: Callable[..., Mask]) -> Mask:
    covered = np.zeros(len(times), dtype=np.bool_)
    for time in frontier:
        if isinstance(time, int):
            covered |= reaches(times, time)
            continue
        # Part by part: a comparison of whole rows takes ten times as long.
        reached = reaches(times[:, 0], time[0])
        for place in range(1, len(time)):
            reached &= reaches(times[:, place], time[place])
        covered |= reached
    return covered
