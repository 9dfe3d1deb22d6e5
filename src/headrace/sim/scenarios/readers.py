"""Reader groups: readers that divide the segments of one or two streams among themselves.

Every reader follows the group's log with a replica of its own and changes it in transactions of
the store, as the runtime will.  Readers crash, pause past their leases and come back, lose the
answers of the store and the news of it, are slow, idle, or closed; segments split and merge;
checkpoints, silent ones too, are taken and restored, groups are reset and some end at a cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from headrace.errors import ReaderGroupError, StaleDeliveryError, UnknownDeliveryError
from headrace.groups.delivery import DeliveryConfig, Dispatcher
from headrace.groups.progress import Progress
from headrace.groups.ranges import AckedRanges
from headrace.groups.readers import cuts, failure
from headrace.groups.readers.balance import wants_release
from headrace.groups.readers.checkpoints import CheckpointKind
from headrace.groups.readers.reader import (
    Begin,
    Detect,
    Effect,
    Pause,
    Propose,
    Reader,
    Refresh,
    Renew,
    Resume,
    Standing,
    StartAgain,
    Stop,
)
from headrace.groups.readers.records import LogEntry, decode_entry, encode_entry, encode_state
from headrace.groups.readers.rules import Outcome as Applied
from headrace.groups.readers.segments import END, Cut, SegmentId, positions
from headrace.groups.readers.settings import GroupConfig, ReaderSettings
from headrace.groups.readers.state import ReaderGroupState
from headrace.groups.readers.synchronizer import Replica
from headrace.groups.readers.updates import (
    AddReader,
    CheckpointAcked,
    CheckpointCreated,
    Claimed,
    Completed,
    CreateCheckpoint,
    Freed,
    RemoveReader,
    ResetToCheckpoint,
    Successor,
    Update,
    WasReset,
)
from headrace.sim.faults import Fault
from headrace.sim.log import ModelLog
from headrace.sim.reader_oracle import ReaderOracle
from headrace.sim.scenario import Action, Scenario
from headrace.sim.store import Conflict, Done, Outcome, Snapshot, StoreConflictError
from headrace.sim.world import Process

GROUP = "group"
PROGRESS = "progress"
AT_CHECKPOINT = "at checkpoint"
TICK_MS = 60
JOIN_AGAIN_MS = 300
COMMIT_AGAIN_MS = 500
LOG_KEPT = 40
SEGMENTS_MAX = 20
TAKE_MAX = 4

SETTINGS = ReaderSettings(
    lease_ttl_ms=3000, heartbeat_ms=1000, refresh_ms=1000, record_ms=4000, answer_ms=500,
    join_delay_ms=50,
)  # fmt: skip
DELIVERY = DeliveryConfig(max_pending=5, ack_wait_ms=4000, backoff_min_ms=20, backoff_max_ms=400)


class News(msgspec.Struct, frozen=True):
    """The group's log has grown to this revision."""

    revision: int


class Refused(msgspec.Struct, frozen=True):
    """The group does not allow an update."""

    why: str


# --- the group in the store ----------------------------------------------------------------


def read_log(tx: Snapshot, revision: int) -> tuple[list[bytes] | None, list[bytes]]:
    """The log after a revision, and the snapshot before it where the log is too short."""
    head, first = _value(tx, "head"), _value(tx, "first")
    snapshot = None
    if revision + 1 < first:
        snapshot, revision = _value(tx, "snapshot"), first - 1
    return snapshot, [_value(tx, r) for r in range(revision + 1, head + 1)]


def _value(tx: Snapshot, key: Any) -> Any:
    entry = tx.get(GROUP, key)
    assert entry is not None
    return entry.value


def catch_up(replica: Replica, news: tuple[list[bytes] | None, list[bytes]]) -> None:
    """Bring a replica up to date."""
    snapshot, log = news
    if snapshot is not None:
        restored = Replica.restore(snapshot)
        if restored.revision > replica.revision:
            replica.state = restored.state
    replica.follow(map(decode_entry, log))


