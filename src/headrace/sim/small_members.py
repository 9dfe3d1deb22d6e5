"""Two members of a partitioned group as one value, and every event that can happen to them: a model
that ``exhaustive`` searches.

One partition moves from one member to the other.  The claim of the new owner is refused until the
old one has drained it; news of the release (``ClaimsFreed``) then makes it ask again at once.
Requests reach the catalog in any order, answers and news arrive in any order or get lost.  Clocks
move only by ticks, which are events with a budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.errors import Fenced
from headrace.groups.partitioned.core.config import GroupConfig, MemberMapping, make_elastic
from headrace.groups.partitioned.core.membership import Instance
from headrace.groups.partitioned.core.messages import (
    Abandon,
    AcquirePin,
    ClaimDenied,
    Claimed,
    ClaimPartition,
    ClaimsFreed,
    Close,
    ConfigSeen,
    Consume,
    Drain,
    Drained,
    Event,
    InstanceDecision,
    InstanceEffect,
    PinGranted,
    PinHeld,
    PinLost,
    PinReleased,
    PinRenewed,
    Released,
    ReleasePartition,
    ReleasePin,
    RenewPin,
    Tick,
)
from headrace.groups.partitioned.core.pins import (
    ClaimGranted,
    ClaimOwner,
    PartitionClaim,
    Pin,
    check_claim,
    is_free,
    judge_claim,
)
from headrace.sim.small_world import EventLabel, require

GROUP = "g"
NOW_MS = 0
"""The catalog's clock stands still: a pin is over when an event says so."""


def _config(first: tuple[int, ...], second: tuple[int, ...]) -> GroupConfig:
    mappings = [MemberMapping("m1", first), MemberMapping("m2", second)]
    return make_elastic(
        max_members=3, filter="s.*", partitioning_wildcards=[1], member_mappings=mappings
    )


CONFIGS = (_config((0, 1), (2,)), _config((0,), (1, 2)))
"""Partition 1 moves from the first member to the second, and back."""


class MembersBudget(msgspec.Struct, frozen=True):
    """How often each kind of event may happen that could be repeated for ever."""

    configures: int = 1
    losses: int = 0
    ticks: int = 0
    expiries: int = 0
    closes: int = 0


class MembersSetup(msgspec.Struct, frozen=True):
    """One group of two members to explore."""

    name: str
    budget: MembersBudget
    depth: int

    def model(self) -> TwoMembers:
        return TwoMembers(self.budget)


