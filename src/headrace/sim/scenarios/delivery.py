"""Delivery: workers pass units to one another; the dispatcher decides what is handed out.

There is no protocol of membership here: whoever gets the lease of a unit consumes it, until it
hands it over, crashes, or pauses until its lease runs out and another takes it.  So what is tested
is the dispatcher alone.
"""

from __future__ import annotations

from typing import Any, ClassVar

from headrace.groups.delivery import DeliveryConfig
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
from headrace.sim.store import Conflict, Done, Lease, Outcome, Snapshot

LEASE_TTL_MS = 2000
RENEW_MS = 600
BACKLOG_MAX = 80


def lease_name(number: int) -> str:
    """The lease of a unit."""
    return f"unit {number}"


class DeliveryWorker(ConsumingProcess):
    """Takes any unit that is free."""

    scenario: DeliveryScenario

    def start(self) -> None:
        super().start()
        self.renewed_ms = self.now_ms
        self.after(TICK_MS, "tick")

    def timer(self, tag: Any) -> None:
        if tag == "tick":
            self.after(TICK_MS, "tick")
            self.work()
            if self.now_ms - self.renewed_ms >= RENEW_MS:
                self.renewed_ms = self.now_ms
                for unit in self.units.values():
                    self._renew(unit)
            self._look_for_work()
        else:
            super().timer(tag)

    def _look_for_work(self) -> None:
        number = self.world.rng.choice(list(self.world.log.segments))
        if number in self.units or len(self.units) >= self.scenario.units_per_worker:
            return

        def take(tx: Snapshot) -> tuple[int, Progress]:
            lease = tx.acquire_lease(lease_name(number), self.owner_name, LEASE_TTL_MS)
            entry = tx.get(PROGRESS, number)
            return lease.token, entry.value if entry else Progress()

        self.submit(("taken", number), take)

    def _renew(self, unit: OwnedUnit) -> None:
        def renew(tx: Snapshot) -> Lease:
            return tx.renew_lease(lease_name(unit.number), unit.token, LEASE_TTL_MS)

        self.submit(("renewed", unit), renew)

    def stored(self, tag: Any, outcome: Outcome) -> None:
        match tag, outcome:
            case ("taken", number), Done(value=(token, progress)) if number not in self.units:
                self.consume(number, token, progress)
            case ("renewed", unit), Conflict() if self.owns(unit):
                self.fenced(unit)
            case _:
                super().stored(tag, outcome)

    def hand_over(self) -> None:
        """Give a unit up in peace."""
        for unit in list(self.units.values())[:1]:
            self.world.reach("unit.draining")
            unit.dispatcher.pause()
            unit.draining = True

    # --- what ConsumingProcess asks for ---

    def check_token(self, tx: Snapshot, unit: OwnedUnit) -> None:
        tx.check_lease(lease_name(unit.number), unit.token)

    def fenced(self, unit: OwnedUnit) -> None:
        self.drop(unit.number)

    def stalled(self, unit: OwnedUnit) -> None:
        self.world.reach("unit.lost by a stall")
        self.drop(unit.number)

    def drained(self, unit: OwnedUnit) -> None:
        self.world.reach("unit.handed over")
        self.drop(unit.number)
        self.submit("released", lambda tx: tx.release_lease(lease_name(unit.number), unit.token))


class DeliveryScenario(Scenario):
    """Units, workers and their habits, from the seed."""

    name: ClassVar[str] = "delivery"
    about: ClassVar[str] = "the dispatcher: order per key, refusals, dead letters, hand-over"
    steps: ClassVar[int] = 1500
    action_ms: ClassVar[int] = 40
    mishap_ms: ClassVar[int] = 1200
    pause_ms: ClassVar[tuple[int, int]] = (100, 6000)

    def build(self) -> None:
        world, rng = self.world, self.world.rng
        world.log.create(rng.randint(1, 3))
        config = DeliveryConfig(
            max_pending=rng.choice((1, 4, 16)),
            ack_wait_ms=rng.choice((300, 1500)),
            max_deliveries=rng.randint(2, 5),
            backoff_min_ms=20,
            backoff_max_ms=400,
            stall_after_ms=4000,
            buffer_events_max=rng.choice((8, 32)),
        )
        self.keys = rng.choice((3, 8, 30))
        skipped = rng.choice((2, 3, 5, 1000))
        self.oracle = DeliveryOracle(
            world,
            "delivery",
            self._token,
            config,
            ours=lambda key: int(key[1:]) % skipped != skipped - 1,
        )
        self.units_per_worker = rng.randint(1, 3)
        self.workers = [self._spawn(f"w{n}") for n in range(1, rng.randint(2, 4) + 1)]
        self._seen_revision = 0

    def _token(self, number: int) -> int:
        lease = self.world.store.leases.get(lease_name(number))
        return lease.token if lease else 0

    def _spawn(self, name: str) -> DeliveryWorker:
        worker = DeliveryWorker(self.world, name)
        worker.scenario, worker.oracle = self, self.oracle
        faults, rng = self.world.faults, self.world.rng
        if faults.strikes(Fault.SLOW, 0.2):
            worker.ack_ms = (50, 800)
        worker.fails = rng.random() < 0.5
        worker.never_acks = faults.strikes(Fault.STALL, 0.1)
        self.world.spawn(worker)
        return worker

    def actions(self) -> list[Action]:
        return [
            Action("publish", 30, self._publish),
            Action("hand over", 2, self._hand_over),
        ]

    def _publish(self) -> None:
        if self.world.log.event_count - self.oracle.durable_events > BACKLOG_MAX:
            return
        for _ in range(self.world.rng.randint(1, 6)):
            self.world.log.append(f"k{self.world.rng.randrange(self.keys)}")

    def _hand_over(self) -> None:
        awake = [w for w in self.workers if w.alive and not w.paused]
        if awake:
            self.world.rng.choice(awake).hand_over()

    def check(self) -> None:
        self._seen_revision = watch_progress(self.oracle, self._seen_revision)

    def healed(self) -> None:
        self.units_per_worker = 3
        for worker in self.workers:
            worker.ack_ms = (1, 10)
            worker.never_acks = False

    def quiescent(self) -> bool:
        return self.oracle.durable_events == self.world.log.event_count

    def unsettled(self) -> str:
        owned = {
            w.name: {n: u.dispatcher.statistics() for n, u in w.units.items()} for w in self.workers
        }
        left = self.world.log.event_count - self.oracle.durable_events
        return f"{left} events left; {owned}"

    def final(self) -> None:
        check_everything_done(self.oracle)


SCENARIO = DeliveryScenario
