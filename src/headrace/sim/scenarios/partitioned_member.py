"""A process that has joined a partitioned group, driven by the real cores.

It carries out what its instance asks for as the runtime will: pins are leases, claims are judged
inside transactions, progress is stored under the claim's token, and every answer may be lost.
"""

from __future__ import annotations

from typing import Any, Protocol

from headrace.errors import Fenced
from headrace.groups.partitioned.core.membership import Instance, PinTimings
from headrace.groups.partitioned.core.messages import (
    Abandon,
    AcquirePin,
    ClaimDenied,
    Claimed,
    ClaimLost,
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
    MemberStalled,
    Phase,
    PinFreed,
    PinGranted,
    PinHeld,
    PinLost,
    PinReleased,
    PinRenewed,
    Released,
    ReleasePartition,
    ReleasePin,
    RenewPin,
    StepDownAsked,
    Tick,
)
from headrace.groups.partitioned.core.pins import (
    ClaimGranted,
    ClaimOwner,
    ClaimRefused,
    PartitionClaim,
    Pin,
    check_claim,
    judge_claim,
)
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress import Progress
from headrace.sim.consumption import (
    PROGRESS,
    TICK_MS,
    ConsumingProcess,
    OwnedUnit,
)
from headrace.sim.store import Claim, Conflict, Done, Lease, Outcome, Snapshot, StoreConflictError

GROUP = GroupName("orders", "billing")
CONFIGS = "configs"  # one bucket for both kinds: a member does not mind which it is
UNKNOWN_TICKS_MAX = 25  # longer than it takes for a pin to be renewed or lost
TIMINGS = PinTimings(
    pin_ttl_ms=2000,
    renew_every_ms=600,
    standby_retry_ms=500,
    claim_retry_ms=150,
    request_timeout_ms=900,
    drain_limit_ms=2500,
    step_down_hold_ms=1200,
)


class MemberWorld(Protocol):
    """What a member asks of the scenario around it."""

    partitions: int
    step_downs: dict[str, int]
    processes: list[MemberProcess]

    def config_seen(self) -> ConfigSeen:
        """The config as a watch shows it."""

    def instances_of(self, member: str) -> list[MemberProcess]:
        """The processes that have joined under a name."""

    def check_moving(self, partition: int, claimant: ClaimOwner) -> None:
        """Judge a claim that is about to be recorded."""

    def check_reason_to_leave(self, process: MemberProcess, pin_token: int) -> None:
        """Judge an instance that gives up its pin."""


def pin_of(lease: Lease | None) -> Pin | None:
    """The pin that a lease of the store stands for."""
    return None if lease is None else Pin(lease.owner, lease.token, lease.expires_ms)


def claim_of(claim: Claim | None) -> PartitionClaim | None:
    """The claim of a partition as the store has it."""
    if claim is None:
        return None
    return PartitionClaim(ClaimOwner.decode(claim.owner) if claim.owner else None, claim.token)


