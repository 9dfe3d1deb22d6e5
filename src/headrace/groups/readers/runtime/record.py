"""The decisions of a reader group, recorded in the transactions that make them.

Lags and recorded positions are no decisions: they would push out what people ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.groups import decisions
from headrace.groups.decisions import Decision, What, ranges
from headrace.groups.decisions.core import lineage
from headrace.groups.readers.core.changes import (
    CheckpointAcked,
    CheckpointCreated,
    CheckpointForgotten,
    Completed,
    Configured,
    Freed,
    Opened,
    ReaderAdded,
    ReaderRemoved,
    SegmentClaimed,
    StreamDropped,
    StreamsAdded,
    WasReset,
)
from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.rules import Outcome
from headrace.groups.readers.core.updates import (
    CancelCheckpoints,
    CompleteSegments,
    ReleaseSegments,
    RemoveReader,
    ResetToCheckpoint,
    ReturnReader,
)

if TYPE_CHECKING:
    from headrace.groups.readers.runtime.transaction import Committed, GroupCommit

EVICTED = "evicted: "
"""What the reason begins with for which a reader that is alive was put offline."""


def put(commit: GroupCommit, made: Sequence[Committed]) -> None:
    """Record what these outcomes decided, in their own transaction."""
    found = [each for committed in made for each in _of_committed(committed)]
    found = [_known_as_lost(commit, each) if each.what is What.LOST else each for each in found]
    decisions.record(commit.tx, str(commit.name), found)


def _of_committed(committed: Committed) -> list[Decision]:
    if committed.came_back:
        reason = "it was consumed in another region, and goes on behind what is acked"
        return [Decision(what=What.MOVED, reason=reason)]
    return of_outcome(committed.outcome)


def _known_as_lost(commit: GroupCommit, lost: Decision) -> Decision:
    """That a reader was lost is told once; if somebody else has, what follows from it is left."""
    before = decisions.latest(
        commit.tx,
        str(commit.name),
        (What.LOST, What.JOINED),
        that=lambda one: lost.source in (one.source, one.target),
    )
    if before is None or before.what is What.JOINED:
        return lost
    return msgspec.structs.replace(
        lost, what=What.MOVES, reason="it was lost: what it had is free", cause=before.number
    )


def of_outcome(outcome: Outcome) -> list[Decision]:
    """What an outcome means to people."""
    found: list[Decision] = []
    claimed: dict[str, list[str]] = {}
    freed: dict[str, list[str]] = {}
    finished: dict[str, list[str]] = {}
    token = outcome.revision
    for change in outcome.changes:
        match change:
            case SegmentClaimed(reader=reader, segment=segment):
                claimed.setdefault(reader, []).append(str(segment))
            case Freed(reader=reader, segment=segment):
                freed.setdefault(reader, []).append(str(segment))
            case Completed(reader=reader, segment=segment):
                finished.setdefault(reader, []).append(str(segment))
            case ReaderAdded(reader=reader):
                found.append(_joined(outcome, reader))
            case ReaderRemoved(reader=reader):
                found.append(_removed(outcome, reader, freed.pop(reader, [])))
            case _:
                found += _of_group(outcome, change)
    for reader, units in freed.items():
        why = "it has more than its share, and gives these up"
        if not isinstance(outcome.update, ReleaseSegments):
            why = "these are free"
        found.append(Decision(what=What.MOVES, reason=why, units=ranges(units), source=reader))
    for reader, units in finished.items():
        why = "read to the end; what follows can be claimed once all its predecessors are read"
        found.append(Decision(what=What.FINISHED, reason=why, units=ranges(units), source=reader))
    if isinstance(outcome.update, CompleteSegments):
        found += _followed(outcome, outcome.update)
    for reader, units in claimed.items():
        again = isinstance(outcome.update, ReturnReader)
        why = "it came back, and has what it had" if again else "nobody owned these: its share"
        found.append(
            Decision(
                what=What.ASSIGNED, reason=why, units=ranges(units), target=reader, token=token
            )
        )
    return found


def _followed(outcome: Outcome, update: CompleteSegments) -> list[Decision]:
    """The splits and merges that readers are through with."""
    opened = {change.segment for change in outcome.changes if isinstance(change, Opened)}
    follows = {
        str(successor.segment): [str(segment) for segment in successor.predecessors]
        for completion in update.completions
        for successor in completion.successors
        if successor.segment in opened
    }
    return lineage.told(follows, open=True)


def _joined(outcome: Outcome, reader: str) -> Decision:
    return Decision(
        what=What.JOINED, reason="a reader came online", target=reader, token=outcome.revision
    )


def _removed(outcome: Outcome, reader: str, units: Iterable[str]) -> Decision:
    why = outcome.update.why if isinstance(outcome.update, RemoveReader) else ""
    if isinstance(outcome.update, ReturnReader):
        why, what = "a new life of it took the name over", What.LOST
    elif why.startswith(EVICTED):
        why, what = why.removeprefix(EVICTED), What.EVICTED
    else:
        what = What.LOST if why else What.LEFT
    reason = why or "it was closed, and gave back what it had"
    return Decision(what=what, reason=reason, units=ranges(units), source=reader)


def _of_group(outcome: Outcome, change: object) -> list[Decision]:
    match change:
        case CheckpointCreated(name=name, kind=CheckpointKind.NORMAL, readers=readers):
            if not readers:
                reason = f"checkpoint {name!r} is complete: nobody reads"
                return [Decision(what=What.FINISHED, reason=reason)]
            waits = f"checkpoint {name!r}: waits for {', '.join(readers[:10])}"
            return [Decision(what=What.WAITS, reason=waits)]
        case CheckpointAcked(name=name, complete=True, reader=reader):
            reason = f"checkpoint {name!r} is complete: {reader} was the last to answer"
            return [Decision(what=What.FINISHED, reason=reason, source=reader)]
        case CheckpointForgotten(name=name) if isinstance(outcome.update, CancelCheckpoints):
            return [Decision(what=What.FINISHED, reason=f"checkpoint {name!r} was cancelled")]
        case WasReset():
            to = "a cut"
            if isinstance(outcome.update, ResetToCheckpoint):
                to = f"checkpoint {outcome.update.name!r}"
            reason = f"reset to {to}: every reader starts again from there"
            return [Decision(what=What.SOUGHT, reason=reason)]
        case StreamsAdded(cut=cut):
            added = sorted({position.segment.stream for position in cut})
            return [Decision(what=What.CONFIGURED, reason=f"reads {', '.join(added)} as well")]
        case StreamDropped(stream=stream):
            return [Decision(what=What.CONFIGURED, reason=f"reads {stream} no longer")]
        case Configured(config=config):
            reason = f"retains {config.retain.value}, keeps {config.checkpoints_kept_max}"
            return [Decision(what=What.CONFIGURED, reason=f"{reason} checkpoints")]
    return []