def commit(
    tx: Snapshot, replica: Replica, update: Update, scenario: ReadersScenario
) -> Applied | Refused:
    """Put an update to the group, with claims and progress to match."""
    catch_up(replica, read_log(tx, replica.revision))
    try:
        entry, outcome = replica.prepare(update)
    except ReaderGroupError as error:
        scenario.world.reach(f"refused.{error.reason}")
        return Refused(str(error))
    if entry is None:
        return outcome
    _compact(tx, replica)
    tx.put(GROUP, entry.revision, encode_entry(entry))
    tx.put(GROUP, "head", entry.revision)
    for change in outcome.changes:
        match change:
            case Claimed(reader=reader, segment=segment, token=token):
                tx.claim(GROUP, segment, reader, token)
            case Freed(segment=segment) | Completed(segment=segment):
                _release_claim(tx, segment)
            case CheckpointCreated(name=name):
                _save_progress(tx, name, replica.state.unassigned)
            case CheckpointAcked(name=name, positions=stood):
                _save_progress(tx, name, (position.segment for position in stood))
            case WasReset(cut=cut):
                name = update.name if isinstance(update, ResetToCheckpoint) else ""
                _reset_progress(tx, scenario, name, {p.segment: p.offset for p in cut})
    return outcome


def _compact(tx: Snapshot, replica: Replica) -> None:
    first = _value(tx, "first")
    if replica.revision - first >= LOG_KEPT:
        tx.put(GROUP, "snapshot", replica.snapshot())
        tx.put(GROUP, "first", replica.revision + 1)
        for revision in range(first, replica.revision + 1):
            tx.delete(GROUP, revision)


def _release_claim(tx: Snapshot, segment: SegmentId) -> None:
    claim = tx.claim_of(GROUP, segment)
    assert claim is not None
    tx.release_claim(GROUP, segment, claim.token)


def _save_progress(tx: Snapshot, name: str, segments: Iterable[SegmentId]) -> None:
    """Keep what is acked out of order at a checkpoint: its offsets say only the floor."""
    for segment in segments:
        entry = tx.get(PROGRESS, segment)
        if entry is not None:
            tx.put(AT_CHECKPOINT, (name, segment), entry.value)


def _reset_progress(tx: Snapshot, scenario: ReadersScenario, checkpoint: str, cut: Cut) -> None:
    """What is within the cut stands as it says, and what lies ahead of it is unread."""
    for segment, offset in cut.items():
        saved = tx.get(AT_CHECKPOINT, (checkpoint, segment))
        floor = scenario.oracle.limit(segment) if offset == END else offset
        tx.put(PROGRESS, segment, saved.value if saved else Progress(floor=floor))
    for segment in cuts.ahead_of(cut, scenario.graph()):
        tx.delete(PROGRESS, segment)
    for group, segment in list(scenario.world.store.claims):
        if group == GROUP:
            _release_claim(tx, segment)


# --- readers -------------------------------------------------------------------------------


class Held:
    """A segment in a reader's hands."""

    def __init__(self, segment: SegmentId, token: int, start: Progress) -> None:
        self.segment = segment
        self.token = token
        self.dispatcher = Dispatcher(DELIVERY, start)
        self.stored = start
        self.paused = False
        self.commit_number = 0
        self.commit_since_ms: int | None = None

    @property
    def unstored(self) -> bool:
        """Whether something is acked, or refused, that the store does not know."""
        return self.dispatcher.progress() != self.stored


