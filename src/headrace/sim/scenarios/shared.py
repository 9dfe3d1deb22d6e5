"""Shared groups: peers with registries and leaders, sessions with borrowers, one log.

Peers compete for the lease of each group; sessions subscribe, consume through the real dispatcher,
report and leave.  Everything may crash, pause past its lease, lose messages and be refused by the
store; segments split and merge meanwhile; some consumers are slow, some give events back, some
never ack.  In the end the faults stop, and everything must be consumed and fairly assigned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from headrace.groups.shared.core import records
from headrace.groups.shared.core.assignment import AssignmentStatus
from headrace.groups.shared.core.handler import group_key, parse_subscription
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.messages import unit_of
from headrace.groups.shared.core.pace import GATHER_RATE
from headrace.groups.shared.core.settings import Balance
from headrace.sim.faults import Fault
from headrace.sim.oracle import GroupOracle
from headrace.sim.scenario import Action, Scenario
from headrace.sim.scenarios.shared_peer import LEADER_SETTINGS, Peer
from headrace.sim.scenarios.shared_session import Session

STREAM = "orders"
KEYS = 12


class SharedScenario(Scenario):
    """Everything above, put together from the seed."""

    name: ClassVar[str] = "shared"
    about: ClassVar[str] = "shared groups: leaders, borrowers, and everything that can go wrong"
    steps: ClassVar[int] = 2200
    down_ms: ClassVar[tuple[int, int]] = (50, 9000)
    action_ms: ClassVar[int] = 60

    def build(self) -> None:
        world, rng = self.world, self.world.rng
        world.log.create(rng.randint(1, 6))
        filters = [f"$share/g{n}/{STREAM}.>" for n in range(rng.randint(1, 2))]
        self.filters = filters
        self.leader_settings = LEADER_SETTINGS
        if rng.random() < 0.3:
            self.leader_settings = msgspec.structs.replace(LEADER_SETTINGS, balance=Balance.LAG)
        self.hurried = world.seed % 3 == 0
        """Whether leaders gather at a low rate of reports, and settings change under them."""
        self.gather_rate = 1 if self.hurried else GATHER_RATE
        self.oracles: dict[str, GroupOracle] = {}
        for text in filters:
            group = group_key(*parse_subscription(text))
            self.oracles[text] = GroupOracle(world, group, self._token_reader(group))
        self.peers = [self._spawn_peer(f"n{n}") for n in range(1, rng.randint(2, 3) + 1)]
        self.sessions = [self._spawn_session(f"s{n}") for n in range(1, rng.randint(2, 4) + 1)]
        for session in self.sessions:
            for text in filters:
                if rng.random() < 0.7:
                    session.subscribe(text)
        self._seen_revision = 0
        self._listed: dict[int, tuple[records.SegmentInfo | None, int]] = {}
        """Each segment as it was last listed, and at which revision it had changed."""

    def _token_reader(self, group: str) -> Callable[[int], int]:
        claims = self.world.store.claims

        def current(number: int) -> int:
            claim = claims.get((group, unit_of(STREAM, number)))
            return claim.token if claim else 0

        return current

    def _spawn_peer(self, name: str) -> Peer:
        peer = Peer(self.world, name)
        peer.scenario = self
        self.world.spawn(peer)
        return peer

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
        """The oracle of the group behind a subscription."""
        return self.oracles[subscription]

    def listing(self, after_revision: int) -> records.Listing:
        """The segments that changed after a revision, as a leader is told of them."""
        revision = self.world.steps
        changed = []
        for segment in self.world.log.segments.values():
            end = segment.head if segment.sealed else None
            predecessors = tuple(unit_of(STREAM, p) for p in segment.predecessors)
            unit = unit_of(STREAM, segment.number)
            info = records.SegmentInfo(unit, segment.head, end, 0, predecessors)
            known, since = self._listed.get(segment.number, (None, 0))
            if info != known:
                since = revision
                self._listed[segment.number] = (info, since)
            if since > after_revision:
                changed.append(info)
        return records.Listing(revision, tuple(changed))

    # --- what the outside does ---

    def actions(self) -> list[Action]:
        actions = [
            Action("publish", 60, self._publish),
            Action("subscribe", 4, self._subscribe),
            Action("unsubscribe", 4, self._unsubscribe),
            Action("resubscribe", 2, self._resubscribe),
            Action("close a session", 1, self._close),
            Action("split", 1, self._split, Fault.SCALE),
            Action("merge", 1, self._merge, Fault.SCALE),
            Action("split twice", 1, self._split_twice, Fault.SCALE),
        ]
        if self.hurried:
            actions.append(Action("configure", 1, self._configure))
        return actions

    def _configure(self) -> None:
        """Groups get other settings; leaders that are awake hear of it, others go on as before."""
        changed = msgspec.structs.replace(
            self.leader_settings,
            lease_ttl_ms=self.world.rng.choice((5000, 6000, 9000)),
            revoke_timeout_ms=self.world.rng.choice((3000, 4000)),
        )
        self.leader_settings = changed
        for peer in self.peers:
            if peer.alive and not peer.paused:
                for leader in peer.leaders.values():
                    leader.configure(changed, peer.now_ms)
                    self.world.reach("leader.configured")

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

    def _split_twice(self) -> None:
        if len(self.world.log.segments) < 20:
            self.world.log.split_twice(self.world.rng.choice(self.world.log.open_segments).number)

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
        return [peer.leaders[group] for peer in self.peers if group in peer.leaders]

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
        peer = next(peer for peer in self.peers if group in peer.leaders)
        loads = leader.shares(peer.now_ms).values()
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
