"""Splits and merges, told: segments that are new to a group, with those that they follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from headrace.groups.decisions.core.record import Decision, What, ranges, units_text


def told(follows: Mapping[str, Iterable[str]], *, open: bool = False) -> list[Decision]:
    """One decision for a step: ``follows`` are units, each with those that come before it; they
    are ``open`` if those are finished already.

    >>> [one] = told({"orders/1": ["orders/0"], "orders/2": ["orders/0"]})
    >>> one.what.value, one.reason
    ('split', 'orders/0 was split: orders/1-2 follow it, and are read when it is finished')
    """
    known = sorted((tuple(sorted(before)), unit) for unit, before in follows.items())
    return [
        _told(before, [unit for _, unit in group], open)
        for before, group in groupby(known, key=lambda each: each[0])
        if before
    ]


def _told(before: tuple[str, ...], units: list[str], open: bool) -> Decision:
    old, new = units_text(ranges(before)), units_text(ranges(units))
    follow, are = ("follow", "are") if len(units) > 1 else ("follows", "is")
    merged = len(before) > 1
    if merged:
        happened = f"were {'laid anew' if len(units) > 1 else 'merged'}"
    else:
        happened = f"was {'split' if len(units) > 1 else 'sealed'}"
    whom, ends = ("them", "all are") if merged else ("it", "it is")
    then = "can be read now" if open else f"{are} read when {ends} finished"
    return Decision(
        what=What.MERGED if merged else What.SPLIT,
        reason=f"{old} {happened}: {new} {follow} {whom}, and {then}",
        units=ranges(units),
    )
