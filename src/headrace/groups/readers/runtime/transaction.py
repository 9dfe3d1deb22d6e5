"""One update, one transaction: state, claims, progress and the copies of checkpoints together.

Theory of operation
-------------------
Under the group's lock: catch up, put the facts of this moment into the update, decide, append the
outcome to the log, and carry out what its changes mean for the rest of the catalog.

*Facts.*  A reader asks for something on what it knows, and that may be old.  Positions are the
floors of the progress rows in this transaction, with the claims of the units held, so that no ack
is under way.  Whether a segment is read to its end, and what follows it, is what the catalog says
now: a completion without successors would be the end of data.

*Claims.*  A segment's token is the revision of its claim, so tokens grow, and claims are changed
in the transaction that tells everybody of them.  A reader that was slow finds its token stale.

*Checkpoints* hold floors.  What was acked above them, or refused before, is copied when a
checkpoint takes a segment's position in, under the revision of the checkpoint's creation; a reset
puts exactly that back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from headrace.catalog import Tx, claims, leases, reader_groups
from headrace.catalog import progress as stored
from headrace.catalog.reader_groups import ReaderGroupRow
from headrace.errors import SegmentNotReadError
from headrace.groups.consumer import OwnedUnit
from headrace.groups.progress.store import alone
from headrace.groups.readers import names
from headrace.groups.readers.core.changes import (
    CheckpointAcked,
    CheckpointCreated,
    CheckpointForgotten,
    Completed,
    Configured,
    Freed,
    ReaderRemoved,
    SegmentClaimed,
    SegmentDropped,
    StateChange,
    StreamDropped,
    StreamsAdded,
    WasReset,
)
from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.entries import encode_outcome
from headrace.groups.readers.core.rules import Outcome
from headrace.groups.readers.core.segments import Position, SegmentId
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.synchronizer import compaction_due
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    CompleteSegments,
    Completion,
    RecordPositions,
    ReleaseSegments,
    RemoveReader,
    ReturnReader,
    Update,
)
from headrace.groups.readers.names import ReaderGroupName, ReaderGroupRecord, unit_of
from headrace.groups.readers.runtime import retention
from headrace.groups.readers.runtime.moment import GroupMoment, end_of
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.readers.runtime.resets import Exact, carry_out_reset


class Committed(msgspec.Struct, frozen=True):
    """What came of an update, and how to follow it."""

    outcome: Outcome
    units: tuple[OwnedUnit, ...] = ()
    """What it has claimed, ready to be consumed."""
    entry: bytes = b""
    stamp: int = 0
    """The log's stamp after the entry."""
    came_back: bool = False
    """Whether it was brought up to what was acked while the group was consumed elsewhere."""