class TwoMembers:
    """The whole of a small group; a state of the search."""

    def __init__(self, budget: MembersBudget) -> None:
        self.budget = budget
        self.revision = 0
        self.cores = {name: Instance(name, f"{name}-1") for name in ("m1", "m2")}
        self.clocks_ms = dict.fromkeys(self.cores, 0)
        self.known = dict.fromkeys(self.cores, -1)
        self.pins: dict[str, Pin] = {}
        self.claims: dict[int, PartitionClaim] = {}
        self.requests: dict[tuple[str, ClaimOwner, InstanceEffect], None] = {}
        self.answers: dict[tuple[str, Event], None] = {}
        self.news: dict[str, None] = {}
        """The members that news of a release is under way to."""
        self.held: dict[tuple[str, int], int] = {}
        self.draining: dict[tuple[str, int], None] = {}
        self.owners: dict[tuple[int, int], str] = {}
        self.by_timer = False
        """Whether something has happened after which only a timer may help who waits."""
        self.seen: set[str] = set()
        while quiet := list(self._under_way()):
            self.happen(quiet[0])

    def key(self) -> int:
        """The hash of the whole state, as far as it decides what can happen from here."""
        return hash(
            (
                self.budget,
                self.revision,
                self.by_timer,
                tuple(_snapshot(core) for core in self.cores.values()),
                tuple(self.clocks_ms.values()),
                tuple(self.known.values()),
                frozenset(self.pins.items()),
                frozenset(self.claims.items()),
                frozenset(self.requests),
                frozenset(self.answers),
                frozenset(self.news),
                frozenset(self.held.items()),
                frozenset(self.draining),
                frozenset(self.owners.items()),
            )
        )

    # --- what can happen ---

    def _under_way(self) -> Iterable[EventLabel]:
        """What happens sooner or later, if nothing goes wrong."""
        for name, revision in self.known.items():
            if revision < self.revision:
                yield ("see config", name)
        for request in self.requests:
            yield ("ask", request)
        for answer in self.answers:
            yield ("hear", answer)
        for name in self.news:
            yield ("news", name)
        for name, partition in self.draining:
            yield ("drained", name, partition)

    def events(self) -> Iterable[EventLabel]:
        """Everything that can happen next."""
        yield from self._under_way()
        budget = self.budget
        if budget.configures:
            yield ("configure",)
        if budget.losses:
            for answer in self.answers:
                yield ("lose", answer)
            for name in self.news:
                yield ("lose news", name)
        for name, core in self.cores.items():
            if budget.ticks and core.wake_at_ms is not None:
                yield ("tick", name)
            if budget.expiries and self.pins[name].expires_ms > NOW_MS:
                yield ("expire", name)
            if budget.closes and not core.closing:
                yield ("close", name)

    def happen(self, event: EventLabel) -> None:
        """Let one thing happen; raises when a promise is broken."""
        match event:
            case ("see config", name):
                self.known[name] = self.revision
                self._tell(name, ConfigSeen(self.revision, self._current))
            case ("ask", (name, owner, effect) as request):
                del self.requests[request]
                self.answers[name, self._answer(name, owner, effect)] = None
            case ("hear", (name, answer) as found):
                del self.answers[found]
                self._tell(name, answer)
            case ("news", name):
                del self.news[name]
                self._hear_news(name)
            case ("drained", name, partition):
                del self.draining[name, partition]
                self._tell(name, Drained(partition, self.held[name, partition]))
            case ("configure",):
                # A claim that was refused under an earlier config may wait for its timer.
                self.by_timer |= self.revision > 0
                self._spend("configures")
                self.revision += 1
            case ("lose", found):
                self._lose()
                del self.answers[found]
            case ("lose news", name):
                self._lose()
                del self.news[name]
            case ("tick", name):
                self._spend("ticks")
                wake_at_ms = self.cores[name].wake_at_ms
                assert wake_at_ms is not None
                self.clocks_ms[name] = max(self.clocks_ms[name], wake_at_ms)
                self._tell(name, Tick())
            case ("expire", name):
                self._spend("expiries")
                self.by_timer = True  # nobody tells that a pin is over
                self._set_pin(name, self.pins[name].token, live=False)
            case ("close", name):
                self._spend("closes")
                self._tell(name, Close())

    def _spend(self, what: str) -> None:
        left = getattr(self.budget, what) - 1
        self.budget = msgspec.structs.replace(self.budget, **{what: left})

    def _lose(self) -> None:
        self._spend("losses")
        self.by_timer = True

    # --- the catalog ---

    @property
    def _current(self) -> GroupConfig:
        return CONFIGS[self.revision % len(CONFIGS)]

    def _set_pin(self, name: str, token: int, *, live: bool) -> None:
        self.pins[name] = Pin(self.cores[name].instance, token, NOW_MS + live)

    def _answer(self, name: str, owner: ClaimOwner, effect: InstanceEffect) -> Event:
        """What the catalog does for a request, and says."""
        pin = self.pins.get(name)
        match effect:
            case AcquirePin(asked_ms):
                if pin is not None and pin.expires_ms > NOW_MS:
                    return PinHeld(pin.instance, 1)
                self._set_pin(name, pin.token + 1 if pin else 1, live=True)
                return PinGranted(self.pins[name].token, asked_ms)
            case RenewPin(token, asked_ms, look):
                if pin is None or pin.token != token:
                    return PinLost(token)
                self._set_pin(name, token, live=True)
                mine = ((p, c.token) for p, c in self.claims.items() if c.owner == owner)
                return PinRenewed(token, asked_ms, tuple(sorted(mine)), whole=look)
            case ReleasePin(token):
                if pin is not None and pin.token == token:
                    self._set_pin(name, token, live=False)
                return PinReleased(token)
            case ClaimPartition(partition, pin_token):
                return self._claim(owner, partition, pin_token)
            case ReleasePartition(partition, token):
                return self._release(name, owner, partition, token)
            case _:
                raise AssertionError(f"{effect} is nothing for the catalog")

    def _claim(self, owner: ClaimOwner, partition: int, pin_token: int) -> Event:
        claim = self.claims.get(partition)
        holder = claim.owner.member if claim and claim.owner else owner.member
        verdict = judge_claim(
            partition,
            owner,
            claimant_pin=self.pins.get(owner.member),
            config=self._current,
            claim=claim,
            owner_pin=self.pins.get(holder),
            now_ms=NOW_MS,
        )
        if isinstance(verdict, ClaimGranted):
            self.claims[partition] = PartitionClaim(owner, verdict.token)
            return Claimed(partition, pin_token, verdict.token)
        self.seen.add(f"claim refused: {verdict.refusal.name}")
        return ClaimDenied(partition, pin_token, verdict.refusal, verdict.owner)

    def _release(self, name: str, owner: ClaimOwner, partition: int, token: int) -> Event:
        try:
            check_claim(GROUP, partition, owner, token, self.claims.get(partition))
        except Fenced:
            self.seen.add("release fenced")
        else:
            self.claims[partition] = PartitionClaim(None, token)
            self.news.update(dict.fromkeys(other for other in self.cores if other != name))
        return Released(partition, token)

    # --- the members ---

    def _hear_news(self, name: str) -> None:
        core = self.cores[name]
        if core.waits_for_claims:
            self.seen.add("claims freed, and somebody waits")
            self._tell(name, ClaimsFreed())
        elif any(to == name and isinstance(said, ClaimDenied) for to, said in self.answers):
            self.seen.add("news came before the refusal")
            self.by_timer = True

    def _tell(self, name: str, event: Event) -> None:
        core = self.cores[name]
        for effect in core.handle(event, self.clocks_ms[name]):
            self._do(name, core, effect)

    def _do(self, name: str, core: Instance, effect: InstanceEffect) -> None:
        match effect:
            case InstanceDecision():
                pass
            case Consume(partition, token):
                first = self.owners.setdefault((partition, token), name)
                what = f"{partition} token {token}: {first} and {name}"
                require(first == name, "one owner per unit and token", what)
                self.held[name, partition] = token
                if token > 1:
                    self.seen.add("partition moved")
            case Drain(partition):
                self.draining[name, partition] = None
            case Abandon(partition):
                self._drop(name, partition)
            case _:
                if isinstance(effect, ClaimPartition):
                    own = effect.partition in core.wanted
                    what = f"{name} claims {effect.partition}"
                    require(own, "only what the config gives is claimed", what)
                if isinstance(effect, ReleasePartition):
                    self._drop(name, effect.partition)
                owner = ClaimOwner(name, core.instance, core.pin_token or 0)
                self.requests[name, owner, effect] = None

    def _drop(self, name: str, partition: int) -> None:
        self.held.pop((name, partition), None)
        self.draining.pop((name, partition), None)

    # --- what holds in every state ---

    def check(self) -> None:
        """Invariants of a state, beyond those checked as things happen."""
        for (name, partition), token in self.held.items():
            claim = self.claims[partition]
            if claim.token == token and claim.owner is not None:
                what = f"{name} has {partition} under token {token} of {claim.owner}"
                require(claim.owner.member == name, "one owner per unit", what)
        for name, core in self.cores.items():
            timed = core.wake_at_ms is not None
            require(timed or not core.waits_for_claims, "who waits has a timer", name)
        if self.by_timer or any(True for _ in self._under_way()):
            return
        for partition, claim in self.claims.items():
            holder = self.pins.get(claim.owner.member) if claim.owner else None
            if is_free(claim, holder, NOW_MS):
                waiting = [name for name, core in self.cores.items() if _waits(core, partition)]
                what = f"{waiting} for {partition}"
                require(not waiting, "nobody waits for what is free", what)


def _waits(core: Instance, partition: int) -> bool:
    return core.taking_over() and partition in core.wanted and partition not in core.owned


def _snapshot(core: Instance) -> tuple[Any, ...]:
    """All that decides what an instance does; what it has said so far does not."""
    partitions = core._partitions
    parts = (
        (number, part.stage, part.token, part.since_ms, part.at_ms, part.waits_for)
        for number, part in sorted(partitions.parts.items())
    )
    own = {k: v for k, v in vars(core).items() if isinstance(v, int | str | frozenset)}
    return (
        core.phase,
        tuple(own.items()),
        core._out.now_ms,
        core._late._until_ms,
        partitions.pin_token,
        partitions.wanted,
        tuple(parts),
        tuple(sorted(partitions.tokens_seen.items())),
    )
