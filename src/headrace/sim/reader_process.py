"""A reader in a simulated world: the runtime of one member of a reader group.

It follows the group's log with a replica of its own, puts updates to it in transactions of the
store, reads its segments through the real dispatcher and commits progress under the tokens of its
claims.  Several processes may want to be the same member; its lease decides.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import StaleDeliveryError, UnknownDeliveryError
from headrace.groups.delivery import DeliveryConfig, Dispatcher
from headrace.groups.progress import Progress
from headrace.groups.readers.core import failure
from headrace.groups.readers.core.reader import (
    Begin,
    Detect,
    Pause,
    Propose,
    Reader,
    ReaderEffect,
    Refresh,
    Renew,
    Resume,
    SegmentStanding,
    StartAgain,
    Stop,
)
from headrace.groups.readers.core.rules import Outcome as Applied
from headrace.groups.readers.core.segments import END, SegmentId, positions
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.synchronizer import Replica
from headrace.groups.readers.core.updates import (
    AddReader,
    RemoveReader,
    ReturnReader,
    Update,
)
from headrace.sim.faults import Fault
from headrace.sim.reader_oracle import ReaderOracle
from headrace.sim.reader_store import (
    GROUP,
    PROGRESS,
    UpdateRefused,
    catch_up,
    commit,
    read_log,
    value_of,
)
from headrace.sim.store import Conflict, Done, Outcome, Snapshot, StoreConflictError
from headrace.sim.world import Process

TICK_MS = 60
JOIN_AGAIN_MS = 300
COMMIT_AGAIN_MS = 500
TAKE_MAX = 4

SETTINGS = ReaderSettings(
    lease_ttl_ms=3000, heartbeat_ms=1000, refresh_ms=1000, record_ms=4000, answer_ms=500,
    join_delay_ms=50,
)  # fmt: skip
DELIVERY = DeliveryConfig(max_pending=5, ack_wait_ms=4000, backoff_min_ms=20, backoff_max_ms=400)


class News(msgspec.Struct, frozen=True):
    """The group's log has grown to this revision."""

    revision: int


class HeldSegment:
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

    oracle: ReaderOracle
    ack_ms: tuple[int, int] = (1, 40)
    lag_per_event_ms = 10
    fails = False
    returns = False
    """It takes back what an earlier life of it had, in one update."""
    had: tuple[SegmentId, ...] = ()
    gone = False
    """It has died for good."""
    reader: str
    """The member it wants to be; two processes may want to be the same."""

    def start(self) -> None:
        self.core: Reader | None = None
        self.replica: Replica | None = None
        self.held: dict[SegmentId, HeldSegment] = {}
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
        replica = Replica.restore(value_of(tx, "snapshot"))
        catch_up(replica, read_log(tx, replica.revision))
        member = replica.state.members.get(self.reader)
        if member is not None and member.lease_token == lease.token:
            return "joined", member.token, replica
        if member is not None:
            dead = failure.DeadReader(self.reader, member.token, "it came back")
            left = self._offline(tx, replica.state, dead)
            if not self.returns:
                commit(tx, replica, left, self.oracle)
                return "buried", 0, replica
            back = ReturnReader(self.reader, lease.token, left.positions, self.had)
            outcome = commit(tx, replica, back, self.oracle)
            assert isinstance(outcome, Applied)
            self.world.reach("reader.has its segments again")
            return "joined", outcome.revision, replica
        outcome = commit(tx, replica, AddReader(self.reader, lease.token), self.oracle)
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
        self.had = tuple(self.held)
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
            self.oracle.limit(s) - held.stored.floor for s, held in self.held.items()
        )
        state = self.replica.state
        for effect in self.core.step(state, standings, max(0, lag_ms), self.now_ms):
            self._do(effect)

    def _standing(self, held: HeldSegment) -> SegmentStanding:
        idle = not held.dispatcher.in_flight and not held.unstored
        floor = held.stored.floor
        if not self.oracle.at_end(held.segment, floor):
            return SegmentStanding(floor, idle)
        return SegmentStanding(END, idle, self.oracle.successors(held.segment))

    def _do(self, effect: ReaderEffect) -> None:
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
        self.submit(tag, lambda tx: commit(tx, replica, update, self.oracle))

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
            commit(tx, replica, self._offline(tx, replica.state, dead[0]), self.oracle)
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
            case Done(value=UpdateRefused(why=why)):
                self.note("is refused %s: %s", update, why)
            case Done(value=Applied() as applied) if applied.changes:
                self.replica.follow([applied])
        self.core.answered(self.now_ms)
        self._step()

    # --- reading ---

    def _load(self, begin: Begin) -> None:
        def read(tx: Snapshot) -> Progress | None:
            claim = tx.claim_of(GROUP, begin.segment)
            if claim is None or (claim.owner, claim.token) != (self.reader, begin.token):
                return None
            entry = tx.get(PROGRESS, begin.segment)
            floor = self.oracle.limit(begin.segment) if begin.offset == END else 0
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
        self.oracle.begun(self.name, begin.segment, begin.token, progress)
        held = HeldSegment(begin.segment, begin.token, progress)
        held.paused = self.core is not None and begin.segment in self.core.paused
        self.held[begin.segment] = held
        self._pump(held)

    def _pump(self, held: HeldSegment) -> None:
        """Read on, and hand out what may be handed out."""
        dispatcher, oracle = held.dispatcher, self.oracle
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

    def _answer(self, held: HeldSegment, offset: int, attempt: int) -> None:
        refuses = self.world.faults.strikes(Fault.FAIL, 0.15) and self.fails
        if self.held.get(held.segment) is not held:
            return  # it is somebody else's: the work does not count
        try:
            if refuses:
                held.dispatcher.nack(offset, attempt, self.now_ms)
            else:
                held.dispatcher.ack(offset, attempt, self.now_ms)
                self.oracle.acked(held.segment, held.token, offset)
        except (StaleDeliveryError, UnknownDeliveryError):
            self.world.reach("reader.late answer")
            return
        if self.world.rng.random() < 0.3:
            self._commit(held)
        self._pump(held)

    def _commit(self, held: HeldSegment) -> None:
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

    def _committed(
        self, held: HeldSegment, number: int, progress: Progress, outcome: Outcome
    ) -> None:
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
        """Leave the group, with what is durably acked; failed events do not count."""
        if not self.at_work or self.paused or self.core is None:
            return None
        left = {segment: self._standing(held).offset for segment, held in self.held.items()}
        return RemoveReader(self.reader, positions(left), self.core.token)
