"""The filter of a link: what does not pass it stays in the region in which it was published.

Who appends judges the rows before the transaction, and says by which filter.  The segment's own
lane names the filter that counts, and the statement that takes the offsets returns it: rows that
were judged by another one are not appended, but judged again.  So a link and its filter count from
one transaction on, whatever programs have in their caches.

The rows keep their places in the log, so the order of keys holds.  A batch of which some rows stay
is several runs: one for each change between what crosses and what stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

STAYS = "!"
"""The audience of what goes to no other region; see :mod:`headrace.regions.core.origins`."""
_FILTERED = "?"
"""Stands before the filter, in the own lane of a segment; no region's name has it."""


def lane_by(lane: str, filter: str) -> str:
    """The own lane of a segment whose link has a filter.

    >>> lane_by("eu", "orders.us.>"), lane_by("eu", "")
    ('eu?orders.us.>', 'eu')
    """
    return f"{lane}{_FILTERED}{filter}" if filter else lane


def parted(own: str) -> tuple[str, str]:
    """Lane and filter of a segment's own lane.

    >>> parted("eu?orders.us.>"), parted("eu")
    (('eu', 'orders.us.>'), ('eu', ''))
    """
    lane, _, filter = own.partition(_FILTERED)
    return lane, filter


def filter_of(own: str | None) -> str:
    """The filter of a segment's own lane; empty if it has none, or is not linked."""
    return "" if own is None else parted(own)[1]


Parts = Iterable[tuple[int, int, bool]]
"""Ranges of offsets, and whether they stay in their region."""


def apart(
    pieces: Iterable[tuple[int, int]], stays: Iterable[tuple[int, int]], start: int
) -> Iterator[tuple[int, int, bool]]:
    """The events of a batch at ``start``, in order, those that stay apart from the others.

    ``pieces`` are the offsets that hold events, ``stays`` the rows that stay; both ascend.

    >>> list(apart([(10, 14), (15, 20)], [(1, 2), (3, 7), (9, 10)], 10))
    [(10, 11, False), (11, 12, True), (12, 13, False), (13, 14, True), (15, 17, True), \
(17, 19, False), (19, 20, True)]
    """
    held = deque((start + lo, start + hi) for lo, hi in stays)
    for lo, hi in pieces:
        at = lo
        while at < hi:
            while held and held[0][1] <= at:
                held.popleft()
            first, end = held[0] if held else (hi, hi)
            if first <= at:
                yield at, min(end, hi), True
                at = min(end, hi)
            else:
                yield at, min(first, hi), False
                at = min(first, hi)
