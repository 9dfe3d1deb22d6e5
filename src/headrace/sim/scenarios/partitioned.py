"""Partitioned groups: members with several instances each, an administrator, a work queue.

Jobs fill the work queue from a source that splits and merges.  Instances compete for their
member's pin, claim what the config gives them, consume it through the real dispatcher and give it
back when it moves.  Meanwhile the administrator adds and drops
members, sets and deletes mappings, asks for step-downs, deletes the group and creates it again;
instances crash, close, pause past their pins and return; consumers are slow, fail, forget or
never ack.  In the end everything must be assigned as the config says, and consumed.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from headrace.groups.delivery import DeliveryConfig
from headrace.groups.partitioned.core.messages import ConfigSeen, Phase
from headrace.groups.partitioned.core.pins import ClaimOwner
from headrace.groups.partitioned.core.status import group_status
from headrace.sim.consumption import DeliveryOracle, check_everything_done, watch_progress
from headrace.sim.faults import Fault
from headrace.sim.log import ModelLog
from headrace.sim.scenario import Action, Scenario
from headrace.sim.scenarios.partitioned_admin import Administrator
from headrace.sim.scenarios.partitioned_filling import FillingJob
from headrace.sim.scenarios.partitioned_member import GROUP, MemberProcess, claim_of, pin_of

BACKLOG_MAX = 100
SOURCE_SEGMENTS_MAX = 24


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
        self.admin = Administrator(world, self.partitions, self.names)
        self.step_downs: dict[str, int] = {}
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
        self.source = ModelLog()
        self.source.create(rng.randint(1, 3))
        round_events_max = rng.choice((2, 8, 30))
        for number in range(1, rng.randint(1, 2) + 1):
            job = FillingJob(world, f"job{number}")
            job.source, job.group, job.round_events_max = self.source, GROUP, round_events_max
            world.spawn(job)

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

    # --- what a member asks ---

    def config_seen(self) -> ConfigSeen:
        """The config as a watch shows it."""
        return self.admin.seen()

    # --- what the outside does ---

    def actions(self) -> list[Action]:
        return [
            Action("publish", 40, self._publish),
            Action("add a member", 3, self.admin.add),
            Action("drop a member", 3, self.admin.drop),
            Action("change one's mind", 4, self.admin.change_mind),
            Action("map", 1, self.admin.map),
            Action("unmap", 2, self.admin.unmap),
            Action("step down", 2, self._step_down),
            Action("delete and create", 1, self.admin.recreate),
            Action("close", 1, self._close),
            Action("split", 1, self._split, Fault.SCALE),
            Action("merge", 1, self._merge, Fault.SCALE),
            Action("split twice", 1, self._split_twice, Fault.SCALE),
        ]

    def _publish(self) -> None:
        if self.source.event_count - self.oracle.durable_events > BACKLOG_MAX:
            return
        for _ in range(self.world.rng.randint(1, 6)):
            self.source.append(f"k{self.world.rng.randrange(self.keys)}")

    def _split(self) -> None:
        if len(self.source.segments) < SOURCE_SEGMENTS_MAX:
            self.source.split(self.world.rng.choice(self.source.open_segments).number)

    def _split_twice(self) -> None:
        if len(self.source.segments) < SOURCE_SEGMENTS_MAX:
            self.source.split_twice(self.world.rng.choice(self.source.open_segments).number)

    def _merge(self) -> None:
        segments = self.source.open_segments
        if len(segments) > 1:
            left = self.world.rng.randrange(len(segments) - 1)
            self.source.merge(segments[left].number, segments[left + 1].number)

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

    def check_moving(self, partition: int, claimant: ClaimOwner) -> None:
        """Before a claim is recorded: so says the config, and the owner has finished or lost it."""
        store, config = self.world.store, self.admin.config
        self.world.require(
            config is not None and partition in config.assignment().get(claimant.member, ()),
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
            for revision, members in self.admin.membership
            if revision > process.pinned_since_revision
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
        self.admin.stop()
        for process in self.processes:
            process.ack_ms = (1, 10)
            process.never_acks = False
            process.sluggish = False

    def quiescent(self) -> bool:
        if self.oracle.durable_events != self.source.event_count:
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
        config = self.admin.config
        if config is None:
            return False
        status = group_status(config, pins, claims, store.now_ms)
        return (
            not status.unconsumed
            and not status.moving
            and all(m.assigned == m.consumed for m in status.members)
        )

    def unsettled(self) -> str:
        left = self.source.event_count - self.oracle.durable_events
        states = [line for p in self.processes if p.alive for line in p.core.explain()]
        stuck = {
            f"{p.name}/{n}": msgspec.to_builtins(u.dispatcher.statistics())
            for p in self.processes
            for n, u in p.units.items()
            if not u.dispatcher.caught_up
        }
        return f"{left} events left; {self.admin.config}; {states}; {stuck}"

    def final(self) -> None:
        check_everything_done(self.oracle)


SCENARIO = PartitionedScenario
