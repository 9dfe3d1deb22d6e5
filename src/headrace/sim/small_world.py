"""A small shared group as one value, and every event that can happen to it: the model that
``exhaustive`` searches.

Two sessions, one or two leaders and two segments of one event each.  Time stands still: every
core is told ``now = 0``, and timers fire as events of their own.  What could go on for ever has a
budget.  Promises are checked as things happen, and in every state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from headrace.errors import ProtocolError
from headrace.groups.progress import Progress
from headrace.groups.shared.core import effects as b
from headrace.groups.shared.core import records
from headrace.groups.shared.core.agent import Agent
from headrace.groups.shared.core.assignment import AssignmentStatus
from headrace.groups.shared.core.borrower_states import Status
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.messages import (
    Grant,
    Invalidate,
    LeaderWanted,
    Message,
    PingResponse,
    Revoke,
    UpdateProgress,
    unit_of,
)
from headrace.groups.shared.core.settings import BorrowerSettings, LeaderSettings
from headrace.sim.world import InvariantViolation

GROUP = "g"
UNITS = (unit_of("s", 0), unit_of("s", 1))
DEPTH = 12
LEADER_SETTINGS = LeaderSettings(decisions_max=1)  # decisions are explained, not acted upon
OTHER_SETTINGS = LeaderSettings(decisions_max=1, lease_ttl_ms=20_000)

EventLabel: TypeAlias = tuple[Any, ...]


class Budget(msgspec.Struct, frozen=True):
    """How often each kind of event may happen that could be repeated for ever."""

    losses: int = 0
    repeats: int = 0
    resends: int = 0
    timeouts: int = 0
    elections: int = 0
    crashes: int = 0
    unsubscribes: int = 0
    gathers: int = 0
    """Commits that wait for more reports."""
    configures: int = 0


class Setup(msgspec.Struct, frozen=True):
    """One small world to explore."""

    name: str
    budget: Budget
    connected: int = 1
    """How many of the two sessions are connected, and have all units, at the beginning."""
    prologue: int = 0
    """How many messages then arrive in order before the search begins."""
    overtaking: bool = False
    """Both sessions connect, but no grant and no revocation has arrived yet."""
    chained: bool = False
    """The second segment is the successor of the first, which is sealed."""
    depth: int = DEPTH

    def model(self) -> Model:
        return Model(self)


class _Unit:
    """A unit in a session: has its one event been acked, is it being released?"""

    __slots__ = ("acked", "finished", "releasing", "token")

    def __init__(self, token: int, acked: bool) -> None:
        self.token = token
        self.acked = acked
        self.releasing = False
        self.finished = False

    def snapshot(self) -> tuple[object, ...]:
        return (self.token, self.acked, self.releasing, self.finished)


class Model:
    """The whole of a small world; a state of the search."""

    def __init__(self, setup: Setup) -> None:
        self.chained = setup.chained
        self.budget = setup.budget
        self.lease_token = 0
        self.rows: dict[str, records.StoredUnit] = {}
        self.leaders: dict[str, Leader] = {}
        self.commits: dict[str, records.Commit] = {}
        self.network: dict[tuple[str, Message], None] = {}
        self.agents = {name: Agent(name, 0, BorrowerSettings()) for name in ("s1", "s2")}
        self.held: dict[tuple[str, str], _Unit] = {}
        self.owners: dict[tuple[str, int], str] = {}
        self.let_go: set[tuple[str, str, int]] = set()
        """Which grants were given back, or closed before they came."""
        self.acked: set[str] = set()
        self.seen: set[str] = set()
        """Interesting things that have happened on the way here."""
        self._elect()
        for index, agent in enumerate(self.agents.values()):
            if index < setup.connected:
                self._agent_does(agent.subscribe("sub", GROUP, 0))
                self._run_dry()
        for index, agent in enumerate(self.agents.values()):
            if index >= setup.connected:
                self._agent_does(agent.subscribe("sub", GROUP, 0))
            if setup.overtaking:
                self._run_dry(hold=(Grant, Revoke))
        for _ in range(setup.prologue):
            self._deliver(next(iter(self.network)), keep=False)

    def _run_dry(self, hold: tuple[type[Message], ...] = ()) -> None:
        """Deliver everything in order, except what is to be held back."""
        while True:
            ready = [envelope for envelope in self.network if not isinstance(envelope[1], hold)]
            if self.commits:
                self._commit(next(iter(self.commits)))
            elif ready:
                self._deliver(ready[0], keep=False)
            else:
                return

    def key(self) -> int:
        """The hash of the whole state, as far as it decides what can happen from here."""
        return hash(
            (
                self.budget,
                self.lease_token,
                frozenset(self.rows.values()),
                tuple((name, leader.snapshot()) for name, leader in self.leaders.items()),
                frozenset((name, c.progress, c.claims) for name, c in self.commits.items()),
                frozenset(self.network),
                tuple(agent.snapshot() for agent in self.agents.values()),
                frozenset((key, unit.snapshot()) for key, unit in self.held.items()),
                frozenset(self.owners.items()),
                frozenset(self.acked),
                frozenset(self.let_go),
            )
        )

    # --- what can happen ---

    def events(self) -> Iterable[EventLabel]:
        """Everything that can happen next."""
        budget = self.budget
        for envelope in self.network:
            yield ("deliver", envelope)
            if budget.losses:
                yield ("lose", envelope)
            if budget.repeats:
                yield ("repeat", envelope)
        for name in self.commits:
            yield ("commit", name)
        for (borrower, unit), held in self.held.items():
            if held.finished:
                continue
            if not held.acked:
                yield ("ack", borrower, unit)
            if held.releasing:
                yield ("finish", borrower, unit)
        if budget.resends:
            for name in self.leaders:
                yield ("leader resends", name)
            for name, agent in self.agents.items():
                for borrower in agent.borrowers:
                    yield ("borrower resends", name, borrower)
        if budget.timeouts:
            for name, leader in self.leaders.items():
                for borrower in leader.borrowers:
                    yield ("leader drops", name, borrower)
            for name, agent in self.agents.items():
                for borrower, found in agent.borrowers.items():
                    if found.status is not Status.CONNECTING:
                        yield ("borrower gives up", name, borrower)
        if budget.elections:
            yield ("elect",)
        if budget.crashes:
            for name in self.leaders:
                yield ("crash", name)
        for name, leader in self.leaders.items():
            if leader.gathering:
                yield ("gathered", name)
            elif budget.gathers:
                yield ("gather", name)
            if budget.configures:
                yield ("configure", name)
        if budget.unsubscribes:
            for name, agent in self.agents.items():
                if "sub" in agent.subscriptions:
                    yield ("unsubscribe", name)

    def happen(self, event: EventLabel) -> None:
        """Let one thing happen; raises when a promise is broken."""
        match event:
            case ("deliver", envelope):
                self._deliver(envelope, keep=False)
            case ("lose", envelope):
                self._spend("losses")
                del self.network[envelope]
            case ("repeat", envelope):
                self._spend("repeats")
                self._deliver(envelope, keep=True)
            case ("commit", name):
                self._commit(name)
            case ("ack", borrower, unit):
                self._ack(borrower, unit)
            case ("finish", borrower, unit):
                self.held[borrower, unit].finished = True
                self._progress(borrower, unit, final=True)
            case ("leader resends", name):
                self._spend("resends")
                self._leader_resends(name)
            case ("borrower resends", name, borrower):
                self._spend("resends")
                found = self.agents[name].borrowers[borrower]
                connecting = found.status is Status.CONNECTING
                self._agent_does(found.find(0) if connecting else found.resend(0))
            case ("leader drops", name, borrower):
                self._spend("timeouts")
                leader = self.leaders[name]
                self._leader_does(name, leader.drop_silent(borrower, 0))
            case ("borrower gives up", name, borrower):
                self._spend("timeouts")
                self._agent_does(self.agents[name].lose_leader(borrower, 0))
            case ("unsubscribe", name):
                self._spend("unsubscribes")
                self._agent_does(self.agents[name].unsubscribe("sub", 0))
            case _:
                self._happen_to_leader(event)

    def _happen_to_leader(self, event: EventLabel) -> None:
        match event:
            case ("elect",):
                self._spend("elections")
                self._elect()
            case ("crash", name):
                self._spend("crashes")
                del self.leaders[name]
                self.commits.pop(name, None)
                self.seen.add("leader crashed")
            case ("gather", name):
                self._spend("gathers")
                self.leaders[name].gather()
            case ("gathered", name):
                self._leader_does(name, self.leaders[name].gathered(0))
            case ("configure", name):
                self._spend("configures")
                self.leaders[name].configure(OTHER_SETTINGS, 0)

    def _spend(self, what: str) -> None:
        left = getattr(self.budget, what) - 1
        self.budget = msgspec.structs.replace(self.budget, **{what: left})

    # --- the store and the log ---

    def _elect(self) -> None:
        self.lease_token += 1
        if self.leaders:
            self.seen.add("two leaders at once")
        name = f"L{self.lease_token}"
        leader = Leader(
            GROUP,
            name=name,
            token=self.lease_token,
            stored=list(self.rows.values()),
            settings=LEADER_SETTINGS,
            now_ms=0,
        )
        self.leaders[name] = leader
        first, second = UNITS
        segments = (
            records.SegmentInfo(first, 1, 1 if self.chained else None),
            records.SegmentInfo(second, 1, None, 0, (first,) if self.chained else ()),
        )
        self._leader_does(name, leader.segments_listed(records.Listing(0, segments), 0))

    def _commit(self, name: str) -> None:
        """A commit reaches the store, which knows whose lease it is."""
        commit = self.commits.pop(name)
        leader = self.leaders[name]
        if commit.token != self.lease_token:
            self.seen.add("leader fenced")
            effects = leader.commit_failed(commit.number, "fenced", lost=True)
            self._leader_does(name, effects)
            return
        for record in commit.progress:
            row = self.rows.get(record.unit, records.StoredUnit(record.unit))
            progress = row.progress.merge(record.progress)
            self._check_stored(record.unit, row.progress, record.progress, progress)
            finished = row.finished or record.finished
            self.rows[record.unit] = msgspec.structs.replace(
                row, progress=progress, finished=finished
            )
        claimed = []
        for claim in commit.claims:
            row = self.rows.get(claim.unit, records.StoredUnit(claim.unit))
            require(claim.unit_token > row.token, "tokens grow", f"{claim} after {row}")
            self.rows[claim.unit] = msgspec.structs.replace(row, token=claim.unit_token)
            claimed.append((claim.unit, row.progress))
        self._leader_does(name, leader.committed(commit.number, claimed, 0))

    def _check_stored(self, unit: str, old: Progress, sent: Progress, new: Progress) -> None:
        require(new.floor >= old.floor, "floors never fall", f"{unit}: {old} to {new}")
        require(sent.floor >= old.floor, "a leader knows what is durable", f"{unit}: {sent}")
        require(new.floor == 0 or unit in self.acked, "nothing is lost", f"{unit}: {new}")

    def _leader_resends(self, name: str) -> None:
        leader = self.leaders[name]
        effects: list[records.LeaderEffect] = []
        for unit, state in leader.units.items():
            if state.status is not AssignmentStatus.FREE:
                effects += leader.resend(unit, 0)
        self._leader_does(name, effects)

    # --- messages ---

    def _deliver(self, envelope: tuple[str, Message], *, keep: bool) -> None:
        if not keep:
            del self.network[envelope]
        target, message = envelope
        if target in self.agents:
            agent = self.agents[target]
            before = set(agent.borrowers)
            self._agent_does(agent.receive(message, 0))
            if before - set(agent.borrowers):
                self.seen.add("borrower ended by a message")
            return
        leader = self.leaders.get(target)
        if leader is None:
            if message.token:
                reply = Invalidate(GROUP, message.borrower, message.token, "no leader here")
                self._send(reply.borrower.partition(":")[0], reply)
            return
        if isinstance(message, UpdateProgress) and leader.keep(message, 0):
            self.seen.add("report kept")
            return
        try:
            effects = leader.receive(message, 0)
        except ProtocolError as error:
            self.seen.add(f"leader refused {type(error).__name__}")
            known = message.token == leader.token and message.borrower in leader.borrowers
            require(
                not (known and error.replies),
                "nobody is sent away without a reason",
                f"{message.borrower} is told to begin again: {error}",
            )
            for answer in error.replies:
                assert isinstance(answer, Invalidate)
                self._send(answer.borrower.partition(":")[0], answer)
            return
        self._leader_does(target, effects)

    def _send(self, target: str, message: Message) -> None:
        # Pings matter for time alone, and time stands still.
        if not isinstance(message, PingResponse):
            self.network[target, message] = None

    def _leader_does(self, name: str, effects: list[records.LeaderEffect]) -> None:
        leader = self.leaders[name]
        if not leader.deposed:
            effects = effects + leader.balance(0)
        for effect in effects:
            match effect:
                case records.ToBorrower(message=message):
                    self._send(message.borrower.partition(":")[0], message)
                case records.Commit():
                    self.commits[name] = effect
                case records.StepDown():
                    del self.leaders[name]
                    self.commits.pop(name, None)
                    self.seen.add("leader stepped down")

    # --- sessions ---

    def _agent_does(self, effects: list[b.Effect]) -> None:
        for effect in effects:
            match effect:
                case b.ToRegistry(message=message):
                    if isinstance(message, LeaderWanted) or message.token:
                        self._send(f"L{self.lease_token}", message)
                case b.ToLeader(leader=leader, message=message):
                    if isinstance(message, UpdateProgress):
                        for report in message.units:
                            if report.final:
                                self.seen.add("final progress")
                                letting_go = (message.borrower, report.unit, report.unit_token)
                                self.let_go.add(letting_go)
                    self._send(leader, message)
                case b.Install():
                    self._install(effect)
                case b.Release(borrower=borrower, unit=unit):
                    self.held[borrower, unit].releasing = True
                case b.Remove(borrower=borrower, unit=unit, fenced=fenced):
                    if fenced and self.held[borrower, unit].acked:
                        self.seen.add("unconfirmed ack fenced")
                    del self.held[borrower, unit]
                case b.Confirmed(unit=unit, acked=acked):
                    floor = self.rows[unit].progress.floor
                    holds = all(high <= floor for _, high in acked)
                    require(holds, "what is confirmed is durable", f"{unit}: {acked} of {floor}")
                    self.seen.add("ack confirmed")
                case b.Gone(recreate=recreate):
                    self.seen.add("borrower recreated" if recreate else "borrower gone")

    def _install(self, effect: b.Install) -> None:
        unit, token = effect.unit, effect.unit_token
        first = self.owners.setdefault((unit, token), effect.borrower)
        require(
            first == effect.borrower,
            "one owner per unit and token",
            f"{unit} token {token}: {first} and {effect.borrower}",
        )
        require(
            (effect.borrower, unit, token) not in self.let_go,
            "what was given back does not come back",
            f"{effect.borrower} takes {unit} token {token} again",
        )
        row = self.rows[unit]
        acked = effect.progress.floor > 0
        if row.token == token:
            require(
                acked == (row.progress.floor > 0),
                "a hand-over is exact",
                f"{effect} of {row}",
            )
        if acked:
            self.seen.add("acked event handed over")
        if any(other == unit for _, other in self.held):
            self.seen.add("two believe to own one unit")
        if self.chained and unit == UNITS[1]:
            require(
                self.rows[UNITS[0]].finished,
                "successors wait for all predecessors",
                f"{unit} was given to {effect.borrower}",
            )
            self.seen.add("successor granted")
        self.held[effect.borrower, unit] = _Unit(token, acked)

    def _ack(self, borrower: str, unit: str) -> None:
        held, row = self.held[borrower, unit], self.rows[unit]
        if held.token == row.token:
            require(
                row.progress.floor == 0,
                "nothing acked is delivered again",
                f"{borrower} consumes {unit} again",
            )
        else:
            self.seen.add("stale owner consumed")
        held.acked = True
        self.acked.add(unit)
        self._progress(borrower, unit, acked=((0, 1),))

    def _progress(self, borrower: str, unit: str, **content: Any) -> None:
        agent = self.agents[borrower.partition(":")[0]]
        token = self.held[borrower, unit].token
        self._agent_does(agent.on_progress(borrower, unit, token, now_ms=0, **content))

    # --- what holds in every state ---

    def check(self) -> None:
        """Invariants of a state, beyond those checked as things happen."""
        for name, leader in self.leaders.items():
            owners: dict[str, str] = {}
            for borrower, units in leader.borrowers.items():
                for unit in units:
                    require(
                        unit not in owners,
                        "one owner per unit",
                        f"{name}: {unit} of {owners.get(unit)} and {borrower}",
                    )
                    owners[unit] = borrower
        current = [
            (borrower, unit)
            for (borrower, unit), held in self.held.items()
            if held.token == self.rows[unit].token
        ]
        current_units = [unit for _, unit in current]
        distinct = len(set(current_units)) == len(current_units)
        require(distinct, "one owner per unit and token", f"{current}")


def require(holds: bool, invariant: str, detail: str) -> None:
    """Raise unless a promise holds."""
    if not holds:
        raise InvariantViolation(invariant, detail)
