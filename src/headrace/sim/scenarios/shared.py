"""Shared groups: nodes with registries and leaders, sessions with borrowers, one log.

Nodes compete for the lease of each group; sessions subscribe, consume through the real dispatcher,
report and leave.  Everything may crash, pause past its lease, lose messages and be refused by the
store; segments split and merge meanwhile; some consumers are slow, some give events back, some
never ack.  In the end the faults stop, and everything must be consumed and fairly assigned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from headrace.errors import ProtocolError, StaleDeliveryError, StaleTokenError, UnknownDeliveryError
from headrace.groups.delivery import DeliveryConfig, Dispatcher, Retry
from headrace.groups.progress import Progress
from headrace.groups.shared import records, registry
from headrace.groups.shared.agent import Agent
from headrace.groups.shared.assignment import AssignmentStatus
from headrace.groups.shared.borrower import (
    Confirmed,
    Effect,
    Gone,
    Install,
    Release,
    Remove,
    ToLeader,
    ToRegistry,
)
from headrace.groups.shared.handler import Handler, group_key, parse_subscription
from headrace.groups.shared.leader import Leader
from headrace.groups.shared.messages import FromBorrower, Message, UpdateProgress, unit_of
from headrace.groups.shared.settings import Balance, BorrowerSettings, LeaderSettings
from headrace.sim.faults import Fault
from headrace.sim.oracle import GroupOracle
from headrace.sim.scenario import Action, Scenario
from headrace.sim.store import Conflict, Done, Outcome, Refused, Snapshot, StoreConflictError
from headrace.sim.world import Process

STREAM = "orders"
KEYS = 12
TICK_MS = 100
TRANSACTION_PROBABILITY = 0.1

LEADER_SETTINGS = LeaderSettings(
    stall_timeout_ms=8000, revoke_timeout_ms=4000, lease_ttl_ms=6000, heartbeat_ms=2000,
    bench_ms_max=60_000,
)  # fmt: skip
DELIVERY = DeliveryConfig(max_pending=6, ack_wait_ms=3000, backoff_min_ms=20, backoff_max_ms=500)


RANKS = {status: rank for rank, status in enumerate(AssignmentStatus)}


class Asked(msgspec.Struct, frozen=True):
    """A session asks the registry of its node."""

    message: FromBorrower


def lease_name(group: str) -> str:
    """The lease of a group's leader."""
    return f"leader {group}"


def number_of(unit: str) -> int:
    """The segment's number in a unit's name."""
    return int(unit.rpartition("/")[2])


def run_commit(tx: Snapshot, group: str, commit: records.Commit) -> list[tuple[str, Progress]]:
    """A leader's commit as the catalog will run it."""
    tx.check_lease(lease_name(group), commit.token)
    for record in commit.progress:
        entry = tx.get(group, record.unit)
        stored = entry.value if entry else records.StoredUnit(record.unit)
        tx.put(
            group,
            record.unit,
            msgspec.structs.replace(
                stored,
                progress=stored.progress.merge(record.progress),
                finished=stored.finished or record.finished,
            ),
        )
    claimed = []
    for claim in commit.claims:
        entry = tx.get(group, claim.unit)
        stored = entry.value if entry else records.StoredUnit(claim.unit)
        tx.claim(group, claim.unit, claim.borrower, claim.unit_token)
        tx.put(group, claim.unit, msgspec.structs.replace(stored, token=claim.unit_token))
        claimed.append((claim.unit, stored.progress))
    for unit in commit.forget:
        tx.delete(group, unit)
    return claimed