class MemberProcess(ConsumingProcess):
    """A process that has joined the group under a member's name."""

    scenario: MemberWorld
    member: str

    def start(self) -> None:
        super().start()
        self.core = Instance(self.member, self.owner_name, TIMINGS)
        self.granted: dict[tuple[int, int], Progress] = {}
        self.claimed_as: dict[tuple[int, int], ClaimOwner] = {}
        self.evicted = False
        self.unknown_ticks: dict[int, int] = {}
        self.seen_revision = 0
        self.pinned_since_revision = 0  # what it knew of the config when it got the pin
        self.after(self.world.rng.randint(1, TICK_MS), "tick")

    # --- hearing ---

    def timer(self, tag: Any) -> None:
        if tag == "tick":
            self.after(TICK_MS, "tick")
            self._watch()
            # A sluggish process hardly looks at the clock: fencing tokens alone must hold it back.
            if self.world.rng.random() < (0.2 if self.sluggish else 1.0):
                self.hear(Tick())
                self._check_claims_are_known()
            self.work()
        else:
            super().timer(tag)

    def receive(self, source: str, message: Any) -> None:  # noqa: ARG002
        if isinstance(message, PinFreed):
            self.hear(message)
        elif isinstance(message, ClaimsFreed) and self.core.waits_for_claims:
            self.world.reach("claim.freed, and somebody waits")
            self.hear(message)

    def _tell_of_claims(self) -> None:
        """In some worlds news of claims arrives; in others everybody finds out by looking."""
        if self.world.seed % 3 == 0:
            for other in self.scenario.processes:
                if other is not self:
                    self.send(other.name, ClaimsFreed())

    def _watch(self) -> None:
        """News of the config and of step-downs; it may come late, and skip revisions."""
        if self.world.rng.random() < 0.5:
            return
        seen = self.scenario.config_seen()
        self.seen_revision = seen.revision
        self.hear(seen)
        asked = self.scenario.step_downs.get(self.member)
        if asked is not None:
            self.hear(StepDownAsked(asked))

    def _check_claims_are_known(self) -> None:
        """A claim under this very pin that the core does not know of must not last."""
        if self.core.pin_token is None:
            return
        owner = self.owner.encode()
        for partition in range(self.scenario.partitions):
            claim = self.world.store.claims.get((GROUP.key, partition))
            if claim is None or claim.owner != owner or partition in self.core.involved:
                self.unknown_ticks.pop(partition, None)
                continue
            ticks = self.unknown_ticks[partition] = self.unknown_ticks.get(partition, 0) + 1
            self.world.reach("claim.unheard of")
            self.world.require(
                ticks < UNKNOWN_TICKS_MAX,
                "no claim is forgotten",
                f"{self.owner_name} has a claim of partition {partition} and does not know it",
            )

    def hear(self, event: Event) -> None:
        """Tell the core, and do what it says."""
        for effect in self.core.handle(event, self.now_ms):
            self.do(effect)

    def close(self) -> None:
        """The application leaves; the process ends when it is done."""
        self.world.reach("instance.closing")
        self.hear(Close())

    # --- doing ---

    @property
    def owner(self) -> ClaimOwner:
        """This instance under its pin."""
        return ClaimOwner(self.member, self.owner_name, self.core.pin_token or 0)

    def do(self, effect: InstanceEffect) -> None:
        match effect:
            case AcquirePin(asked_ms):
                self.submit(("acquired", asked_ms), self._acquire_pin)
            case RenewPin(token, asked_ms, look):
                owner, tag = self.owner, ("renewed", token, asked_ms, look)
                self.submit(tag, lambda tx: self._renew_pin(tx, owner))
            case ReleasePin(token):
                self.scenario.check_reason_to_leave(self, token)
                pin = GROUP.pin(self.member)
                self.submit(("unpinned", token), lambda tx: tx.release_lease(pin, token))
            case ClaimPartition() as wanted:
                owner = self.owner
                self.submit(
                    ("claimed", wanted.partition, wanted.pin_token),
                    lambda tx: self._claim(tx, wanted.partition, owner),
                )
            case Consume(partition, token):
                self.world.reach("partition.consumed")
                self.claimed_as[partition, token] = self.owner
                self.consume(partition, token, self.granted.pop((partition, token)))
            case Drain(partition):
                self.world.reach("partition.draining")
                unit = self.units[partition]
                unit.dispatcher.pause()
                unit.draining = True
                self.commit(unit)
            case Abandon(partition):
                self.world.reach("partition.abandoned")
                self.drop(partition)
            case ReleasePartition(partition, token):
                self._release(partition, token)
            case InstanceDecision(what=what, reason=reason, partition=partition):
                self.note("%s %s: %s", what.value, "" if partition is None else partition, reason)
                self.world.reach(f"decision.{what.value}")
                if self.core.phase is Phase.CLOSED:
                    self.world.crash(self, self.world.rng.randint(50, 3000))

    def _acquire_pin(self, tx: Snapshot) -> PinGranted | PinHeld:
        name = GROUP.pin(self.member)
        held = tx.lease(name)
        if held is not None and held.expires_ms > tx.now_ms:
            return PinHeld(held.owner, held.expires_ms - tx.now_ms)
        return PinGranted(tx.acquire_lease(name, self.owner_name, TIMINGS.pin_ttl_ms).token, 0)

    def _renew_pin(self, tx: Snapshot, owner: ClaimOwner) -> tuple[tuple[int, int], ...]:
        tx.renew_lease(GROUP.pin(self.member), owner.pin_token, TIMINGS.pin_ttl_ms)
        held = ((p, tx.claim_of(GROUP.key, p)) for p in range(self.scenario.partitions))
        return tuple(
            (p, claim.token) for p, claim in held if claim and claim.owner == owner.encode()
        )

    def _claim(
        self, tx: Snapshot, partition: int, owner: ClaimOwner
    ) -> tuple[ClaimGranted | ClaimRefused, Progress]:
        claim = claim_of(tx.claim_of(GROUP.key, partition))
        entry = tx.get(CONFIGS, GROUP.key)
        holder = claim.owner.member if claim and claim.owner else self.member
        verdict = judge_claim(
            partition,
            owner,
            claimant_pin=pin_of(tx.lease(GROUP.pin(self.member))),
            config=entry.value if entry else None,
            claim=claim,
            owner_pin=pin_of(tx.lease(GROUP.pin(holder))),
            now_ms=tx.now_ms,
        )
        if isinstance(verdict, ClaimGranted):
            self.scenario.check_moving(partition, owner)
            tx.claim(GROUP.key, partition, owner.encode(), verdict.token)
        progress = tx.get(PROGRESS, partition)
        return verdict, progress.value if progress else Progress()

    def _release(self, partition: int, token: int) -> None:
        """Store what was acked and give the claim up, in one step."""
        owner, unit = self.owner, self.units.pop(partition, None)
        if unit is not None:
            self.let_go(unit)

        def release(tx: Snapshot) -> None:
            self._check_claim(tx, partition, owner, token)
            if unit is not None:
                tx.put(PROGRESS, partition, unit.dispatcher.progress())
            tx.release_claim(GROUP.key, partition, token)

        self.submit(("released", partition, token), release)

    def _check_claim(self, tx: Snapshot, partition: int, owner: ClaimOwner, token: int) -> None:
        claim = claim_of(tx.claim_of(GROUP.key, partition))
        try:
            check_claim(GROUP.key, partition, owner, token, claim)
        except Fenced as fenced:
            raise StoreConflictError(str(fenced)) from None

    # --- what the store says ---

    def stored(self, tag: Any, outcome: Outcome) -> None:
        match tag, outcome:
            case ("acquired", asked_ms), Done(value=PinGranted(token=token)):
                if self.core.phase is Phase.STANDBY:
                    self.pinned_since_revision = self.seen_revision
                    self.evicted = False
                self.hear(PinGranted(token, asked_ms))
            case ("acquired", _), Done(value=PinHeld() as held):
                self.hear(held)
            case ("renewed", token, asked_ms, look), Done(value=claims):
                self.hear(PinRenewed(token, asked_ms, claims, whole=look))
            case ("renewed", token, *_), Conflict():
                self.world.reach("pin.lost")
                self.hear(PinLost(token))
            case ("unpinned", token), Done() | Conflict():
                self.hear(PinReleased(token))
                for other in self.scenario.instances_of(self.member):
                    if other is not self:
                        self.send(other.name, PinFreed())
            case ("claimed", partition, pin_token), Done(value=(verdict, progress)):
                self._claim_judged(partition, pin_token, verdict, progress)
            case ("released", partition, token), Done() | Conflict():
                self.hear(Released(partition, token))
                self._tell_of_claims()
            case _:
                super().stored(tag, outcome)

    def _claim_judged(
        self, partition: int, pin_token: int, verdict: ClaimGranted | ClaimRefused, start: Progress
    ) -> None:
        match verdict:
            case ClaimGranted(token):
                self.granted[partition, token] = start
                self.hear(Claimed(partition, pin_token, token))
            case ClaimRefused(refusal, owner):
                self.world.reach(f"claim.{refusal.name}")
                self.hear(ClaimDenied(partition, pin_token, refusal, owner))

    # --- what ConsumingProcess asks for ---

    def check_token(self, tx: Snapshot, unit: OwnedUnit) -> None:
        self._check_claim(tx, unit.number, self.claimed_as[unit.number, unit.token], unit.token)

    def fenced(self, unit: OwnedUnit) -> None:
        self.hear(ClaimLost(unit.number, unit.token))

    def stalled(self, unit: OwnedUnit) -> None:
        self.evicted = True
        self.hear(MemberStalled(unit.number, unit.token))

    def drained(self, unit: OwnedUnit) -> None:
        self.hear(Drained(unit.number, unit.token))
