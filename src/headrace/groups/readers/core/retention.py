"""What a reader group asks retention to keep: a cut, and everything ahead of it.

The cut is where its positions are, or its last checkpoint, so that a reset to it finds its events.
``cuts.floors_at`` tells how much of each segment that is.  The log's own plan takes the lowest
floor of all groups, and applies what the stream's policy keeps anyway.
"""

from __future__ import annotations

from headrace.groups.readers.core.segments import Cut, SegmentId
from headrace.groups.readers.core.settings import Retain
from headrace.groups.readers.core.state import ReaderGroupState


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