class Node(Process):
    """A node: a registry, and the leaders it has won."""

    scenario: SharedScenario

    def start(self) -> None:
        self.registry = registry.Registry(self.name)
        self.leaders: dict[str, Leader] = {}
        self.loading: dict[str, registry.StartLeader] = {}
        self.ranks: dict[tuple[str, int, str, int], int] = {}
        self.decided: dict[str, records.Decision] = {}
        self.after(LEADER_SETTINGS.tick_ms, "tick")

    def receive(self, source: str, message: Any) -> None:  # noqa: ARG002
        if isinstance(message, Asked):
            self._do(self.registry.wanted(message.message, self.now_ms))
        else:
            self._do(self.registry.received(message, self.now_ms))

    def timer(self, tag: Any) -> None:
        match tag:
            case "tick":
                for group, leader in list(self.leaders.items()):
                    self._lead(group, leader.tick(self.now_ms))
                self.after(LEADER_SETTINGS.tick_ms, "tick")
            case registry.StartLeader() as start:
                self._load(start)

    def _do(self, effects: list[registry.RegistryEffect]) -> None:
        for effect in effects:
            match effect:
                case registry.LookUp(group=group):
                    self._look_up(group)
                case registry.Forward(node=node, message=message):
                    self.send(node, message)
                case registry.ToLocalLeader(message=message):
                    self._to_leader(message)
                case registry.StartLeader() as start:
                    self.loading[start.group] = start
                    self._load(start)
                case registry.Reply(message=message):
                    self._to_session(message)

    def _look_up(self, group: str) -> None:
        def claim(tx: Snapshot) -> tuple[str, Any]:
            lease = tx.lease(lease_name(group))
            if lease is not None and lease.expires_ms > tx.now_ms:
                return ("found", lease.owner)
            ttl_ms = LEADER_SETTINGS.lease_ttl_ms
            return ("won", tx.acquire_lease(lease_name(group), self.name, ttl_ms).token)

        self.submit(("look up", group, self.now_ms), claim)

    def _load(self, start: registry.StartLeader) -> None:
        """Read the group; again after a while, until it works or the lease is gone."""
        if self.loading.get(start.group) != start:
            return
        if self.now_ms - start.sent_ms > LEADER_SETTINGS.lease_ttl_ms:
            del self.loading[start.group]
            self.registry.failed(start.group)
            return

        def read(tx: Snapshot) -> list[records.StoredUnit]:
            tx.check_lease(lease_name(start.group), start.token)
            return [entry.value for _, entry in tx.scan(start.group)]

        self.submit(("load", start), read)
        self.after(500, start)

    def stored(self, tag: Any, outcome: Outcome) -> None:
        match tag, outcome:
            case ("look up", group, sent_ms), Done(value=("won", token)):
                self.world.reach("leader.elected")
                self._do(self.registry.won(group, token, sent_ms))
            case ("look up", group, _), Done(value=("found", node)):
                self._do(self.registry.found(group, node, self.now_ms))
            case ("look up", group, _), _:
                self.registry.failed(group)
            case ("load", start), Done(value=rows) if self.loading.get(start.group) == start:
                self._start_leader(start, rows)
            case ("load", start), Conflict() if self.loading.get(start.group) == start:
                del self.loading[start.group]
                self.registry.failed(start.group)
            case ("lead", group, token, what), _:
                leader = self.leaders.get(group)
                if leader is not None and leader.token == token:
                    self._answer(leader, what, outcome)

    def _start_leader(self, start: registry.StartLeader, rows: list[records.StoredUnit]) -> None:
        del self.loading[start.group]
        leader = Leader(
            start.group,
            name=self.name,
            token=start.token,
            stored=rows,
            settings=self.scenario.leader_settings,
            now_ms=self.now_ms,
            lease_sent_ms=start.sent_ms,
        )
        self.leaders[start.group] = leader
        if rows:
            self.world.reach("leader.restored")
        self.note("leads %s with token %s", start.group, start.token)
        self._lead(start.group, leader.tick(self.now_ms))
        self._do(self.registry.started(start.group, start.token))

    def _answer(self, leader: Leader, what: Any, outcome: Outcome) -> None:
        """Tell a leader what came of its request."""
        group, now_ms = leader.group, self.now_ms
        match what, outcome:
            case records.Commit(number=number), Done(value=claimed):
                self._lead(group, leader.committed(number, claimed, now_ms))
            case records.Commit(number=number), Conflict(reason=reason):
                failed = leader.commit_failed(number, reason, lost=True)
                self._lead(group, failed)
            case records.Commit(number=number), Refused(reason=reason):
                failed = leader.commit_failed(number, reason, lost=False)
                self._lead(group, failed)
            case records.ListSegments(), Done(value=listing):
                self._lead(group, leader.segments_listed(listing, now_ms))
            case records.RenewLease(sent_ms=sent_ms), Done():
                self._lead(group, leader.lease_renewed(sent_ms))
            case records.RenewLease(), Conflict(reason=reason):
                self.world.reach("leader.lease lost")
                self._lead(group, leader.lease_lost(reason))

    def _to_leader(self, message: Message) -> None:
        leader = self.leaders[message.group]
        try:
            effects = leader.receive(message, self.now_ms)
        except ProtocolError as error:
            self.note("refuses: %s", error)
            self.world.reach(f"leader.refused {type(error).__name__}")
            known = message.token == leader.token and message.borrower in leader.borrowers
            self.world.require(
                not (known and error.replies),
                "nobody is sent away without a reason",
                f"{message.borrower} is told to begin again: {error}",
            )
            for reply in error.replies:
                self._to_session(reply)
            return
        self._lead(message.group, effects)

    def _lead(self, group: str, effects: list[records.LeaderEffect]) -> None:
        leader = self.leaders.get(group)
        if leader is not None and not leader.deposed:
            effects = effects + leader.balance(self.now_ms)
            self._watch(leader)
        for effect in effects:
            match effect:
                case records.ToBorrower(message=message):
                    self._to_session(message)
                case records.StepDown(reason=reason):
                    self._step_down(group, reason)
                case _ if leader is not None:
                    self._request(leader, effect)

    def _watch(self, leader: Leader) -> None:
        """Assignments only move forward; decisions are counted as states reached."""
        for unit, state in leader.units.items():
            if state.status is AssignmentStatus.FREE:
                continue
            key = (leader.group, leader.token, unit, state.token)
            before = self.ranks.get(key, 0)
            rank = self.ranks[key] = RANKS[state.status]
            if rank != before:
                self.world.reach(f"assignment.{state.status}")
            self.world.require(
                rank >= before,
                "assignments only move forward",
                f"{unit} of {leader.group} is {state.status} again",
            )
        decided = self.decided.get(leader.group)
        for decision in reversed(leader.decisions):
            if decision is decided:
                break
            reason = decision.reason.partition(":")[0]
            self.world.reach(f"decision.{decision.what} ({reason})")
        if leader.decisions:
            self.decided[leader.group] = leader.decisions[-1]

    def _request(self, leader: Leader, effect: records.LeaderEffect) -> None:
        group = leader.group
        tag = ("lead", group, leader.token, effect)
        match effect:
            case records.Commit() as commit:
                self.note("commits %s", commit)
                self.submit(tag, lambda tx: self._run_commit(tx, group, commit))
            case records.ListSegments():
                self.submit(tag, lambda _: self.scenario.listing())
            case records.RenewLease(token=token, ttl_ms=ttl_ms):
                self.submit(tag, lambda tx: tx.renew_lease(lease_name(group), token, ttl_ms))

    def _run_commit(
        self, tx: Snapshot, group: str, commit: records.Commit
    ) -> list[tuple[str, Progress]]:
        try:
            return run_commit(tx, group, commit)
        except StoreConflictError as conflict:
            self.note("is fenced: %s", conflict)
            self.world.reach("leader.fenced")
            raise

    def _step_down(self, group: str, reason: str) -> None:
        leader = self.leaders.pop(group)
        self.note("steps down from %s: %s", group, reason)
        self.world.reach("leader.stepped down")
        self.registry.stopped(group, leader.token)
        self.submit("release", lambda tx: tx.release_lease(lease_name(group), leader.token))

    def _to_session(self, message: Any) -> None:
        self.send(message.borrower.partition(":")[0], message)


