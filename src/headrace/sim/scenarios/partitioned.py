"""Partitioned groups: members with several instances each, an administrator, a work queue.

Instances compete for their member's pin, claim what the config gives them, consume it through
the real dispatcher and give it back when it moves.  Meanwhile the administrator adds and drops
members, sets and deletes mappings and asks for step-downs; instances crash, close, pause past
their pins and return; consumers are slow, fail, forget or never ack.  In the end everything must
be assigned as the config says, and consumed.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from headrace.errors import Fenced
from headrace.groups.delivery import DeliveryConfig
from headrace.groups.partitioned.changes import (
    add_members,
    check_change,
    delete_mappings,
    drop_members,
    set_mappings,
)
from headrace.groups.partitioned.config import (
    Distribution,
    ElasticGroupConfig,
    MemberMapping,
    checked_elastic,
    decode_elastic,
    encode,
    make_elastic,
)
from headrace.groups.partitioned.membership import Instance, PinTimings
from headrace.groups.partitioned.messages import (
    Abandon,
    AcquirePin,
    ClaimDenied,
    Claimed,
    ClaimLost,
    ClaimPartition,
    Close,
    ConfigSeen,
    Consume,
    Decision,
    Drain,
    Drained,
    Effect,
    Event,
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
from headrace.groups.partitioned.names import ELASTIC_BUCKET, GroupName
from headrace.groups.partitioned.pins import (
    ClaimGranted,
    ClaimRefused,
    Owner,
    PartitionClaim,
    Pin,
    check_claim,
    judge_claim,
)
from headrace.groups.partitioned.status import group_status
from headrace.groups.progress import Progress
from headrace.sim.consumption import (
    PROGRESS,
    TICK_MS,
    ConsumingProcess,
    DeliveryOracle,
    OwnedUnit,
    check_everything_done,
    watch_progress,
)
from headrace.sim.faults import Fault
from headrace.sim.scenario import Action, Scenario
from headrace.sim.store import Claim, Conflict, Done, Lease, Outcome, Snapshot, StoreConflictError

GROUP = GroupName("orders", "billing")
BACKLOG_MAX = 100
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


def pin_of(lease: Lease | None) -> Pin | None:
    """The pin that a lease of the store stands for."""
    return None if lease is None else Pin(lease.owner, lease.token, lease.expires_ms)


def claim_of(claim: Claim | None) -> PartitionClaim | None:
    """The claim of a partition as the store has it."""
    if claim is None:
        return None
    return PartitionClaim(Owner.decode(claim.owner) if claim.owner else None, claim.token)


class MemberProcess(ConsumingProcess):
    """A process that has joined the group under a member's name."""

    scenario: PartitionedScenario
    member: str

    def start(self) -> None:
        super().start()
        self.core = Instance(self.member, self.owner_name, TIMINGS)
        self.granted: dict[tuple[int, int], Progress] = {}
        self.claimed_as: dict[tuple[int, int], Owner] = {}
        self.evicted = False
        self.unknown_ticks: dict[int, int] = {}
        self.pinned_since_revision = 0
        self.after(self.world.rng.randint(1, TICK_MS), "tick")

    # --- hearing ---

    def timer(self, tag: Any) -> None:
        if tag == "tick":
            self.after(TICK_MS, "tick")
            self._watch()
            # A sluggish process hardly looks at the clock: the tokens alone must hold it back.
            if self.world.rng.random() < (0.2 if self.sluggish else 1.0):
                self.hear(Tick())
                self._check_claims_are_known()
            self.work()
        else:
            super().timer(tag)

    def receive(self, source: str, message: Any) -> None:  # noqa: ARG002
        if isinstance(message, PinFreed):
            self.hear(message)

    def _watch(self) -> None:
        """News of the config and of step-downs; it may come late, and skip revisions."""
        if self.world.rng.random() < 0.5:
            return
        entry = self.world.store.entries[ELASTIC_BUCKET, GROUP.key]
        self.hear(ConfigSeen(entry.revision, entry.value))
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
    def owner(self) -> Owner:
        """This instance under its pin."""
        return Owner(self.member, self.owner_name, self.core.pin_token or 0)

    def do(self, effect: Effect) -> None:
        match effect:
            case AcquirePin(asked_ms):
                self.submit(("acquired", asked_ms), self._acquire_pin)
            case RenewPin(token, asked_ms):
                owner = self.owner
                self.submit(("renewed", token, asked_ms), lambda tx: self._renew_pin(tx, owner))
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
                unit.dispatcher.drain()
                unit.draining = True
                self.commit(unit)
            case Abandon(partition):
                self.world.reach("partition.abandoned")
                self.drop(partition)
            case ReleasePartition(partition, token):
                self._release(partition, token)
            case Decision(verdict=verdict, reason=reason, partition=partition):
                self.note(
                    "%s %s: %s", verdict.value, "" if partition is None else partition, reason
                )
                self.world.reach(f"decision.{verdict.value}")
                if self.core.phase is Phase.CLOSED:
                    self.world.crash(self, self.world.rng.randint(50, 3000))

    def _acquire_pin(self, tx: Snapshot) -> PinGranted | PinHeld:
        name = GROUP.pin(self.member)
        held = tx.lease(name)
        if held is not None and held.expires_ms > tx.now_ms:
            return PinHeld(held.owner, held.expires_ms - tx.now_ms)
        return PinGranted(tx.acquire_lease(name, self.owner_name, TIMINGS.pin_ttl_ms).token, 0)

    def _renew_pin(self, tx: Snapshot, owner: Owner) -> tuple[tuple[int, int], ...]:
        tx.renew_lease(GROUP.pin(self.member), owner.pin_token, TIMINGS.pin_ttl_ms)
        held = ((p, tx.claim_of(GROUP.key, p)) for p in range(self.scenario.partitions))
        return tuple(
            (p, claim.token) for p, claim in held if claim and claim.owner == owner.encode()
        )

    def _claim(
        self, tx: Snapshot, partition: int, owner: Owner
    ) -> tuple[ClaimGranted | ClaimRefused, Progress]:
        claim = claim_of(tx.claim_of(GROUP.key, partition))
        entry = tx.get(ELASTIC_BUCKET, GROUP.key)
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

    def _check_claim(self, tx: Snapshot, partition: int, owner: Owner, token: int) -> None:
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
                    self.pinned_since_revision = self.scenario.revision
                    self.evicted = False
                self.hear(PinGranted(token, asked_ms))
            case ("acquired", _), Done(value=PinHeld() as held):
                self.hear(held)
            case ("renewed", token, asked_ms), Done(value=claims):
                self.hear(PinRenewed(token, asked_ms, claims))
            case ("renewed", token, _), Conflict():
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