class GroupCommit:
    """A group within one transaction."""

    def __init__(
        self,
        tx: Tx,
        name: ReaderGroupName,
        replica: StampedReplica,
        made: list[Committed] | None = None,
    ) -> None:
        row, record = names.require(tx, name.group)
        replica.catch_up(tx, row)
        self.tx = tx
        self.name = name
        self.row: ReaderGroupRow = row
        self.record: ReaderGroupRecord = record
        self.moment = GroupMoment(tx, name, record)
        self._replica = replica
        self._made = [] if made is None else made

    @property
    def state(self) -> ReaderGroupState:
        """The state that the next update meets."""
        return self._replica.state

    def put(
        self,
        update: Update,
        exact: Exact | None = None,
        *,
        came_back: bool = False,
        by_region: bool = False,
    ) -> Committed:
        """Decide on an update and carry it out; raises, and has changed nothing, if refused.

        ``exact`` is what was acked at a cut that a reset goes to.  With ``came_back`` it goes to
        where the rows of progress are, and leaves them as they are.  ``by_region``: another region
        said so.
        """
        if not (came_back or by_region):
            from headrace.groups.readers.runtime import elsewhere  # looks do without it

            elsewhere.check(self, update)
        outcome = self.prepare(update)
        if not outcome.changes:
            return Committed(outcome)
        data = encode_outcome(outcome)
        if compaction_due(self.row.revision - self.row.snapshot_revision, self.row.log_bytes):
            reader_groups.compact(self.tx, self.row, self._replica.replica.snapshot())
            self.row = msgspec.structs.replace(
                self.row,
                snapshot_revision=self.row.revision,
                snapshot_stamp=self.row.stamp,
                log_bytes=0,
            )
        self.row = reader_groups.append(self.tx, self.row, data)
        self._carry_out(outcome, None if came_back else exact or {})
        units = self._claimed(outcome)
        self._replica.went_on(outcome, data)
        retention.follow(self.moment, self.state, outcome.changes)
        committed = Committed(outcome, tuple(units), data, self.row.stamp, came_back)
        self._made.append(committed)
        return committed

    def prepare(self, update: Update) -> Outcome:
        """What would come of an update; raises if it is refused, and changes nothing."""
        return self._replica.replica.prepare(self._with_facts(update), self._now_ms())

    def configure(self, record: ReaderGroupRecord) -> None:
        """Store another record of the group; for the changes of its streams."""
        reader_groups.configure(self.tx, self.name.group, names.encode(self.name.group, record))
        self.record = self.moment.record = record

    def _now_ms(self) -> int:
        return self.tx.now_us() // 1000

    # -- facts ----------------------------------------------------------------------------

    def _with_facts(self, update: Update) -> Update:
        match update:
            case AckCheckpoint(reader=reader):
                return msgspec.structs.replace(
                    update, positions=self.floors(self.state.owned(reader))
                )
            case ReleaseSegments(segments=segments):
                return msgspec.structs.replace(update, positions=self.floors(segments))
            case RecordPositions(positions=recorded):
                told = self.floors(position.segment for position in recorded)
                return msgspec.structs.replace(update, positions=told)
            case (RemoveReader(reader=reader) | ReturnReader(reader=reader)) as leaving:
                given = {position.segment for position in leaving.positions}
                rest = [s for s in self.state.owned(reader) if s not in given]
                positions = (*leaving.positions, *self.floors(rest))
                return msgspec.structs.replace(leaving, positions=positions)
            case CompleteSegments(completions=through):
                found = self._completions([completion.segment for completion in through])
                return msgspec.structs.replace(update, completions=found)
        return update

    def floors(self, segments: Iterable[SegmentId]) -> tuple[Position, ...]:
        """Where segments that somebody owns stand, with every ack that counts."""
        progress = self.moment.held_progress(segments)
        return tuple(Position(segment, each.floor) for segment, each in progress.items())

    def _completions(self, segments: list[SegmentId]) -> tuple[Completion, ...]:
        extents = self.moment.extents(segments)
        progress = self.moment.progress(extents)
        successors = self.moment.successors(segments)
        for segment, extent in extents.items():
            end = end_of(self.state, segment, extent)
            through = extent.head if end is None and extent.sealed else end
            if through is None or progress[segment].floor < through:
                raise SegmentNotReadError(self.name.group, str(segment), progress[segment].floor)
        return tuple(
            Completion(s, () if s in self.state.end_cut else successors[s]) for s in segments
        )

    # -- what changes come to --------------------------------------------------------------

    def _carry_out(self, outcome: Outcome, exact: Exact | None) -> None:
        state = self.state  # as it was before
        freed: list[str] = []
        for change in outcome.changes:
            match change:
                case Freed() | Completed() | SegmentDropped():
                    freed.append(unit_of(change.segment))
                case CheckpointCreated(kind=CheckpointKind.NORMAL):
                    self._keep(outcome.revision, state.unassigned)
                case CheckpointAcked(name=name, positions=stood):
                    checkpoint = state.checkpoints.get(name)
                    if checkpoint is not None and checkpoint.kind is CheckpointKind.NORMAL:
                        self._keep(checkpoint.created, (each.segment for each in stood))
                case ReaderRemoved(reader=reader) if not isinstance(outcome.update, ReturnReader):
                    # One that slept over it must not prolong its lease, and go on.
                    leases.fence(self.tx, self.name.lease(reader))
                case WasReset() if exact is None:
                    self.forget_openings()
                case WasReset():
                    for reader in state.members:
                        leases.fence(self.tx, self.name.lease(reader))
                    self.forget_openings()
                    assert exact is not None
                    carry_out_reset(self.moment, state, outcome, exact)
                case _:
                    pass
        if freed:
            claims.fence(self.tx, self.name.key, freed)
        if any(map(_forgets, outcome.changes)):
            gone = {c.created for c in outcome.changes if isinstance(c, CheckpointForgotten)}
            left = [c.created for c in state.checkpoints.all() if c.created not in gone]
            if state.checkpoints.last is not None:
                left.append(state.checkpoints.last.created)
            # Whoever waits for one that completes here has yet to read what was acked.
            done = [
                each.created
                for change in outcome.changes
                if isinstance(change, CheckpointAcked)
                and change.complete
                and (each := state.checkpoints.get(change.name)) is not None
            ]
            reader_groups.forget_but(self.tx, self.name.group, [*left, *done, outcome.revision])

    def forget_openings(self, segments: Collection[SegmentId] | None = None) -> None:
        """What Spark has open is to be read again; before claims are held."""
        from headrace.groups.readers.runtime import spark_records  # looks do without it

        spark_records.forget(self.tx, self.name.group, segments)

    def _keep(self, created: int, segments: Iterable[SegmentId]) -> None:
        """Copy what the floor of a segment does not tell."""
        ids = [extent.id for extent in self.moment.extents(segments).values()]
        rows = stored.of_group(self.tx, self.name.key, ids) if ids else []
        more = [alone(row) for row in rows if retention.is_more_than_a_floor(row)]
        reader_groups.keep(self.tx, created, more, self.name.group)

    def _claimed(self, outcome: Outcome) -> list[OwnedUnit]:
        by_reader: dict[str, dict[SegmentId, int]] = {}
        for change in outcome.changes:
            if isinstance(change, SegmentClaimed):
                by_reader.setdefault(change.reader, {})[change.segment] = change.token
        found = []
        for reader, tokens in by_reader.items():
            units = {unit_of(segment): token for segment, token in tokens.items()}
            claims.grant_all(self.tx, self.name.key, reader, units)
            found += self.moment.units(self.state, tokens)
        return found


def _forgets(change: StateChange) -> bool:
    return isinstance(
        change,
        CheckpointForgotten
        | CheckpointCreated
        | WasReset
        | StreamDropped
        | StreamsAdded
        | Configured,
    )