class Held:
    """A unit in a session, with the dispatcher that hands out its events."""

    def __init__(self, oracle: GroupOracle, effect: Install) -> None:
        self.oracle = oracle
        self.borrower = effect.borrower
        self.unit = effect.unit
        self.number = number_of(effect.unit)
        self.token = effect.unit_token
        self.dispatcher = Dispatcher(DELIVERY, effect.progress)
        self.releasing = False
        self.finished = False
        self.unreported: list[int] = []
        self.refused: dict[int, int] = {}
        self.answered = False
        self.in_store: set[int] = set()
        """Being acked in a transaction."""


class Session(Process):
    """A session: a handler over an agent, and a consumer."""

    scenario: SharedScenario
    durable_subscriptions: tuple[str, ...] = ()
    ack_ms: tuple[int, int] = (1, 40)
    never_acks = False
    fails = False

    def start(self) -> None:
        self.handler = Handler(Agent(self.name, self.incarnation, BorrowerSettings()))
        self.held: dict[tuple[str, str], Held] = {}
        self.let_go: set[tuple[str, str, int]] = set()
        """Which grants were given back, or closed before they came."""
        self.do(self.handler.restore(self.durable_subscriptions, self.now_ms))
        self.after(TICK_MS, "tick")

    def receive(self, source: str, message: Any) -> None:  # noqa: ARG002
        self.do(self.handler.receive(message, self.now_ms))

    def timer(self, tag: Any) -> None:
        match tag:
            case "tick":
                self.do(self.handler.tick(self.now_ms))
                for held in list(self.held.values()):
                    self._pump(held)
                    self._report(held)
                self.after(TICK_MS, "tick")
            case ("answer", held, offset, attempt):
                if self.world.rng.random() < TRANSACTION_PROBABILITY:
                    self._ack_in_transaction(held, offset, attempt)
                else:
                    self._answer(held, offset, attempt)

    # --- what the session does ---

    def subscribe(self, text: str) -> None:
        self.durable_subscriptions = (*self.durable_subscriptions, text)
        self.do(self.handler.on_subscribe(text, self.now_ms))

    def unsubscribe(self, text: str) -> None:
        kept = tuple(other for other in self.durable_subscriptions if other != text)
        self.durable_subscriptions = kept
        self.do(self.handler.on_unsubscribe(text, self.now_ms))

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToRegistry(message=message):
                    self.send(self.world.rng.choice(self.scenario.nodes).name, Asked(message))
                case ToLeader(leader=leader, message=message):
                    if isinstance(message, UpdateProgress):
                        self.let_go.update(
                            (message.borrower, r.unit, r.unit_token)
                            for r in message.units
                            if r.final
                        )
                    self.send(leader, message)
                case Install() as install:
                    self._install(install)
                case Release(borrower=borrower, unit=unit):
                    held = self.held[borrower, unit]
                    held.dispatcher.drain()
                    held.releasing = True
                    self._report(held)
                case Remove(borrower=borrower, unit=unit):
                    self.note("removes %s", effect)
                    self.held.pop((borrower, unit), None)
                case Confirmed() as confirmed:
                    self._confirmed(confirmed)
                case Gone(recreate=recreate):
                    self.note("%s", effect)
                    self.world.reach("borrower.recreated" if recreate else "borrower.gone")

    def _install(self, effect: Install) -> None:
        self.note("installs %s", effect)
        self.world.reach("borrower.granted")
        if effect.progress.ranges:
            self.world.reach("borrower.granted with acked ranges")
        subscription = self.handler.installed[effect.borrower, effect.unit].subscription
        self.world.require(
            (effect.borrower, effect.unit, effect.unit_token) not in self.let_go,
            "what was given back does not come back",
            f"{effect.borrower} takes {effect.unit} token {effect.unit_token} again",
        )
        held = Held(self.scenario.oracle_of(subscription), effect)
        held.oracle.given(effect.borrower, held.number, held.token, effect.progress)
        self.held[effect.borrower, effect.unit] = held
        self._pump(held)

    def _confirmed(self, effect: Confirmed) -> None:
        self.world.reach("borrower.confirmed")
        held = self.held[effect.borrower, effect.unit]
        for low, high in effect.acked:
            held.oracle.confirmed(effect.borrower, held.number, low, high)

    # --- what the consumer does ---

    def _pump(self, held: Held) -> None:
        """Read on in the log and hand out what may be handed out."""
        dispatcher, now_ms = held.dispatcher, self.now_ms
        for outcome in dispatcher.tick(now_ms):
            if isinstance(outcome, Retry):
                held.refused[outcome.offset] = outcome.attempts
        events = self.world.log.segments[held.number].events
        end = min(len(events), dispatcher.next_offset + dispatcher.wanted)
        if end > dispatcher.next_offset:
            offsets = range(dispatcher.next_offset, end)
            keys = [int(events[offset].key[1:]) for offset in offsets]
            dispatcher.feed(list(offsets), keys, end)
        handout = dispatcher.take(self.scenario.DELIVERY_BATCH, now_ms)
        for offset, attempt in zip(handout.offsets, handout.attempts, strict=True):
            if offset in held.in_store:
                self._look_up(held, offset, attempt)
                continue
            held.oracle.delivered(held.borrower, held.number, held.token, events[offset])
            if not self.never_acks:
                delay_ms = self.world.rng.randint(*self.ack_ms)
                self.after(delay_ms, ("answer", held, offset, attempt))

    def _ack_in_transaction(self, held: Held, offset: int, attempt: int) -> None:
        """Ack together with a publish: in the store, under the claim, and told afterwards."""
        group, unit = held.oracle.group, held.unit

        def ack(tx: Snapshot) -> None:
            claim = tx.claim_of(group, unit)
            if claim is None or claim.token != held.token:
                self.world.reach("session.transaction fenced")
                raise StoreConflictError(f"{unit} is not at token {held.token}")
            held.oracle.acked(held.number, held.token, offset)
            entry = tx.get(group, unit)
            assert entry is not None
            acked = entry.value.progress.acked()
            acked.ack(offset)
            progress = Progress.of(acked, dict(entry.value.progress.attempts))
            tx.put(group, unit, msgspec.structs.replace(entry.value, progress=progress))
            self.world.reach("session.transaction")

        if self.held.get((held.borrower, held.unit)) is held and offset not in held.in_store:
            held.in_store.add(offset)
            self.submit(("transaction", held, offset, attempt), ack)

    def _look_up(self, held: Held, offset: int, attempt: int) -> None:
        """The answer of a transaction was lost: see whether it counted before going on."""

        def look(tx: Snapshot) -> bool:
            entry = tx.get(held.oracle.group, held.unit)
            return entry is not None and offset in entry.value.progress.acked()

        self.submit(("looked up", held, offset, attempt), look)

    def stored(self, tag: Any, outcome: Outcome) -> None:
        match tag, outcome:
            case ("transaction", held, offset, attempt), Done():
                self._answer(held, offset, attempt, certain=True)
            case ("transaction", held, offset, _), _:
                held.in_store.discard(offset)  # handed out again when its time is over
            case ("looked up", held, offset, attempt), Done(value=True):
                self.world.reach("session.transaction looked up")
                self._answer(held, offset, attempt, certain=True)
            case ("looked up", held, offset, _), Done(value=False):
                held.in_store.discard(offset)

    def _answer(self, held: Held, offset: int, attempt: int, *, certain: bool = False) -> None:
        """The consumer is through with an event."""
        refuses = not certain and self.fails and self.world.faults.strikes(Fault.FAIL, 0.2)
        if self.held.get((held.borrower, held.unit)) is not held:
            return  # the unit is gone: the work does not count
        try:
            if refuses:
                retry = held.dispatcher.nack(offset, attempt, self.now_ms)
                held.refused[offset] = retry.attempts
                held.answered = True
            else:
                held.dispatcher.ack(offset, attempt, self.now_ms)
                held.unreported.append(offset)
                held.oracle.acked(held.number, held.token, offset)
        except (StaleDeliveryError, UnknownDeliveryError):
            self.world.reach("session.late answer")
            return
        if self.world.rng.random() < 0.3 or held.releasing:
            self._report(held)
        self._pump(held)

    def _report(self, held: Held) -> None:
        """Pass on what was acked and refused; the last word once nothing is in flight."""
        if held.finished or self.held.get((held.borrower, held.unit)) is not held:
            return
        final = held.releasing and held.dispatcher.idle
        if not (held.unreported or held.refused or final):
            return
        acked = tuple((offset, offset + 1) for offset in held.unreported)
        attempts = tuple(held.refused.items())
        answered = held.answered
        held.unreported, held.refused, held.answered = [], {}, False
        held.finished = final
        try:
            self.do(
                self.handler.on_progress(
                    held.borrower,
                    held.unit,
                    held.token,
                    acked=acked,
                    attempts=attempts,
                    answered=answered,
                    final=final,
                    now_ms=self.now_ms,
                )
            )
        except StaleTokenError:
            self.world.fail("a session knows what it has", f"{held.unit} of {held.borrower}")


