"""Seek of a reader group: the places that were chosen, as the cut of a reset.

Readers agree on one cut, so a seek of some segments is a reset in which the others stay exactly
where they are, with what was acked above their floors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.catalog import Tx, claims
from headrace.groups import decisions
from headrace.groups.decisions import Decision, What
from headrace.groups.operations.targets import Spot, state_of
from headrace.groups.progress import Progress
from headrace.groups.readers import operations
from headrace.groups.readers.core.segments import Cut, SegmentId
from headrace.groups.readers.names import ReaderGroupName, unit_of
from headrace.groups.readers.runtime import record
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.readers.runtime.transaction import Committed, GroupCommit
from headrace.log import order


def hold(tx: Tx, name: ReaderGroupName) -> None:
    """Have every ack that is being stored stored, before places are looked at."""
    claims.hold(tx, name.key, [unit_of(segment) for segment in state_of(tx, name).positions()])


def carry_out(
    tx: Tx,
    name: ReaderGroupName,
    here: Sequence[Spot],
    goals: Mapping[SegmentId, int],
    sought: Decision,
) -> None:
    """Reset a group to where the goals are, and record it as ``sought``."""
    made: list[Committed] = []
    commit = GroupCommit(tx, name, StampedReplica(name.group), made)
    cut, exact = _cut(here, goals, commit.state.end_cut)
    operations.reset_to_cut(commit, cut, exact)
    told = [each for one in made for each in record.of_outcome(one.outcome)]
    decisions.record(tx, str(name), [sought if each.what is What.SOUGHT else each for each in told])


def _cut(
    here: Sequence[Spot], goals: Mapping[SegmentId, int], end: Cut
) -> tuple[dict[SegmentId, int], dict[SegmentId, Progress]]:
    """Where the group stands then: what can be read next, and what stays as it is of that."""
    spots = {SegmentId(spot.stream.name, spot.segment.number): spot for spot in here}
    graph = {
        place: [SegmentId(place.stream, before) for before in spot.segment.predecessors]
        for place, spot in spots.items()
    }
    at = {
        place: goals.get(place, max(spot.progress.floor, spot.segment.tail))
        for place, spot in spots.items()
    }
    over = {
        place
        for place, spot in spots.items()
        if spot.segment.sealed and at[place] >= spot.segment.head and place not in end
    }
    ready = order.standing(graph, over).ready
    staying = {
        place: spots[place].progress.merge(Progress(at[place]))
        for place in ready
        if place not in goals
    }
    return {place: at[place] for place in ready}, staying