class ReaderProcess(Process):
    """A process that reads as a member of the group."""

    scenario: ReadersScenario
    ack_ms: tuple[int, int] = (1, 40)
    lag_per_event_ms = 10
    fails = False
    gone = False
    """It has died for good."""
    reader: str
    """The member it wants to be; two processes may want to be the same."""

    def start(self) -> None:
        self.core: Reader | None = None
        self.replica: Replica | None = None
        self.held: dict[SegmentId, Held] = {}
        self.loading: dict[SegmentId, tuple[Begin, int]] = {}
        self.joining_since_ms: int | None = None
        if not self.gone:
            self.after(TICK_MS, "tick")

    @property
    def lease_owner(self) -> str:
        """This life of this process."""
        return f"{self.name}#{self.incarnation}"

    @property
    def at_work(self) -> bool:
        """Whether this process is a member, as far as it knows."""
        return self.alive and self.core is not None and not self.core.over

    def receive(self, source: str, message: Any) -> None:  # noqa: ARG002
        behind = self.replica is not None and self.replica.revision < message.revision
        if isinstance(message, News) and behind:
            self._refresh()

    def timer(self, tag: Any) -> None:
        match tag:
            case "tick":
                if self.core is None:
                    self._join()
                for held in list(self.held.values()):
                    self._pump(held)
                    self._commit(held)
                self._step()
                self.after(TICK_MS, "tick")
            case ("answer", held, offset, attempt):
                self._answer(held, offset, attempt)

    # --- joining ---

    def _join(self) -> None:
        since_ms = self.joining_since_ms
        if since_ms is not None and self.now_ms - since_ms < JOIN_AGAIN_MS:
            return
        self.joining_since_ms = self.now_ms
        self.submit(("join", self.joining_since_ms), self._run_join)

    def _run_join(self, tx: Snapshot) -> tuple[str, int, Replica]:
        """Take the lease, bury an earlier life, join: a step at a time, each may be repeated."""
        lease = tx.lease(self.reader)
        if lease is None or lease.owner != self.lease_owner or lease.expires_ms <= tx.now_ms:
            lease = tx.acquire_lease(self.reader, self.lease_owner, SETTINGS.lease_ttl_ms)
        replica = Replica.restore(_value(tx, "snapshot"))
        catch_up(replica, read_log(tx, replica.revision))
        member = replica.state.members.get(self.reader)
        if member is not None and member.lease_token == lease.token:
            return "joined", member.token, replica
        if member is not None:
            dead = failure.DeadReader(self.reader, member.token, "it came back")
            commit(tx, replica, self._offline(tx, replica.state, dead), self.scenario)
            return "buried", 0, replica
        outcome = commit(tx, replica, AddReader(self.reader, lease.token), self.scenario)
        assert isinstance(outcome, Applied)
        return "joined", outcome.revision, replica

    @staticmethod
    def _offline(tx: Snapshot, state: ReaderGroupState, dead: failure.DeadReader) -> RemoveReader:
        acked = {}
        for segment in state.owned(dead.reader):
            entry = tx.get(PROGRESS, segment)
            if entry is not None:
                acked[segment] = entry.value.floor
        return failure.offline(state, dead, acked)

    def _joined(self, token: int, replica: Replica) -> None:
        self.note("joins under token %s", token)
        self.world.reach("reader.joined")
        self.replica = replica
        self.core = Reader(self.reader, token, SETTINGS, self.now_ms)
        self._refresh()

    def _start_again(self) -> None:
        self.note("starts again")
        self.world.reach("reader.started again")
        self.core = None
        self.replica = None
        self.held.clear()
        self.loading.clear()
        self.joining_since_ms = None

    # --- deciding ---

    def _step(self) -> None:
        if self.core is None or self.replica is None:
            return
        standings = {segment: self._standing(held) for segment, held in self.held.items()}
        lag_ms = self.lag_per_event_ms * sum(
            self.scenario.oracle.limit(s) - held.stored.floor for s, held in self.held.items()
        )
        state = self.replica.state
        for effect in self.core.step(state, standings, max(0, lag_ms), self.now_ms):
            self._do(effect)

    def _standing(self, held: Held) -> Standing:
        idle = not held.dispatcher.in_flight and not held.unstored
        floor = held.stored.floor
        if not self.scenario.oracle.at_end(held.segment, floor):
            return Standing(floor, idle)
        return Standing(END, idle, self.scenario.successors(held.segment))

    def _do(self, effect: Effect) -> None:
        assert self.core is not None
        match effect:
            case Begin(segment=segment) as begin:
                self.loading[segment] = (begin, self.now_ms)
                self._load(begin)
            case Stop(segment=segment):
                self.held.pop(segment, None)
                self.loading.pop(segment, None)
            case Pause(segments=segments) | Resume(segments=segments):
                for segment in segments:
                    if segment in self.held:
                        self.held[segment].paused = isinstance(effect, Pause)
            case Propose(update=update):
                self._propose(update)
            case Renew():
                token, ttl_ms = self._lease_token(), SETTINGS.lease_ttl_ms
                self.submit("renew", lambda tx: tx.renew_lease(self.reader, token, ttl_ms))
            case Refresh():
                self._refresh()
                self._load_again()
            case Detect():
                replica = self.replica
                assert replica is not None
                self.submit(("detect", self.core), lambda tx: self._run_detect(tx, replica))
            case StartAgain():
                self._start_again()

    def _lease_token(self) -> int:
        assert self.core is not None
        assert self.replica is not None
        return self.replica.state.members[self.reader].lease_token

    def _propose(self, update: Update) -> None:
        replica = self.replica
        assert replica is not None
        self.note("proposes %s", update)
        tag = ("proposed", self.core, update)
        self.submit(tag, lambda tx: commit(tx, replica, update, self.scenario))

    def _run_detect(self, tx: Snapshot, replica: Replica) -> int | None:
        """Bury one dead reader; how long until it is worth looking again."""
        catch_up(replica, read_log(tx, replica.revision))
        leases = {}
        for name in replica.state.members:
            lease = tx.lease(name)
            if lease is not None:
                leases[name] = failure.ReaderLease(lease.token, lease.expires_ms)
        dead = failure.dead_readers(replica.state, leases, tx.now_ms)
        if dead:
            commit(tx, replica, self._offline(tx, replica.state, dead[0]), self.scenario)
            self.note("puts %s offline: %s", dead[0].reader, dead[0].why)
            self.world.reach("reader.put offline")
            return 0
        expires_ms = failure.next_expiry_ms(replica.state, leases, tx.now_ms)
        return None if expires_ms is None else expires_ms - tx.now_ms

    def _refresh(self) -> None:
        replica = self.replica
        if replica is not None:
            self.submit(("news", replica), lambda tx: read_log(tx, replica.revision))

    def stored(self, tag: Any, outcome: Outcome) -> None:
        match tag, outcome:
            case ("join", since_ms), Done(value=(what, token, replica)) if self.core is None:
                if since_ms == self.joining_since_ms:
                    self.joining_since_ms = None
                    if what == "joined":
                        self._joined(token, replica)
                    else:
                        self._join()
            case ("news", replica), Done(value=news) if replica is self.replica:
                assert replica is not None
                catch_up(replica, news)
                self._step()
            case ("proposed", core, update), _ if core is self.core and core is not None:
                self._proposed(update, outcome)
            case ("detect", core), Done(value=expires_in_ms) if core is self.core:
                assert core is not None
                assert self.replica is not None
                core.detected(self.replica.state, expires_in_ms, self.now_ms)
            case "renew", Conflict():
                self.world.reach("reader.lease lost")
            case ("load", begin), Done(value=progress):
                self._loaded(begin, progress)
            case ("commit", held, number, progress), _:
                self._committed(held, number, progress, outcome)

    def _proposed(self, update: Update, outcome: Outcome) -> None:
        assert self.core is not None
        assert self.replica is not None
        match outcome:
            case Done(value=Refused(why=why)):
                self.note("is refused %s: %s", update, why)
            case Done(value=Applied(revision=revision, changes=changes)) if changes:
                self.replica.follow([LogEntry(revision, update)])
        self.core.answered(self.now_ms)
        self._step()

    # --- reading ---

    def _load(self, begin: Begin) -> None:
        def read(tx: Snapshot) -> Progress | None:
            claim = tx.claim_of(GROUP, begin.segment)
            if claim is None or (claim.owner, claim.token) != (self.reader, begin.token):
                return None
            entry = tx.get(PROGRESS, begin.segment)
            floor = self.scenario.oracle.limit(begin.segment) if begin.offset == END else 0
            return entry.value if entry else Progress(floor=max(begin.offset, floor))

        self.submit(("load", begin), read)

    def _load_again(self) -> None:
        for begin, since_ms in list(self.loading.values()):
            if self.now_ms - since_ms > COMMIT_AGAIN_MS:
                self.loading[begin.segment] = (begin, self.now_ms)
                self._load(begin)

    def _loaded(self, begin: Begin, progress: Progress | None) -> None:
        if self.loading.get(begin.segment, (None,))[0] != begin or progress is None:
            return
        del self.loading[begin.segment]
        self.note("begins %s at %s", begin.segment, progress)
        if progress.ranges:
            self.world.reach("reader.begins with acked ranges")
        self.scenario.oracle.begun(self.name, begin.segment, begin.token, progress)
        held = Held(begin.segment, begin.token, progress)
        held.paused = self.core is not None and begin.segment in self.core.paused
        self.held[begin.segment] = held
        self._pump(held)

    def _pump(self, held: Held) -> None:
        """Read on, and hand out what may be handed out."""
        dispatcher, oracle = held.dispatcher, self.scenario.oracle
        dispatcher.tick(self.now_ms)
        if held.paused:
            return
        events = oracle.segment(held.segment).events
        end = min(oracle.limit(held.segment), dispatcher.next_offset + dispatcher.wanted)
        if end > dispatcher.next_offset:
            offsets = range(dispatcher.next_offset, end)
            dispatcher.feed(list(offsets), [int(events[o].key[1:]) for o in offsets], end)
        handout = dispatcher.take(TAKE_MAX, self.now_ms)
        for offset, attempt in zip(handout.offsets, handout.attempts, strict=True):
            oracle.delivered(self.name, held.segment, held.token, events[offset])
            delay_ms = self.world.rng.randint(*self.ack_ms)
            self.after(delay_ms, ("answer", held, offset, attempt))

    def _answer(self, held: Held, offset: int, attempt: int) -> None:
        refuses = self.world.faults.strikes(Fault.FAIL, 0.15) and self.fails
        if self.held.get(held.segment) is not held:
            return  # it is somebody else's: the work does not count
        try:
            if refuses:
                held.dispatcher.nack(offset, attempt, self.now_ms)
            else:
                held.dispatcher.ack(offset, attempt, self.now_ms)
                self.scenario.oracle.acked(held.segment, held.token, offset)
        except (StaleDeliveryError, UnknownDeliveryError):
            self.world.reach("reader.late answer")
            return
        if self.world.rng.random() < 0.3:
            self._commit(held)
        self._pump(held)

    def _commit(self, held: Held) -> None:
        """Store the progress under the token of the claim; one commit at a time."""
        since_ms = held.commit_since_ms
        waiting = since_ms is not None and self.now_ms - since_ms < COMMIT_AGAIN_MS
        if waiting or not held.unstored:
            return
        held.commit_number += 1
        held.commit_since_ms = self.now_ms
        progress = held.dispatcher.progress()

        def put(tx: Snapshot) -> None:
            claim = tx.claim_of(GROUP, held.segment)
            if claim is None or (claim.owner, claim.token) != (self.reader, held.token):
                raise StoreConflictError(f"{held.segment} is {claim}, not under {held.token}")
            tx.put(PROGRESS, held.segment, progress)

        self.submit(("commit", held, held.commit_number, progress), put)

    def _committed(self, held: Held, number: int, progress: Progress, outcome: Outcome) -> None:
        if self.held.get(held.segment) is not held:
            return
        match outcome:
            case Done() if number == held.commit_number:
                held.stored = progress
                held.commit_since_ms = None
                if held.unstored:
                    self._commit(held)
                else:
                    self._step()
            case Conflict(reason=reason):
                self.note("is fenced: %s", reason)
                self.world.reach("reader.fenced")
                del self.held[held.segment]
                self._refresh()
            case _ if number == held.commit_number:
                held.commit_since_ms = None

    def close(self) -> RemoveReader | None:
        """Leave in peace, with what is durably acked; no event that failed is counted."""
        if not self.at_work or self.paused or self.core is None:
            return None
        left = {segment: self._standing(held).offset for segment, held in self.held.items()}
        return RemoveReader(self.reader, positions(left), self.core.token)


