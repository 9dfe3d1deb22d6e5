"""How much of a stream the subscribed reader groups still need.

Each group asks for a cut to be kept: its positions, or its last checkpoint so that a reset to it
finds its events.  A segment may go up to the lowest of what the groups ask for: all of it where
it lies behind a group's cut, nothing of it where it lies ahead.  Since a key belongs to one
segment at a time, that is the minimum per range of keys.  The minimum and maximum that the
stream's policy keeps are applied afterwards, by the log's own plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.groups.readers.core.cuts import Graph
from headrace.groups.readers.core.segments import END, Cut, SegmentId
from headrace.groups.readers.core.settings import Retain
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.log import order


def kept_cut(state: ReaderGroupState) -> tuple[Cut, frozenset[SegmentId]] | None:
    """The cut that a group asks for, and what waits beyond it; None if it asks for nothing.

    What an application releases by hand is not known here; its positions bound that.
    """
    last = state.checkpoints.last
    match state.config.retain:
        case Retain.NOTHING:
            return None
        case Retain.CHECKPOINT if last is not None:
            return last.positions, frozenset(last.waits)
    return state.positions(), frozenset(state.future)


def lower_bound(
    groups: Iterable[ReaderGroupState], graph: Graph, heads: Mapping[SegmentId, int]
) -> dict[SegmentId, int]:
    """The first offset of each segment that a group needs; nothing is said without groups.

    `graph` holds the segments of one stream; cuts of other streams do not matter to it.
    """
    bounds: dict[SegmentId, int] = {}
    for state in groups:
        asked = kept_cut(state)
        if asked is None:
            continue
        cut, waiting = asked
        ahead = order.following(cut, graph) | waiting
        for segment in graph:
            head = heads[segment]
            offset = 0 if segment in ahead else cut.get(segment, head)
            offset = head if offset == END else min(offset, head)
            bounds[segment] = min(bounds.get(segment, head), offset)
    return bounds
