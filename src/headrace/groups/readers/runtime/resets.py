"""A reset in the catalog: every unit loses its owner, and progress is put where it is to go on.

Floors fall here, by way of the one store's ``seek``.  Within the cut a segment stands where the
checkpoint's copy says, else at the cut's offset; behind the cut at its head, ahead of it at its
beginning.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.catalog import claims, reader_groups
from headrace.errors import CutTrimmedError
from headrace.groups.progress import Progress
from headrace.groups.progress.store import SeekPlace, decode, seek
from headrace.groups.readers.core.changes import WasReset
from headrace.groups.readers.core.rules import Outcome
from headrace.groups.readers.core.segments import END, Cut, SegmentId
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import ResetToCheckpoint
from headrace.groups.readers.names import unit_of
from headrace.groups.readers.runtime.moment import GroupMoment, Map

Exact = Mapping[SegmentId, Progress]
"""Progress that is more than a floor, by segment."""


def carry_out_reset(
    moment: GroupMoment, state: ReaderGroupState, outcome: Outcome, exact: Exact
) -> None:
    """Put the group where a reset says; ``exact`` is what was acked there, if it was given."""
    (change,) = (each for each in outcome.changes if isinstance(each, WasReset))
    found = moment.map()
    cut = {position.segment: position.offset for position in change.cut}
    check_kept(moment.name.group, cut, found)
    saved = exact
    if isinstance(outcome.update, ResetToCheckpoint):
        saved = exact_at(moment, state, outcome.update.name, found)
    claims.hold(moment.tx, moment.name.key, [unit_of(s) for s in state.positions()])
    places = []
    for segment, floor in found.floors(cut, (wait.segment for wait in change.waits)).items():
        progress = saved.get(segment, Progress(floor)) if segment in cut else Progress(floor)
        places.append(SeekPlace(unit_of(segment), found.extents[segment].id, progress))
    seek(moment.tx, moment.name.key, places)


def exact_at(moment: GroupMoment, state: ReaderGroupState, name: str, found: Map) -> Exact:
    """What was acked above the floors at a checkpoint."""
    checkpoint = state.checkpoints.get(name)
    last = state.checkpoints.last
    if checkpoint is None and last is not None and last.name == name:
        checkpoint = last
    if checkpoint is None:
        return {}
    rows = reader_groups.kept(moment.tx, moment.name.group, checkpoint.created)
    progress = {row.segment_id: decode(row) for row in rows}
    return {s: progress[e.id] for s, e in found.extents.items() if e.id in progress}


def check_kept(group: str, cut: Cut, found: Map) -> None:
    """Refuse a cut before what is still there, with the first offsets that are."""
    gone = {
        segment: extent.tail
        for segment, extent in found.extents.items()
        if segment in cut and cut[segment] != END and cut[segment] < extent.tail
    }
    if gone:
        raise CutTrimmedError(group, {str(segment): tail for segment, tail in gone.items()})
