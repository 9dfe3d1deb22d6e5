"""The account of a torture of readers: what each phase between two resets had to write.

An output names the token under which its event was read, and tokens are revisions of the group: so
it is known on which side of a reset it was written, whatever the clocks say.  After a reset exactly
what was acked at its checkpoint is acked.  So the phase that follows writes nothing of that, writes
nothing twice, keeps keys in order, and, if it is the last one, writes all the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.groups.progress import Progress
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.positions import GroupCheckpoint
from headrace.log import order

Place = tuple[int, int]
"""Segment and offset."""


class Output(msgspec.Struct, frozen=True):
    """One event of the output."""

    number: int
    token: int
    place: Place


class Phase(msgspec.Struct, frozen=True):
    """From a reset on: the revision that it made, and what was acked then."""

    revision: int
    acked: frozenset[Place]


def acked_at(
    checkpoint: GroupCheckpoint,
    events: Mapping[Place, int],
    graph: Mapping[int, tuple[int, ...]],
    stream: str,
) -> frozenset[Place]:
    """The events of a stream that were acked at a checkpoint."""
    floors = {s.number: at for s, at in checkpoint.cut.items() if s.stream == stream}
    exact = checkpoint.progress
    ahead = order.following(floors, graph) | {
        wait.segment.number for wait in checkpoint.waits if wait.segment.stream == stream
    }
    found = set()
    for segment, offset in events:
        if segment in floors:
            progress = exact.get(SegmentId(stream, segment), Progress(floors[segment]))
            if offset in progress.acked():
                found.add((segment, offset))
        elif segment not in ahead:
            found.add((segment, offset))
    return frozenset(found)


def judge(
    events: Mapping[Place, int],
    outputs: Sequence[Output],
    phases: Sequence[Phase],
    keys: int,
) -> list[str]:
    """What is wrong, in a line each; outputs are in the order in which they were committed."""
    found: list[str] = []
    for at, phase in enumerate(phases):
        until = phases[at + 1].revision if at + 1 < len(phases) else None
        mine = [
            each
            for each in outputs
            if each.token > phase.revision and (until is None or each.token <= until)
        ]
        places = [each.place for each in mine]
        where = f"phase {at} (from revision {phase.revision})"
        twice = len(places) - len(set(places))
        if twice:
            found.append(f"{where}: {twice} events were written twice")
        again = set(places) & phase.acked
        if again:
            found.append(f"{where}: {len(again)} acked events came again, {sorted(again)[:3]}")
        for key in range(keys):
            numbers = [each.number for each in mine if each.number % keys == key]
            if numbers != sorted(numbers):
                found.append(f"{where}: key {key} is out of order")
        if until is None:
            missing = events.keys() - phase.acked - set(places)
            if missing:
                found.append(f"{where}: {len(missing)} events are lost, {sorted(missing)[:3]}")
        strange = [each for each in mine if events.get(each.place) != each.number]
        if strange:
            found.append(f"{where}: {strange[0]} is no event")
    return found