class SharedScenario(Scenario):
    """Everything above, put together from the seed."""

    name: ClassVar[str] = "shared"
    about: ClassVar[str] = "shared groups: leaders, borrowers, and everything that can go wrong"
    steps: ClassVar[int] = 2200
    down_ms: ClassVar[tuple[int, int]] = (50, 9000)
    action_ms: ClassVar[int] = 60
    DELIVERY_BATCH: ClassVar[int] = 4

    def build(self) -> None:
        world, rng = self.world, self.world.rng
        world.log.create(rng.randint(1, 6))
        filters = [f"$share/g{n}/{STREAM}.>" for n in range(rng.randint(1, 2))]
        self.filters = filters
        self.leader_settings = LEADER_SETTINGS
        if rng.random() < 0.3:
            self.leader_settings = msgspec.structs.replace(LEADER_SETTINGS, balance=Balance.LAG)
        self.oracles: dict[str, GroupOracle] = {}
        for text in filters:
            group = group_key(*parse_subscription(text))
            self.oracles[text] = GroupOracle(world, group, self._token_reader(group))
        self.nodes = [self._spawn_node(f"n{n}") for n in range(1, rng.randint(2, 3) + 1)]
        self.sessions = [self._spawn_session(f"s{n}") for n in range(1, rng.randint(2, 4) + 1)]
        for session in self.sessions:
            for text in filters:
                if rng.random() < 0.7:
                    session.subscribe(text)
        self._seen_revision = 0

    def _token_reader(self, group: str) -> Callable[[int], int]:
        claims = self.world.store.claims

        def current(number: int) -> int:
            claim = claims.get((group, unit_of(STREAM, number)))
            return claim.token if claim else 0

        return current

    def _spawn_node(self, name: str) -> Node:
        node = Node(self.world, name)
        node.scenario = self
        self.world.spawn(node)
        return node

    def _spawn_session(self, name: str) -> Session:
        session = Session(self.world, name)
        session.scenario = self
        rng, faults = self.world.rng, self.world.faults
        if faults.strikes(Fault.SLOW, 0.2):
            session.ack_ms = (200, 2500)
        session.fails = rng.random() < 0.4
        session.never_acks = faults.strikes(Fault.STALL, 0.15)
        self.world.spawn(session)
        return session

    def oracle_of(self, subscription: str) -> GroupOracle:
        """The onlooker of the group behind a subscription."""
        return self.oracles[subscription]

    def listing(self) -> records.Listing:
        """The segments as a leader is told of them."""
        return records.Listing(
            self.world.steps,
            tuple(
                records.SegmentInfo(
                    unit_of(STREAM, s.number),
                    s.head,
                    s.head if s.sealed else None,
                    0,
                    tuple(unit_of(STREAM, p) for p in s.predecessors),
                )
                for s in self.world.log.segments.values()
            ),
        )

    # --- what the outside does ---

    def actions(self) -> list[Action]:
        return [
            Action("publish", 60, self._publish),
            Action("subscribe", 4, self._subscribe),
            Action("unsubscribe", 4, self._unsubscribe),
            Action("resubscribe", 2, self._resubscribe),
            Action("close a session", 1, self._close),
            Action("split", 1, self._split, Fault.SCALE),
            Action("merge", 1, self._merge, Fault.SCALE),
        ]

    def _publish(self) -> None:
        for _ in range(self.world.rng.randint(1, 4)):
            self.world.log.append(f"k{self.world.rng.randint(0, KEYS - 1)}")

    def _awake(self) -> list[Session]:
        return [s for s in self.sessions if s.alive and not s.paused]

    def _pick(self, *, subscribed: bool) -> tuple[Session, str] | None:
        pairs = [
            (session, text)
            for session in self._awake()
            for text in self.filters
            if (text in session.durable_subscriptions) == subscribed
        ]
        return self.world.rng.choice(pairs) if pairs else None

    def _subscribe(self) -> None:
        if pick := self._pick(subscribed=False):
            pick[0].subscribe(pick[1])

    def _unsubscribe(self) -> None:
        if pick := self._pick(subscribed=True):
            pick[0].unsubscribe(pick[1])

    def _resubscribe(self) -> None:
        if pick := self._pick(subscribed=True):
            session, text = pick
            for _ in range(self.world.rng.randint(1, 3)):
                session.unsubscribe(text)
                session.subscribe(text)
            self.world.reach("session.quick resubscribe")

    def _close(self) -> None:
        awake = self._awake()
        if awake:
            session = self.world.rng.choice(awake)
            session.do(session.handler.on_disconnect(session.now_ms))
            self.world.crash(session, self.world.rng.randint(10, 3000))
            self.world.reach("session.closed")

    def _split(self) -> None:
        if len(self.world.log.segments) < 24:
            self.world.log.split(self.world.rng.choice(self.world.log.open_segments).number)

    def _merge(self) -> None:
        segments = self.world.log.open_segments
        if len(segments) > 1:
            left = self.world.rng.randrange(len(segments) - 1)
            self.world.log.merge(segments[left].number, segments[left + 1].number)

    # --- invariants ---

    def check(self) -> None:
        store = self.world.store
        if store.revision == self._seen_revision:
            return
        for oracle in self.oracles.values():
            for number in self.world.log.segments:
                entry = store.entries.get((oracle.group, unit_of(STREAM, number)))
                if entry is not None and entry.revision > self._seen_revision:
                    oracle.stored(number, entry.value.progress)
                    self.world.require(
                        not entry.value.finished or oracle.finished(number),
                        "only what is consumed is finished",
                        f"{oracle.group}: unit {number} is stored as finished",
                    )
        self._seen_revision = store.revision

    def healed(self) -> None:
        """The slow have slept enough, and every group gets somebody who works."""
        for session in self.sessions:
            session.ack_ms = (1, 10)
        for text in self.filters:
            workers = [s for s in self.sessions if not s.never_acks]
            if not workers:
                self.sessions[0].never_acks = False
                workers = self.sessions[:1]
            if not any(text in s.durable_subscriptions for s in workers):
                workers[0].subscribe(text)

    def quiescent(self) -> bool:
        events = self.world.log.event_count
        if any(oracle.durable_events < events for oracle in self.oracles.values()):
            return False
        return all(self._assigned(oracle) for oracle in self.oracles.values()) and (
            self._held_by_sessions() == self._assigned_by_leaders()
        )

    def _held_by_sessions(self) -> set[tuple[str, str, str, int]]:
        return {
            (held.oracle.group, held.unit, held.borrower, held.token)
            for session in self.sessions
            for held in session.held.values()
        }

    def _assigned_by_leaders(self) -> set[tuple[str, str, str, int]]:
        return {
            (oracle.group, unit, state.borrower, state.token)
            for oracle in self.oracles.values()
            for leader in self._leaders(oracle.group)
            for unit, state in leader.units.items()
            if state.status is not AssignmentStatus.FREE
        }

    def _leaders(self, group: str) -> list[Leader]:
        return [node.leaders[group] for node in self.nodes if group in node.leaders]

    def _assigned(self, oracle: GroupOracle) -> bool:
        """Whether every open segment is granted, in fair shares where shares are counts."""
        leaders = self._leaders(oracle.group)
        if len(leaders) != 1 or not leaders[0].units:
            return False
        leader = leaders[0]
        loads = dict.fromkeys(leader.borrowers, 0)
        for segment in self.world.log.segments.values():
            state = leader.units.get(unit_of(STREAM, segment.number))
            if state is None:
                return False
            if segment.sealed:
                if not state.finished or state.status is not AssignmentStatus.FREE:
                    return False
            elif state.status is not AssignmentStatus.GRANTED:
                return False
            else:
                loads[state.borrower] += 1
        subscribed = sum(
            1
            for s in self.sessions
            for text in s.durable_subscriptions
            if self.oracles[text] is oracle
        )
        return len(loads) == subscribed and self._fair(oracle.group, leader)

    def _fair(self, group: str, leader: Leader) -> bool:
        """Whether shares differ by one at most, among those who may have any."""
        if leader.settings.balance is Balance.LAG:
            return True
        node = next(node for node in self.nodes if group in node.leaders)
        loads = leader.shares(node.now_ms).values()
        return not loads or max(loads) - min(loads) <= 1

    def unsettled(self) -> str:
        parts = []
        for oracle in self.oracles.values():
            leaders = self._leaders(oracle.group)
            left = self.world.log.event_count - oracle.durable_events
            states = {
                unit: (state.status.value, state.borrower, state.finished)
                for leader in leaders
                for unit, state in leader.units.items()
                if not (state.finished and state.status is AssignmentStatus.FREE)
            }
            parts.append(f"{oracle.group}: {left} events left, {len(leaders)} leaders, {states}")
        parts.append(f"held {sorted(self._held_by_sessions())}")
        return "; ".join(parts)


SCENARIO = SharedScenario
