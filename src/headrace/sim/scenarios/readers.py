"""Reader groups: readers that divide the segments of one or two streams among themselves.

Every reader follows the group's log with a replica of its own and changes it in transactions of
the store, as the runtime will.  Readers crash, pause past their leases and come back, lose the
answers of the store and the news of it, are slow, idle, or closed; segments split and merge;
checkpoints, silent ones too, are taken and restored, groups are reset and some end at a cut.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.groups.progress.ranges import AckedRanges
from headrace.groups.readers.core import cuts
from headrace.groups.readers.core.balance import wants_release
from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.records import encode_state
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.synchronizer import Replica
from headrace.groups.readers.core.updates import (
    CancelCheckpoints,
    Configure,
    CreateCheckpoint,
    DropStreams,
    RemoveReader,
    ResetToCheckpoint,
    Update,
)
from headrace.sim.faults import Fault
from headrace.sim.log import ModelLog
from headrace.sim.reader_oracle import ReaderOracle
from headrace.sim.reader_process import News, ReaderProcess
from headrace.sim.reader_store import (
    GROUP,
    PROGRESS,
    catch_up,
    commit,
    create,
    decoded,
    read_log,
)
from headrace.sim.scenario import Action, Scenario
from headrace.sim.store import Outcome, Snapshot

SEGMENTS_MAX = 20


class StoreOracle(ReaderOracle):
    """The oracle, with access to the store."""

    def restored(self) -> dict[SegmentId, AckedRanges]:
        entries = self.world.store.entries
        return {
            segment: entries[PROGRESS, segment].value.acked()
            for segment in self.segments()
            if (PROGRESS, segment) in entries
        }


class ReadersScenario(Scenario):
    """One reader group over one or two streams."""

    name: ClassVar[str] = "readers"
    about: ClassVar[str] = "reader groups: claims, checkpoints, splits, merges, deaths, resets"
    steps: ClassVar[int] = 2200
    mishap_ms: ClassVar[int] = 1200
    pause_ms: ClassVar[tuple[int, int]] = (100, 9000)

    def build(self) -> None:
        rng, world = self.world.rng, self.world
        self.logs = {stream: ModelLog() for stream in ("a", "b")[: rng.randint(1, 2)]}
        for log in self.logs.values():
            log.create(rng.randint(1, 3))
        start = {SegmentId(s, n): 0 for s, log in self.logs.items() for n in log.segments}
        self.bounded = rng.random() < 0.15
        end_cut = {segment: rng.randint(5, 60) for segment in start} if self.bounded else {}
        state = ReaderGroupState(GroupConfig(), start, end_cut=end_cut)
        chunks = encode_state(state)
        world.store.run(lambda tx: create(tx, chunks))
        self.oracle = StoreOracle(world, self.logs, Replica.restore(chunks), self._in_flight)
        self._operators = Replica.restore(chunks)
        self.keys = rng.choice((3, 12, 40))
        self._seen_revision = 0
        self._checkpoints = 0
        self._unread: SegmentId | None = None
        """What was left to read when somebody last looked."""
        self.readers: list[ReaderProcess] = []
        names = [f"r{number + 1}" for number in range(rng.randint(1, 5))]
        twins = [f"{name}-twin" for name in names if rng.random() < 0.15]
        for name in (*names, *twins):
            reader = ReaderProcess(world, name)
            reader.reader = name.removesuffix("-twin")
            reader.oracle = self.oracle
            reader.fails = rng.random() < 0.3
            reader.returns = rng.random() < 0.5
            if world.faults.strikes(Fault.SLOW, 0.25):
                reader.ack_ms = (100, 1500)
                reader.lag_per_event_ms = 4000
            self.readers.append(reader)
            world.spawn(reader)

    # --- what processes ask ---

    def _in_flight(self, reader: str, token: int) -> int:
        """Events in the hands of a member that is at work."""
        return sum(
            held.dispatcher.in_flight
            for process in self.readers
            if process.at_work and process.core is not None
            if (process.core.name, process.core.token) == (reader, token)
            for held in process.held.values()
        )

    # --- what the outside does ---

    def actions(self) -> list[Action]:
        return [
            Action("publish", 60, self._publish),
            Action("checkpoint", 2, lambda: self._start_checkpoint(CheckpointKind.NORMAL)),
            Action("cut", 1, lambda: self._start_checkpoint(CheckpointKind.SILENT)),
            Action("restore", 1, self._restore),
            Action("reset", 1, self._reset),
            Action("cancel", 1, self._cancel),
            Action("configure", 1, self._configure),
            Action("streams", 1, self._streams),
            Action("close", 1, self._close, Fault.CRASH),
            Action("die", 1, self._die, Fault.CRASH),
            Action("offline", 1, self._offline, Fault.CRASH),
            Action("split", 1, self._split, Fault.SCALE),
            Action("merge", 1, self._merge, Fault.SCALE),
            Action("split twice", 1, self._split_twice, Fault.SCALE),
        ]

    def _log(self) -> ModelLog:
        return self.world.rng.choice(list(self.logs.values()))

    def _publish(self) -> None:
        for _ in range(self.world.rng.randint(1, 4)):
            self._log().append(f"k{self.world.rng.randint(0, self.keys - 1)}")

    def _split(self) -> None:
        log = self._log()
        if len(log.segments) < SEGMENTS_MAX:
            log.split(self.world.rng.choice(log.open_segments).number)

    def _split_twice(self) -> None:
        log = self._log()
        if len(log.segments) < SEGMENTS_MAX:
            log.split_twice(self.world.rng.choice(log.open_segments).number)

    def _merge(self) -> None:
        log = self._log()
        segments = log.open_segments
        if len(segments) > 1:
            left = self.world.rng.randrange(len(segments) - 1)
            log.merge(segments[left].number, segments[left + 1].number)

    def _administer(self, update: Update) -> Outcome:
        """An operator's update; operators have a store without faults."""
        replica = Replica(self._current())
        return self.world.store.run(lambda tx: commit(tx, replica, update, self.oracle))

    def _current(self) -> ReaderGroupState:
        """The state as operators see it, who follow the log as readers do."""
        return self._caught_up(self._operators)

    def _caught_up(self, replica: Replica) -> ReaderGroupState:
        catch_up(replica, read_log(Snapshot(self.world.store), replica.revision))
        return replica.state

    def _start_checkpoint(self, kind: CheckpointKind) -> None:
        self._checkpoints += 1
        self._administer(CreateCheckpoint(f"{kind}-{self._checkpoints}", kind))

    def _complete(self, kind: CheckpointKind) -> list[str]:
        known = self._current().checkpoints.all()
        return [c.name for c in known if not c.pending and c.kind is kind]

    def _restore(self) -> None:
        names = self._complete(CheckpointKind.NORMAL)
        if names and self.world.rng.random() < 0.5:
            self._administer(ResetToCheckpoint(self.world.rng.choice(names)))

    def _reset(self) -> None:
        """Begin again at a cut that was learned silently."""
        names = self._complete(CheckpointKind.SILENT)
        if names and not self.bounded and self.world.rng.random() < 0.5:
            checkpoint = self._current().checkpoints.get(self.world.rng.choice(names))
            assert checkpoint is not None
            graph, state = self.oracle.graph(), self._current()
            self._administer(cuts.reset_to(checkpoint.positions, graph, state))

    def _cancel(self) -> None:
        """Give up what waits: one checkpoint, or all of the application's."""
        waiting = list(self._current().blockers())
        if waiting and self.world.rng.random() < 0.3:
            some = (self.world.rng.choice(waiting),) if self.world.rng.random() < 0.5 else ()
            self._administer(CancelCheckpoints(some))
            self.world.reach("checkpoint.cancelled")

    def _configure(self) -> None:
        kept, outstanding = self.world.rng.randint(1, 4), self.world.rng.randint(1, 4)
        self._administer(
            Configure(
                GroupConfig(checkpoints_kept_max=kept, checkpoints_outstanding_max=outstanding)
            )
        )

    def _streams(self) -> None:
        """A stream leaves the group, or joins it at its beginning or its end."""
        rng, streams = self.world.rng, self.oracle.streams
        if self.bounded or len(self.logs) < 2 or rng.random() < 0.5:
            return
        stream = rng.choice(list(self.logs))
        if stream in streams:
            if len(streams) > 1:
                self._administer(DropStreams((stream,)))
            return
        graph = self.oracle.graph()
        if rng.random() < 0.5:
            cut = {s: 0 for s in self.oracle.of_stream(stream) if not graph[s]}
        else:
            opened = self.logs[stream].open_segments
            cut = {SegmentId(stream, segment.number): segment.head for segment in opened}
        self._administer(cuts.add_streams(cut, graph))

    def _close(self) -> None:
        reader = self.world.rng.choice(self.readers)
        leaves = reader.close()
        if leaves is not None:
            self._administer(leaves)
            self.world.reach("reader.closed")
            self.world.crash(reader, self.world.rng.randint(10, 4000))

    def _die(self) -> None:
        """A reader is lost for good, but never the last one."""
        living = [reader for reader in self.readers if not reader.gone]
        if len(living) > 1 and self.world.rng.random() < 0.15:
            reader = self.world.rng.choice(living)
            reader.gone = True
            self.world.crash(reader, 1000)
            self.world.reach("reader.died for good")

    def _offline(self) -> None:
        """An operator puts a reader offline and knows no position."""
        reader = self.world.rng.choice(self.readers)
        self._administer(RemoveReader(reader.reader))

    # --- invariants ---

    def check(self) -> None:
        store = self.world.store
        if store.revision == self._seen_revision:
            return
        revision = self.oracle.replica.revision
        _, log = read_log(Snapshot(store), revision)
        if log:
            self.oracle.followed(map(decoded, log))
            head = self.oracle.replica.revision
            for reader in self.readers:
                self.world.network.send("store", reader.name, News(head))
        for segment in self.oracle.segments():
            entry = store.entries.get((PROGRESS, segment))
            if entry is not None and entry.revision > self._seen_revision:
                self.oracle.stored(segment, entry.value)
        self._seen_revision = store.revision

    def healed(self) -> None:
        for reader in self.readers:
            reader.ack_ms = (1, 10)
        for segment, end in self.oracle.end_cut.items():
            if self.oracle.segment(segment).head < end:
                self.logs[segment.stream].split(segment.number)  # it will not get there any more

    def quiescent(self) -> bool:
        if self._unread is not None and not self._read(self._unread):
            return False
        state = self.oracle.replica.state
        if state.unassigned or state.future or state.blockers():
            return False
        wanted = {process.reader for process in self.readers if not process.gone}
        at_work = {process.reader for process in self.readers if process.at_work}
        if not set(state.members) == wanted == at_work:
            return False
        for name, member in state.members.items():
            if member.far_behind or wants_release(state, name):
                return False
        self._unread = next((s for s in self.oracle.segments() if not self._read(s)), None)
        return self._unread is None

    def _read(self, segment: SegmentId) -> bool:
        if self.bounded and segment not in self.oracle.end_cut:
            return True
        owned = segment in self.oracle.owner
        if self.oracle.is_over(segment):
            return not owned
        at = self.oracle.durable(segment).floor
        return owned and not self.bounded and at >= self.oracle.limit(segment)

    def unsettled(self) -> str:
        state = self.oracle.replica.state
        left = {
            str(s): (self.oracle.durable(s).floor, self.oracle.limit(s))
            for s in self.oracle.segments()
            if not self._read(s)
        }
        owned = {name: [str(s) for s in member.owned] for name, member in state.members.items()}
        return (
            f"{state.describe()}; owned {owned}; waits {state.future}; "
            f"checkpoints {state.blockers()}; left {left}"
        )

    def final(self) -> None:
        state = self.oracle.replica.state
        counts = {name: len(member.owned) for name, member in state.members.items()}
        self.world.require(
            max(counts.values()) - min(counts.values()) <= 1,
            "shares differ by one at most",
            f"{counts}",
        )
        self.world.require(
            state.end_of_data == self.bounded, "data ends at the end cut", state.describe()
        )
        stored = Replica.restore(self.world.store.entries[GROUP, "snapshot"].value)
        copy = encode_state(self._caught_up(stored))
        self.world.require(
            copy == encode_state(state), "replicas agree", f"revision {state.revision}"
        )


SCENARIO = ReadersScenario
