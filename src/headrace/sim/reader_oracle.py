"""The test oracle of one reader group: it sees everything and checks what the group promises.

It follows the group's log with a replica of its own, keeps its own books (who owns what, where
each segment stands, what was acked, what a checkpoint must hold) and compares.  What a reader does
under a stale fencing token is not judged, except that it must not take effect.

* one owner per segment and token, and hand-overs are exact;
* recorded positions never fall, except by a reset, and never pass what is acked;
* a segment opens once, when all its predecessors are over, and is over when all of it is acked;
* nothing acked is delivered again, and the events of a key come in order, across segments;
* a checkpoint is a barrier, and a group that was reset to it has acked exactly what it had then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.groups.progress import Progress
from headrace.groups.progress.ranges import AckedRanges
from headrace.groups.readers.core.changes import (
    Awaited,
    CheckpointAcked,
    CheckpointCreated,
    CheckpointForgotten,
    Completed,
    Configured,
    Freed,
    LagReported,
    Opened,
    PositionRecorded,
    ReaderAdded,
    ReaderRemoved,
    SegmentClaimed,
    SegmentDropped,
    StateChange,
    StreamDropped,
    StreamsAdded,
    WasReset,
)
from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.rules import Outcome
from headrace.groups.readers.core.segments import END, Position, SegmentId, falls
from headrace.groups.readers.core.synchronizer import Replica
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    AddReader,
    ResetToCheckpoint,
    ReturnReader,
    Update,
)
from headrace.sim.log import Event, ModelLog
from headrace.sim.reader_books import CheckpointBooks, KnownCheckpoint
from headrace.sim.reader_streams import StreamLogs
from headrace.sim.world import World


class ReaderOracle(StreamLogs):
    """Watches a group that reads the logs of several streams."""

    def __init__(
        self,
        world: World,
        logs: dict[str, ModelLog],
        replica: Replica,
        in_flight: Callable[[str, int], int],
    ) -> None:
        super().__init__(logs, replica.state)
        self.world = world
        self.replica = replica
        self._in_flight = in_flight
        self.owner: dict[SegmentId, tuple[str, int]] = {}
        self.position = dict(replica.state.unassigned)
        self._opened = set(self.position)
        self._over: set[SegmentId] = set()
        self._members: dict[str, int] = {}
        self._owners: dict[tuple[SegmentId, int], str] = {}
        self._durable: dict[SegmentId, AckedRanges] = {}
        self._acked: dict[SegmentId, set[int]] = {}
        self._acked_under: dict[tuple[SegmentId, int], set[int]] = {}
        self._checkpoints = CheckpointBooks()

    # --- what is acked ------------------------------------------------------------------

    def durable(self, segment: SegmentId) -> AckedRanges:
        """What is durably acked of a segment."""
        found = self._durable.get(segment)
        if found is None:
            found = self._durable[segment] = AckedRanges()
        return found

    def all_acked(self, segment: SegmentId) -> bool:
        """Whether all of a segment is durably acked."""
        return self.at_end(segment, self.durable(segment).floor)

    def is_over(self, segment: SegmentId) -> bool:
        """Whether the group has completed a segment, or began behind it."""
        return segment in self._over

    # --- what readers do ---------------------------------------------------------------

    def begun(self, reader: str, segment: SegmentId, token: int, progress: Progress) -> None:
        """A reader begins to hand out a segment."""
        if self._current(segment, token):
            self._require(
                progress.acked() == self.durable(segment),
                "a hand-over is exact",
                f"{reader} begins {segment} at {progress}, durable is {self.durable(segment)}",
            )

    def delivered(self, reader: str, segment: SegmentId, token: int, event: Event) -> None:
        """A consumer was handed an event."""
        if not self._current(segment, token):
            self.world.reach("oracle.stale delivery")
            return
        end, wrong, more = self.end_cut.get(segment), "", ""
        if event.offset in self.durable(segment):
            wrong = "nothing acked is delivered again"
        elif end is not None and event.offset >= end:
            wrong = "nothing beyond the end cut"
        elif event.key_sequence:
            number, offset = self.logs[segment.stream].places[event.key, event.key_sequence - 1]
            before = self.of_stream(segment.stream)[number]
            if offset not in self.durable(before) and (
                before != segment or offset not in self._acked_under.get((segment, token), ())
            ):
                wrong, more = "key order", f" before {offset} of {before}, its key's last"
        if wrong:
            what = f"{reader} was handed {event.offset} of {segment} under token {token}"
            self.world.fail(wrong, what + more)

    def acked(self, segment: SegmentId, token: int, offset: int) -> None:
        """A consumer has acked an event; whether that counts is another matter."""
        self._acked.setdefault(segment, set()).add(offset)
        self._acked_under.setdefault((segment, token), set()).add(offset)

    def stored(self, segment: SegmentId, progress: Progress) -> None:
        """A progress is durable."""
        before, after = self.durable(segment), progress.acked()
        if after.copy().merge(before):
            what = f"{segment} went from {before} to {after}"
            self.world.fail("nothing acked is forgotten", what)
        known = self._acked.get(segment, set())
        for low, high in ((before.floor, after.floor), *after.to_tuples()):
            for offset in range(low, high):
                if offset not in known and offset not in before:
                    what = f"{offset} of {segment} counts as acked, but nobody has acked it"
                    self.world.fail("nothing is lost", what)
        self._durable[segment] = after

    # --- what the group does -----------------------------------------------------------

    def followed(self, outcomes: Iterable[Outcome]) -> None:
        """The log of the group has grown."""
        for outcome in outcomes:
            self.replica.follow([outcome])
            self._changed(outcome)
            self._compare()

    def _changed(self, outcome: Outcome) -> None:
        for change in outcome.changes:
            match change:
                case SegmentClaimed():
                    self._claimed(change)
                case Freed(reader=reader, segment=segment, offset=offset):
                    self._moved(segment, offset, "is freed")
                    held = self.owner.pop(segment, None)
                    self._require(
                        held is not None and held[0] == reader,
                        "one owner per segment and token",
                        f"{reader} frees {segment}, which {held} owns",
                    )
                case PositionRecorded(segment=segment, offset=offset):
                    self._moved(segment, offset, "is recorded")
                case Completed(segment=segment):
                    self.owner.pop(segment, None)
                    self.position.pop(segment, None)
                    self._over.add(segment)
                    self._require(
                        self.all_acked(segment),
                        "only what is read is over",
                        f"{segment} is completed at {self.durable(segment)}",
                    )
                    self.world.reach("segment.over")
                case Opened(segment=segment):
                    self._open(segment)
                case Awaited():
                    self.world.reach("segment.waits")
                case ReaderAdded(reader=reader):
                    self._members[reader] = outcome.revision
                    asked = isinstance(outcome.update, AddReader | ReturnReader)
                    what = f"{reader} by {outcome.update}"
                    self._require(asked, "only who joins is online", what)
                case ReaderRemoved(reader=reader):
                    del self._members[reader]
                case LagReported():
                    self.world.reach("reader.lag")
                case _:
                    self._changed_group(outcome, change)

    def _changed_group(self, outcome: Outcome, change: StateChange) -> None:
        match change:
            case CheckpointCreated(name=name, kind=kind):
                self._checkpoint(name, kind, outcome.revision)
            case CheckpointAcked():
                self._checkpoint_acked(change, outcome.update)
            case CheckpointForgotten(name=name):
                del self._checkpoints.known[name]
            case WasReset(cut=cut):
                self._reset(outcome, cut)
            case SegmentDropped(segment=segment):
                self.owner.pop(segment, None)
            case StreamDropped(stream=stream):
                self._dropped(stream)
            case StreamsAdded(cut=cut):
                self._added(cut)
            case Configured():
                self.world.reach("group.configured")

    def _claimed(self, change: SegmentClaimed) -> None:
        segment, token = change.segment, change.token
        what = f"{change.reader} claims {segment} at {change.offset} under token {token}"
        first = self._owners.setdefault((segment, token), change.reader)
        free = first == change.reader and segment not in self.owner
        self._require(free, "one owner per segment and token", what)
        at = self.position.get(segment)
        self._require(change.offset == at, "a hand-over is exact", f"{what}; it stood at {at}")
        self.owner[segment] = (change.reader, token)

    def _moved(self, segment: SegmentId, offset: int, how: str) -> None:
        before = self.position.get(segment)
        holds = before is not None and not falls(before, offset)
        acked = self.all_acked(segment) if offset == END else self.durable(segment).floor >= offset
        if not (holds and acked):
            what = f"{segment} {how} at {offset}, it stood at {before}"
            self._require(holds, "positions never fall", what)
            self._require(acked, "nothing is skipped", f"{what}; acked is {self.durable(segment)}")
        self.position[segment] = offset

    def _open(self, segment: SegmentId) -> None:
        first = segment not in self._opened
        self._require(first, "a segment opens once", f"{segment} is opened again")
        self._opened.add(segment)
        self.position[segment] = 0
        for number in self.segment(segment).predecessors:
            predecessor = SegmentId(segment.stream, number)
            self._require(
                predecessor in self._over,
                "successors wait for all predecessors",
                f"{segment} opens while {predecessor} is not over",
            )
        self.world.reach("segment.opened")

    def _compare(self) -> None:
        """The replica agrees with these books."""
        state = self.replica.state
        online = {name: member.token for name, member in state.members.items()}
        if online != self._members:
            self.world.fail("who left stays away", f"{online} and {self._members}")
        if state.streams.keys() != self.streams:
            what = f"{list(state.streams)} and {self.streams}"
            self.world.fail("the group reads its streams and no others", what)
        owned = {
            segment: (name, holding.token)
            for name, member in state.members.items()
            for segment, holding in member.owned.items()
        }
        if owned != self.owner:
            self.world.fail("the books agree", f"{owned} and {self.owner}")
        for name, readers in state.blockers().items():
            known = bool(readers) and all(reader in self._members for reader in readers)
            if not known:
                self.world.fail("who blocks is online", f"{name} waits for {readers}")

    # --- checkpoints and resets --------------------------------------------------------

    def _checkpoint(self, name: str, kind: CheckpointKind, created: int) -> None:
        self.world.reach(f"checkpoint.{kind}")
        acked = {s: self.durable(s) for s in self.segments()}
        owners = [(segment, reader) for segment, (reader, _) in self.owner.items()]
        self._checkpoints.create(name, KnownCheckpoint(kind, created, acked), owners)

    def _checkpoint_acked(self, change: CheckpointAcked, update: Update | None) -> None:
        acked = {s: self.durable(s) for s in self.segments()}
        found = self._checkpoints.answer(change.name, change.reader, acked)
        if found.kind is CheckpointKind.NORMAL and isinstance(update, AckCheckpoint):
            busy = self._in_flight(change.reader, self._members[change.reader])
            self._require(
                not busy,
                "a checkpoint is a barrier",
                f"{change.reader} acknowledges {change.name} with {busy} events in flight",
            )
        if change.complete:
            self.world.reach(f"checkpoint.{found.kind} complete")
            self._require(
                found.created >= self._checkpoints.completed,
                "checkpoints complete in the order of creation",
                f"{change.name} of {found.created} after that of {self._checkpoints.completed}",
            )
            self._checkpoints.completed = found.created

    def _reset(self, outcome: Outcome, cut: tuple[Position, ...]) -> None:
        """Begin the books again; what is acked is what the store was set to."""
        self.owner.clear()
        self._members.clear()
        self.position = {position.segment: position.offset for position in cut}
        self._acked_under.clear()
        restored = self.restored()
        if isinstance(outcome.update, ResetToCheckpoint):
            name = outcome.update.name
            found = self._checkpoints.known.get(name)
            stays = found is not None and self.replica.state.checkpoints.get(name) is not None
            self._require(stays, "a checkpoint stays when it is gone back to", name)
            truth = found.acked if found else {}
            for segment, acked in restored.items():
                self._require(
                    acked == truth.get(segment, AckedRanges()),
                    "a restored group has acked what it had",
                    f"{segment} is {acked} after {name}, which had {truth.get(segment)}",
                )
            self.world.reach("group.restored")
        else:
            self.world.reach("group.reset")
            left = list(self._checkpoints.known)
            self._require(not left, "a cut knows no checkpoints", f"{left} are left")
            for segment, acked in restored.items():
                self._require(
                    self.durable(segment).copy().merge(acked) == 0,
                    "a reset skips nothing",
                    f"{segment} is {acked} after a reset, it was {self.durable(segment)}",
                )
        self._durable = restored
        self._acked = {
            segment: {o for o in range(self.segment(segment).head) if o in acked}
            for segment, acked in restored.items()
        }
        self._opened, self._over = set(), set()
        for stream in self.streams:
            self._begin(stream)

    def _begin(self, stream: str) -> None:
        """What of a stream is open or over, as seen from the positions."""
        ahead: set[SegmentId] = set()
        for segment in self.of_stream(stream):
            before = (SegmentId(stream, n) for n in self.segment(segment).predecessors)
            if any(s in ahead or s in self.position for s in before):
                ahead.add(segment)
            else:
                self._opened.add(segment)
                if segment not in self.position:
                    self._over.add(segment)

    # --- streams -----------------------------------------------------------------------

    def _added(self, cut: tuple[Position, ...]) -> None:
        self.world.reach("group.stream added")
        for stream in {position.segment.stream for position in cut}:
            self.streams.add(stream)
            self.position |= {p.segment: p.offset for p in cut if p.segment.stream == stream}
            self._begin(stream)
            begun = {s: a for s, a in self.restored().items() if s.stream == stream}
            self._durable |= begun
            self._checkpoints.add(begun)

    def _dropped(self, stream: str) -> None:
        self.world.reach("group.stream dropped")
        self.streams.remove(stream)
        for segment in self.of_stream(stream):
            self.position.pop(segment, None)
            self._durable.pop(segment, None)
            self._acked.pop(segment, None)
            self._opened.discard(segment)
            self._over.discard(segment)
        self._checkpoints.drop(stream)
        mine = any(segment.stream == stream for segment in self.owner)
        self._require(not mine, "nobody owns what was dropped", f"{stream}: {self.owner}")

    def restored(self) -> dict[SegmentId, AckedRanges]:
        """What the store says is acked; set by the scenario."""
        raise NotImplementedError

    def _current(self, segment: SegmentId, token: int) -> bool:
        return self.owner.get(segment, ("", 0))[1] == token

    def _require(self, holds: bool, invariant: str, detail: str) -> None:
        if not holds:
            self.world.fail(invariant, detail)
