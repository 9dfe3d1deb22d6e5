"""Ascending ranges of numbers as sets: what two of them have in common, and what only one has."""

from __future__ import annotations

from collections.abc import Iterable

RangeList = list[tuple[int, int]]
"""Disjoint ranges, ascending; the end is exclusive."""


def intersection(one: Iterable[tuple[int, int]], other: Iterable[tuple[int, int]]) -> RangeList:
    """What two ascending sequences of ranges have in common."""
    left, right = list(one), list(other)
    found: RangeList = []
    i = j = 0
    while i < len(left) and j < len(right):
        lo = max(left[i][0], right[j][0])
        hi = min(left[i][1], right[j][1])
        if lo < hi:
            found.append((lo, hi))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(one: Iterable[tuple[int, int]], other: Iterable[tuple[int, int]]) -> RangeList:
    """What the ranges of ``one`` hold and those of ``other`` do not; both ascend.

    >>> difference([(0, 5), (7, 9)], [(1, 2), (4, 8)])
    [(0, 1), (2, 4), (8, 9)]
    """
    taken = list(other)
    found: RangeList = []
    at = 0
    for lo, hi in one:
        while at < len(taken) and taken[at][1] <= lo:
            at += 1
        here = at
        while here < len(taken) and taken[here][0] < hi:
            if lo < taken[here][0]:
                found.append((lo, taken[here][0]))
            lo = taken[here][1]
            here += 1
        if lo < hi:
            found.append((lo, hi))
    return found


def union(one: Iterable[tuple[int, int]], other: Iterable[tuple[int, int]]) -> RangeList:
    """What at least one of two sequences of ranges holds; ranges that touch are joined.

    >>> union([(0, 2), (5, 6)], [(2, 3), (9, 9)])
    [(0, 3), (5, 6)]
    """
    found: RangeList = []
    for lo, hi in sorted([*one, *other]):
        if found and lo <= found[-1][1]:
            found[-1] = (found[-1][0], max(hi, found[-1][1]))
        elif lo < hi:
            found.append((lo, hi))
    return found
