"""What retention keeps for a reader group.

The log's own plan keeps what is not acked by the groups that are *subscribed* to a stream.  A
group that keeps its positions is subscribed under the name of its progress.  One that keeps its
last checkpoint, or what it was told to, is subscribed under a name of its own, with rows at the
cut that is to be kept: what lies behind it is at its head, and what lies ahead at its beginning.
A group that has come to its end cut needs nothing any more.  What checkpoints and releases keep is
kept where they were made: while a group is consumed in another region, its positions are kept here.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.catalog import progress as stored
from headrace.groups.progress import Progress
from headrace.groups.progress.store import SeekPlace, decode, seek
from headrace.groups.readers.core.changes import (
    CheckpointAcked,
    CheckpointCreated,
    Completed,
    Configured,
    StateChange,
    StreamDropped,
    StreamsAdded,
    WasReset,
)
from headrace.groups.readers.core.retention import kept_cut
from headrace.groups.readers.core.segments import Cut, SegmentId
from headrace.groups.readers.core.settings import Retain
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.names import unit_of
from headrace.groups.readers.runtime.moment import GroupMoment

_MATTERS = StreamDropped | StreamsAdded | Configured | WasReset | CheckpointCreated
"""Changes after which a group may keep something else; so may a checkpoint that completes."""


def is_more_than_a_floor(row: stored.Progress) -> bool:
    """Whether a row holds acks above its floor, or attempts."""
    progress = decode(row)
    return bool(progress.base or progress.ranges or progress.attempts)


def follow(moment: GroupMoment, state: ReaderGroupState, changes: Iterable[StateChange]) -> None:
    """Keep what a group needs after these changes, which have led to this state."""
    changed = [change for change in changes if not isinstance(change, Completed)]
    if len(changed) < len(list(changes)) and state.end_of_data:
        _subscribe(moment, positions=False, cut=False)
    elif any(
        isinstance(each, _MATTERS) or (isinstance(each, CheckpointAcked) and each.complete)
        for each in changed
    ):
        keep(moment, state)


def keep(moment: GroupMoment, state: ReaderGroupState) -> None:
    """Keep what the group's config asks for; called as well when a group is made."""
    retain, away = state.config.retain, moment.record.away
    by_cut = retain in (Retain.CHECKPOINT, Retain.MANUAL) and not away
    by_positions = retain is Retain.POSITIONS or (away and retain is not Retain.NOTHING)
    _subscribe(moment, positions=by_positions, cut=by_cut)
    asked = kept_cut(state)
    if asked is None or not by_cut:
        return
    checkpointed = retain is Retain.CHECKPOINT and state.checkpoints.last is not None
    if checkpointed or not stored.of_group(moment.tx, moment.name.kept):
        keep_cut(moment, *asked)


def keep_cut(moment: GroupMoment, cut: Cut, waiting: Iterable[SegmentId]) -> None:
    """Keep everything from a cut on, and let go of what lies before it."""
    found = moment.map()
    floors = found.floors(cut, waiting)
    places = [
        SeekPlace(unit_of(segment), found.extents[segment].id, Progress(floor))
        for segment, floor in floors.items()
    ]
    seek(moment.tx, moment.name.kept, places)


def _subscribe(moment: GroupMoment, *, positions: bool, cut: bool) -> None:
    tx, name = moment.tx, moment.name
    for stream in moment.record.streams:
        for group, wanted in ((name.key, positions), (name.kept, cut)):
            change = stored.subscribe if wanted else stored.let_go
            change(tx, stream.id, group)