# --- the scenario --------------------------------------------------------------------------


class StoreOracle(ReaderOracle):
    """The onlooker, with a look into the store."""

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
        world.store.run(lambda tx: self._create(tx, chunks))
        self.oracle = StoreOracle(world, self.logs, Replica.restore(chunks), self._in_flight)
        self.keys = rng.choice((3, 12, 40))
        self._seen_revision = 0
        self._checkpoints = 0
        self.readers: list[ReaderProcess] = []
        names = [f"r{number + 1}" for number in range(rng.randint(1, 5))]
        twins = [f"{name}-twin" for name in names if rng.random() < 0.15]
        for name in (*names, *twins):
            reader = ReaderProcess(world, name)
            reader.reader = name.removesuffix("-twin")
            reader.scenario = self
            reader.fails = rng.random() < 0.3
            if world.faults.strikes(Fault.SLOW, 0.25):
                reader.ack_ms = (100, 1500)
                reader.lag_per_event_ms = 4000
            self.readers.append(reader)
            world.spawn(reader)

    @staticmethod
    def _create(tx: Snapshot, chunks: list[bytes]) -> None:
        tx.put(GROUP, "snapshot", chunks)
        tx.put(GROUP, "first", 1)
        tx.put(GROUP, "head", 0)

    # --- what processes ask ---

    def graph(self) -> dict[SegmentId, tuple[SegmentId, ...]]:
        """Every segment with its predecessors."""
        return {
            SegmentId(stream, n): tuple(SegmentId(stream, p) for p in segment.predecessors)
            for stream, log in self.logs.items()
            for n, segment in log.segments.items()
        }

    def successors(self, segment: SegmentId) -> tuple[Successor, ...]:
        """What follows a segment, each with all its predecessors."""
        log = self.logs[segment.stream]
        return tuple(
            Successor(
                SegmentId(segment.stream, n),
                tuple(SegmentId(segment.stream, p) for p in log.segments[n].predecessors),
            )
            for n in log.segments[segment.number].successors
        )

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
            Action("close", 1, self._close, Fault.CRASH),
            Action("die", 1, self._die, Fault.CRASH),
            Action("offline", 1, self._offline, Fault.CRASH),
            Action("split", 1, self._split, Fault.SCALE),
            Action("merge", 1, self._merge, Fault.SCALE),
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

    def _merge(self) -> None:
        log = self._log()
        segments = log.open_segments
        if len(segments) > 1:
            left = self.world.rng.randrange(len(segments) - 1)
            log.merge(segments[left].number, segments[left + 1].number)

    def _administer(self, update: Update) -> Outcome:
        """An operator's update; operators have a store without faults."""
        replica = Replica(self._current())
        return self.world.store.run(lambda tx: commit(tx, replica, update, self))

    def _current(self) -> ReaderGroupState:
        """A copy of the state that is up to date."""
        replica = Replica.restore(self.world.store.entries[GROUP, "snapshot"].value)
        self.world.store.run(lambda tx: catch_up(replica, read_log(tx, replica.revision)))
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
            self._administer(cuts.reset_to(checkpoint.positions, self.graph()))

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
            self.oracle.followed(map(decode_entry, log))
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
        state = self.oracle.replica.state
        if state.unassigned or state.future or state.blockers():
            return False
        wanted = {process.reader for process in self.readers if not process.gone}
        at_work = {process.reader for process in self.readers if process.at_work}
        if not set(state.members) == wanted == at_work:
            return False
        assumed_ms = state.config.lag_assumed_ms
        for name, member in state.members.items():
            if member.lag_ms > assumed_ms or wants_release(state, name):
                return False
        return all(self._read(segment) for segment in self.oracle.segments())

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
        copy = encode_state(self._current())
        self.world.require(
            copy == encode_state(state), "replicas agree", f"revision {state.revision}"
        )


SCENARIO = ReadersScenario