class PartitionedScenario(Scenario):
    """Members, instances and an administrator, from the seed."""

    name: ClassVar[str] = "partitioned"
    about: ClassVar[str] = "partitioned groups: pins, claims, moving partitions, an administrator"
    steps: ClassVar[int] = 2000
    action_ms: ClassVar[int] = 60
    mishap_ms: ClassVar[int] = 900
    pause_ms: ClassVar[tuple[int, int]] = (100, 5000)

    def build(self) -> None:
        world, rng = self.world, self.world.rng
        self.partitions = rng.randint(2, 6)
        world.log.create(self.partitions)
        self.names = [f"m{n}" for n in range(1, rng.randint(2, 4) + 1)]
        config = make_elastic(
            max_members=self.partitions,
            filter="orders.*",
            partitioning_wildcards=[1],
            members=rng.sample(self.names, rng.randint(1, len(self.names))),
            distribution=rng.choice(list(Distribution)),
        )
        self.administered = True
        self.step_downs: dict[str, int] = {}
        self.membership: list[tuple[int, frozenset[str]]] = []
        self.revision = 0
        self._put(config)
        delivery = DeliveryConfig(
            max_pending=rng.choice((1, 4, 16)),
            ack_wait_ms=rng.choice((400, 1200)),
            max_deliveries=rng.randint(2, 5),
            backoff_min_ms=20,
            backoff_max_ms=300,
            stall_after_ms=3000,
            buffer_events_max=32,
        )
        self.keys = rng.choice((5, 20))
        skipped = rng.choice((3, 1000))
        self.oracle = DeliveryOracle(
            world,
            GROUP.key,
            self._token,
            delivery,
            ours=lambda key: int(key[1:]) % skipped != skipped - 1,
        )
        self.processes = [
            self._spawn(f"{name}{letter}", name)
            for name in self.names
            for letter in "ab"[: rng.randint(1, 2)]
        ]
        self._seen_revision = 0

    def _spawn(self, name: str, member: str) -> MemberProcess:
        process = MemberProcess(self.world, name)
        process.scenario, process.oracle, process.member = self, self.oracle, member
        faults, rng = self.world.faults, self.world.rng
        if faults.strikes(Fault.SLOW, 0.2):
            process.ack_ms = (50, 1000)
        process.fails = rng.random() < 0.4
        process.sluggish = faults.strikes(Fault.SLOW, 0.3)
        process.never_acks = faults.strikes(Fault.STALL, 0.1)
        self.world.spawn(process)
        return process

    def _token(self, number: int) -> int:
        claim = self.world.store.claims.get((GROUP.key, number))
        return claim.token if claim else 0

    def instances_of(self, member: str) -> list[MemberProcess]:
        """The processes that have joined under a name."""
        return [p for p in self.processes if p.member == member]

    # --- the administrator ---

    @property
    def config(self) -> ElasticGroupConfig:
        """The config as it is stored now."""
        value: ElasticGroupConfig = self.world.store.entries[ELASTIC_BUCKET, GROUP.key].value
        return value

    def _put(self, config: ElasticGroupConfig) -> None:
        stored = decode_elastic(encode(config))
        self.world.require(stored == config, "configs survive their record", str(config))
        self.world.store.run(lambda tx: tx.put(ELASTIC_BUCKET, GROUP.key, stored))
        self.revision = self.world.store.entries[ELASTIC_BUCKET, GROUP.key].revision
        self.membership.append((self.revision, frozenset(stored.assignment())))
        self.world.note("admin", "assigns %s", stored.assignment())

    def _change(self, config: ElasticGroupConfig) -> None:
        before = self.config
        check_change(before, checked_elastic(config))
        owned = sorted(p for each in config.assignment().values() for p in each)
        if config.members or config.member_mappings:
            self.world.require(
                owned == list(range(self.partitions)),
                "every partition is assigned once",
                str(config.assignment()),
            )
        self._put(config)

    def actions(self) -> list[Action]:
        return [
            Action("publish", 40, self._publish),
            Action("add a member", 3, self._add),
            Action("drop a member", 3, self._drop),
            Action("change one's mind", 4, self._change_mind),
            Action("map", 1, self._map),
            Action("unmap", 2, self._unmap),
            Action("step down", 2, self._step_down),
            Action("close", 1, self._close),
        ]

    def _publish(self) -> None:
        if self.world.log.event_count - self.oracle.durable_events > BACKLOG_MAX:
            return
        for _ in range(self.world.rng.randint(1, 6)):
            self.world.log.append(f"k{self.world.rng.randrange(self.keys)}")

    def _add(self) -> None:
        name = self.world.rng.choice(self.names)
        if not self.config.member_mappings:
            self._change(add_members(self.config, [name]))

    def _drop(self) -> None:
        name = self.world.rng.choice(self.names)
        if not self.config.member_mappings:
            self._change(drop_members(self.config, [name]))

    def _change_mind(self) -> None:
        """A change that is taken back while it is being carried out."""
        rng = self.world.rng
        name = rng.choice(self.names)
        back_ms = rng.randint(50, 900)
        before = self.config
        if not before.member_mappings:
            there = name in before.members
            change, undo = (drop_members, add_members) if there else (add_members, drop_members)
            self._change(change(before, [name]))

            def take_back() -> None:
                if self.administered and not self.config.member_mappings:
                    self._change(undo(self.config, [name]))

            self.world.call_in(back_ms, take_back)

    def _map(self) -> None:
        owners = [self.world.rng.choice(self.names) for _ in range(self.partitions)]
        mappings = [
            MemberMapping(name, tuple(p for p, owner in enumerate(owners) if owner == name))
            for name in self.names
            if name in owners
        ]
        self._change(set_mappings(self.config, mappings))

    def _unmap(self) -> None:
        if self.config.member_mappings:
            self._change(delete_mappings(self.config))

    def _step_down(self) -> None:
        member = self.world.rng.choice(self.names)
        lease = self.world.store.leases.get(GROUP.pin(member))
        if lease is not None:
            self.step_downs[member] = lease.token

    def _close(self) -> None:
        awake = [p for p in self.processes if p.alive and not p.paused]
        if awake:
            self.world.rng.choice(awake).close()

    # --- invariants ---

    def check(self) -> None:
        self._seen_revision = watch_progress(self.oracle, self._seen_revision)

    def check_moving(self, partition: int, claimant: Owner) -> None:
        """Before a claim is recorded: so says the config, and the owner has finished or lost it."""
        store = self.world.store
        self.world.require(
            partition in self.config.assignment().get(claimant.member, ()),
            "a partition is claimed only by the member it is assigned to",
            f"{claimant} claims partition {partition}",
        )
        before = store.claims.get((GROUP.key, partition))
        if before is None or not before.owner or before.owner == claimant.encode():
            return
        member, instance, token = before.owner.split(".")
        pin = store.leases[GROUP.pin(member)]
        holds = (pin.owner, pin.token) == (instance, int(token)) and pin.expires_ms > store.now_ms
        self.world.require(
            not holds,
            "a partition moves only after its owner has finished or was fenced",
            f"{claimant} claims partition {partition} from {before}",
        )
        self.world.reach("partition.taken from a lost pin")

    def check_reason_to_leave(self, process: MemberProcess, pin_token: int) -> None:
        """A pin is given up only for a step-down, an eviction, a close or a dropped member."""
        dropped = any(
            process.member not in members
            for revision, members in self.membership
            if revision >= process.pinned_since_revision
        )
        self.world.require(
            dropped
            or process.evicted
            or process.core.phase is Phase.CLOSED
            or self.step_downs.get(process.member, 0) >= pin_token
            or any(d.reason == "it closes" for d in process.core.decisions),
            "the active instance does not flap",
            f"{process.owner_name} gives up pin {pin_token} of {process.member} without a reason",
        )

    def healed(self) -> None:
        self.administered = False
        for process in self.processes:
            process.ack_ms = (1, 10)
            process.never_acks = False
            process.sluggish = False
        if not self.config.assignment():
            self._change(add_members(self.config, self.names))

    def quiescent(self) -> bool:
        if self.oracle.durable_events != self.world.log.event_count:
            return False
        return all(p.alive and p.core.settled for p in self.processes) and self._as_configured()

    def _as_configured(self) -> bool:
        store = self.world.store
        pins = {}
        for member in self.names:
            pin = pin_of(store.leases.get(GROUP.pin(member)))
            if pin is not None:
                pins[member] = pin
        claims = {}
        for partition in range(self.partitions):
            claim = claim_of(store.claims.get((GROUP.key, partition)))
            if claim is not None:
                claims[partition] = claim
        status = group_status(self.config, pins, claims, store.now_ms)
        return (
            not status.unconsumed
            and not status.moving
            and all(m.assigned == m.consumed for m in status.members)
        )

    def unsettled(self) -> str:
        left = self.world.log.event_count - self.oracle.durable_events
        states = [line for p in self.processes if p.alive for line in p.core.explain()]
        stuck = {
            f"{p.name}/{n}": msgspec.to_builtins(u.dispatcher.statistics())
            for p in self.processes
            for n, u in p.units.items()
            if not u.dispatcher.caught_up
        }
        return f"{left} events left; {self.config.assignment()}; {states}; {stuck}"

    def final(self) -> None:
        check_everything_done(self.oracle)


SCENARIO = PartitionedScenario
