"""How many segments a reader claims, when it gives some up, and who goes first.

*Claim.*  Of what is on offer a reader takes what it lacks to its fair share, at least an equal
part of the offer, and at least one: a segment that fits nobody's share must still be read.

*Release.*  A reader that owns more than one segment gives up as long as it is larger than the
smallest reader by more than one segment, or by more than what is on offer already.  Counting the
offer is what stops it in time: from six against none it gives up three, not five.  It never goes
below its share, rounded down: an eleventh reader gets a tenth of what each of ten has, not half of
what the first one has.  The share of a reader that is far behind is a fraction of the others'.

*Rank.*  The most loaded releases first and the least loaded claims first, spread over a moment.
With many readers that moment is shorter than news takes to get around.  Somebody who has its share
already would claim before those who lack something, and have to give that up again, to the next
one who has its share: thousands of updates that settle nothing.  So it holds back for longer.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from headrace.errors import NotMemberError
from headrace.groups.readers.core.loads import FAR_WEIGHT
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.groups.readers.core.state import Holding, ReaderGroupState

MANY: Final = 25
"""From so many readers on, who has its share holds back; the more of them there are the longer."""
HELD_BACK_MAX: Final = 4
"""At most for this many times as long as ranks are spread over."""


def fair_share(segments: int, readers: int) -> int:
    """Segments per reader, halves rounded up.

    >>> fair_share(5, 2), fair_share(5, 4)
    (3, 1)
    """
    return (2 * segments + readers) // (2 * readers)


def acquire_count(state: ReaderGroupState, reader: str) -> int:
    """How many segments a reader claims now; none while it owes a checkpoint."""
    offered, readers = len(state.unassigned), len(state.members)
    if not offered or state.checkpoints.next_for(reader) is not None:
        return 0
    share, owned = fair_share(state.segment_count, readers), len(state.owned(reader))
    if state.loads.is_far(reader):
        return max(1, min(offered, share // FAR_WEIGHT - owned))
    return max(1, offered // readers, min(offered, share - owned))


def is_overloaded(state: ReaderGroupState, reader: str, released: int = 0) -> bool:
    """Whether a reader that has ``released`` some segments already should release one more."""
    owned = len(state.owned(reader)) - released
    offered = len(state.unassigned) + released
    return owned > 1 and state.loads.exceeds(reader, released, max(1, offered))


def wants_release(state: ReaderGroupState, reader: str) -> bool:
    """Whether a reader should give up a segment now; not while it owes a checkpoint."""
    if reader not in state.members:
        why = f"reader {reader!r} is not online; it must start again"
        raise NotMemberError("wants_release", state.describe(), why)
    return state.checkpoints.next_for(reader) is None and is_overloaded(state, reader)


def release_count(state: ReaderGroupState, reader: str) -> int:
    """How many segments a reader should give up at once."""
    if not wants_release(state, reader):
        return 0
    owned = len(state.owned(reader))
    steps = range(owned)
    count = bisect_left(steps, True, key=lambda n: not is_overloaded(state, reader, n))
    return max(0, min(count, owned - kept_count(state, reader)))


def kept_count(state: ReaderGroupState, reader: str) -> int:
    """What a reader keeps at least."""
    share = state.segment_count // len(state.members)
    return share // FAR_WEIGHT if state.loads.is_far(reader) else share


def segments_to_release(state: ReaderGroupState, reader: str) -> list[SegmentId]:
    """Which ones: those claimed last, whose events are least likely to be at hand."""
    count = release_count(state, reader)
    if not count:
        return []

    def age(entry: tuple[SegmentId, Holding]) -> tuple[int, SegmentId]:
        return entry[1].token, entry[0]

    newest = sorted(state.owned(reader).items(), key=age, reverse=True)
    return [segment for segment, _ in newest[:count]]


def release_delay_ms(state: ReaderGroupState, reader: str, settings: ReaderSettings) -> int:
    """How long a reader waits before it releases: not at all if it is the most loaded."""
    return settings.balance_ms * state.loads.rank(reader) // len(state.members)


def acquire_delay_ms(state: ReaderGroupState, reader: str, settings: ReaderSettings) -> int:
    """How long a reader waits before it claims: not at all if it is the least loaded."""
    readers = len(state.members)
    return settings.balance_ms * (readers - 1 - state.loads.rank(reader)) // readers


def held_back_ms(state: ReaderGroupState, reader: str, settings: ReaderSettings) -> int:
    """How much longer it leaves to others what it would have to give up again, having its share.

    They may be dead, and not yet known to be, so it does not hold back for good.
    """
    many = len(state.members) // MANY
    if not many or len(state.owned(reader)) < kept_count(state, reader):
        return 0
    if not state.loads.exceeds(reader, -1, 1):
        return 0
    return settings.balance_ms * min(many, HELD_BACK_MAX)


def record_period_ms(state: ReaderGroupState, settings: ReaderSettings) -> int:
    """How often a reader records its positions: from ten readers on, rarer with their number."""
    return settings.record_ms * max(10, len(state.members)) // 10


def lag_period_ms(state: ReaderGroupState, settings: ReaderSettings) -> int:
    """How often a reader writes its lag: rarer the more readers there are."""
    return settings.lag_unit_ms * (len(state.members) + 1)
