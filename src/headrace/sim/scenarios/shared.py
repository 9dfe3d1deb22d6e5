"""Shared groups as they run: whole programs, in the world's time, with its network and its faults.

Each worker is a program as an application would write it (:mod:`headrace.sim.programs.worker`), and
everything below it is real: host, consumer, session, peer, leaders, connections from the frame on,
and a catalog in memory.  Programs crash, pause past their leases, are cut off from each other and
from the store; segments split and merge, before anything is written to them too.  The oracle sees
what applications see and what the catalog holds.  In the end the faults stop, and everything must
be consumed and fairly assigned.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import ClassVar
from unittest import mock

import msgspec

from headrace.catalog import Tx, claims, progress
from headrace.groups.progress.store import decode
from headrace.groups.shared import ended_units
from headrace.groups.shared.admin import Groups
from headrace.groups.shared.core import pace
from headrace.groups.shared.core.assignment import AssignmentStatus
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.messages import unit_of
from headrace.groups.shared.core.naming import group_key, parse_subscription
from headrace.groups.shared.core.records import LeaderDecision
from headrace.groups.shared.core.settings import Balance
from headrace.groups.shared.runtime import state
from headrace.sim.faults import Fault
from headrace.sim.oracle import GroupOracle
from headrace.sim.programs import Internet
from headrace.sim.programs.mirror import MirroredLog
from headrace.sim.programs.program import wall_us
from headrace.sim.programs.worker import LEADER_SETTINGS, Worker
from headrace.sim.scenario import Action, Scenario
from headrace.sim.world import Process

STREAM = "orders"
KEYS = 12
SEGMENTS_MAX = 16
MEMORY = Path("/dev/shm")
RANKS = {status: rank for rank, status in enumerate(AssignmentStatus)}


class SharedScenario(Scenario):
    """Everything above, put together from the seed."""

    name: ClassVar[str] = "shared"
    about: ClassVar[str] = "shared groups as they run: whole programs, a real catalog, every fault"
    steps: ClassVar[int] = 1200
    settle_steps: ClassVar[int] = 20_000
    down_ms: ClassVar[tuple[int, int]] = (50, 9000)
    action_ms: ClassVar[int] = 100

    def build(self) -> None:
        world, rng = self.world, self.world.rng
        self._logger = logging.getLogger("headrace")
        self._level = self._logger.level
        self._logger.setLevel(logging.CRITICAL + 1)
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self._patches = contextlib.ExitStack()
        if world.seed % 3 == 0:  # leaders gather at a low rate of reports
            self._patches.enter_context(mock.patch.object(pace, "GATHER_RATE", 1))
        self.log = world.log = MirroredLog(self.folder / "log", STREAM)
        self.log.real.catalog.drive(lambda: wall_us(world))
        self.log.create(rng.randint(1, 5))
        self.filters = [f"$share/g{n}/{STREAM}.>" for n in range(rng.randint(1, 2))]
        self.leader_settings = LEADER_SETTINGS
        if rng.random() < 0.3:
            self.leader_settings = msgspec.structs.replace(LEADER_SETTINGS, balance=Balance.LAG)
        self.oracles: dict[str, GroupOracle] = {}
        self._tokens: dict[tuple[str, int], int] = {}
        self._stored: dict[tuple[str, int], object] = {}
        self.outdated = True
        """Whether programs have committed something since the oracles looked."""
        for text in self.filters:
            group = group_key(*parse_subscription(text))
            self.oracles[group] = GroupOracle(world, group, self._token_reader(group))
        self._ranks: dict[tuple[str, int, str, int], int] = {}
        self._decided: dict[str, LeaderDecision] = {}
        self.groups = Groups(self.log.real)
        self.internet = Internet(world)
        self.workers = [self._spawn_worker(f"w{n}") for n in range(1, rng.randint(2, 4) + 1)]

    def _token_reader(self, group: str) -> Callable[[int], int]:
        return lambda number: self._tokens.get((group, number), 0)

    def _spawn_worker(self, name: str) -> Worker:
        worker = Worker(self.world, name)
        worker.scenario, worker.internet, worker.folder = self, self.internet, self.folder / "log"
        rng, faults = self.world.rng, self.world.faults
        if faults.strikes(Fault.SLOW, 0.2):
            worker.ack_ms = (200, 2500)
        worker.fails = rng.random() < 0.4
        worker.never_acks = faults.strikes(Fault.STALL, 0.15)
        worker.wanted = tuple(text for text in self.filters if rng.random() < 0.7)
        self.world.spawn(worker)
        return worker

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong but what an application refuses."""
        return not self.world.faults.kinds - {Fault.SCALE, Fault.FAIL}

    def oracle_of(self, claim: str) -> GroupOracle:
        """The oracle of the group that a unit's claim belongs to."""
        return self.oracles[claim.partition("@")[2]]

    def victims(self) -> list[Process]:
        return list(self.workers)

    def close(self) -> None:
        if not hasattr(self, "folder"):
            return
        for worker in getattr(self, "workers", ()):
            if worker.alive:
                worker.crash()
        self._patches.close()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._logger.setLevel(self._level)

    # --- what the outside does ---

    def actions(self) -> list[Action]:
        return [
            Action("publish", 60, self._publish),
            Action("subscribe", 3, lambda: self._change(subscribed=False)),
            Action("unsubscribe", 3, lambda: self._change(subscribed=True)),
            Action("close a program", 1, self._close),
            Action("configure", 1, self._configure),
            Action("split", 1, self._split, Fault.SCALE),
            Action("merge", 1, self._merge, Fault.SCALE),
            Action("split twice", 1, self._split_twice, Fault.SCALE),
        ]

    def _told(self) -> None:
        """Programs hear of what the outside has committed."""
        for worker in self.workers:
            if worker.alive:
                worker.wake_in(self.world.rng.randint(1, 3))

    def _publish(self) -> None:
        rng = self.world.rng
        self.log.publish([f"k{rng.randint(0, KEYS - 1)}" for _ in range(rng.randint(1, 4))])
        self._told()

    def _change(self, *, subscribed: bool) -> None:
        pairs = [
            (worker, text)
            for worker in self.workers
            if worker.alive and not worker.paused
            for text in self.filters
            if (text in worker.wanted) == subscribed
        ]
        if pairs:
            worker, text = self.world.rng.choice(pairs)
            (worker.unsubscribe if subscribed else worker.subscribe)(text)

    def _close(self) -> None:
        awake = [w for w in self.workers if w.alive and not w.paused]
        if awake:
            self.world.rng.choice(awake).close()

    def _configure(self) -> None:
        """Change how a group is led; its leader hears of it."""
        known = [info.properties.group for info in self.groups.list()]
        if known:
            self.groups.configure(
                self.world.rng.choice(known),
                lease_ttl_ms=self.world.rng.choice((5000, 6000, 9000)),
                revoke_timeout_ms=self.world.rng.choice((3000, 4000)),
            )
            self._told()
            self.world.reach("group.configured")

    def _split(self) -> None:
        if len(self.log.segments) < SEGMENTS_MAX:
            self.log.split(self.world.rng.choice(self.log.open_segments).number)
            self._told()

    def _split_twice(self) -> None:
        if len(self.log.segments) < SEGMENTS_MAX:
            self.log.split_twice(self.world.rng.choice(self.log.open_segments).number)
            self._told()

    def _merge(self) -> None:
        segments = self.log.open_segments
        if len(segments) > 1:
            left = self.world.rng.randrange(len(segments) - 1)
            self.log.merge(segments[left].number, segments[left + 1].number)
            self._told()

    # --- invariants ---

    def look(self) -> None:
        """Show the oracles what has become durable."""
        if self.outdated:
            self.outdated = False
            self.log.real.catalog.read(self._look)

    def _look(self, tx: Tx) -> None:
        for oracle in self.oracles.values():
            self._look_at(oracle, tx)

    def _look_at(self, oracle: GroupOracle, tx: Tx) -> None:
        group, numbers = oracle.group, self.log.numbers
        units = [(state.unit_of_claim(c.unit), c.token) for c in claims.of_group(tx, group)]
        tokens = {_number(unit): token for unit, token in units}
        sealed = any(segment.sealed for segment in self.log.segments.values())
        over = {_number(unit) for unit in ended_units.finished(tx, group)} if sealed else set()
        for row in progress.of_group(tx, group):
            number = numbers[row.segment_id]
            found = (tokens.get(number, 0), row.state, number in over)
            if self._stored.get((group, number)) == found:
                continue
            self._stored[group, number] = found
            self._tokens[group, number] = found[0]
            oracle.stored(number, decode(row))
            if number in over and not oracle.finished(number):
                what = f"{group}: unit {number} is stored as finished"
                self.world.fail("only what is consumed is finished", what)

    def check(self) -> None:
        for worker in self.workers:
            if worker.violation is not None:
                raise worker.violation
            if worker.alive and worker.peer is not None:
                for leading in worker.peer.leaders.values():
                    if worker.has_run:  # else its leaders are as they were
                        self._watch(leading.core)
                    self._count(leading.core)
            worker.has_run = False
        self.look()

    def _watch(self, leader: Leader) -> None:
        """Assignments only move forward."""
        for unit, assigned in leader.units.items():
            if assigned.status is AssignmentStatus.FREE:
                continue
            key = (leader.group, leader.token, unit, assigned.token)
            before = self._ranks.get(key, -1)
            rank = RANKS[assigned.status]
            if rank == before:
                continue
            self._ranks[key] = rank
            self.world.reach(f"assignment.{assigned.status}")
            self.world.require(
                rank > before,
                "assignments only move forward",
                f"{unit} of {leader.group} is {assigned.status} again",
            )

    def _count(self, leader: Leader) -> None:
        """Gathering and decisions are states reached."""
        if leader.gathering:
            self.world.reach("leader.gathers")
        known = self._decided.get(leader.group)
        for decision in reversed(leader.decisions):
            if decision is known:
                break
            self._decided[leader.group] = leader.decisions[-1]
            reason = decision.reason.partition(":")[0].partition(" for ")[0]
            self.world.reach(f"decision.{decision.what.value} ({reason})")

    def healed(self) -> None:
        """The slow have slept enough, and every group gets somebody who works."""
        for worker in self.workers:
            worker.ack_ms = (1, 10)
        for text in self.filters:
            able = [w for w in self.workers if not w.never_acks]
            if not able:
                self.workers[0].never_acks = False
                able = self.workers[:1]
            if not any(text in w.wanted for w in able):
                able[0].subscribe(text)

    def quiescent(self) -> bool:
        events = self.log.event_count
        if any(oracle.durable_events < events for oracle in self.oracles.values()):
            return False
        if not all(worker.settled for worker in self.workers):
            return False
        return all(self._assigned(group) for group in self.oracles) and self._held() == {
            (group, unit, state.borrower.partition(":")[0])
            for group in self.oracles
            for leader in self._leaders(group)
            for unit, state in leader.units.items()
            if state.status is not AssignmentStatus.FREE
        }

    def _held(self) -> set[tuple[str, str, str]]:
        claims = [(name.partition("@"), w.name) for w in self.workers for name in w.units]
        return {(group, unit, name) for (unit, _, group), name in claims}

    def _leaders(self, group: str) -> list[Leader]:
        found = [worker.leader_of(group) for worker in self.workers]
        return [leader for leader in found if leader is not None]

    def _assigned(self, group: str) -> bool:
        """Whether every open segment is granted, in fair shares where shares are counts."""
        leaders = self._leaders(group)
        if len(leaders) != 1 or not leaders[0].units:
            return False
        leader = leaders[0]
        for segment in self.log.segments.values():
            state = leader.units.get(unit_of(STREAM, segment.number))
            if state is None:
                return False
            if segment.sealed:
                if not state.finished or state.status is not AssignmentStatus.FREE:
                    return False
            elif state.status is not AssignmentStatus.GRANTED:
                return False
        texts = {text for text in self.filters if group_key(*parse_subscription(text)) == group}
        subscribed = sum(1 for worker in self.workers if texts & set(worker.wanted))
        return len(leader.borrowers) == subscribed and self._fair(group, leader)

    def _fair(self, group: str, leader: Leader) -> bool:
        if leader.settings.balance is Balance.LAG:
            return True
        peer = next(w.peer for w in self.workers if w.peer and group in w.peer.leaders)
        loads = leader.shares(peer.now_ms).values()
        return not loads or max(loads) - min(loads) <= 1

    def unsettled(self) -> str:
        parts = [f"held {sorted(self._held())}"]
        for group, oracle in self.oracles.items():
            left = self.log.event_count - oracle.durable_events
            units = {
                unit: (state.status.value, state.borrower, state.finished)
                for leader in self._leaders(group)
                for unit, state in leader.units.items()
                if not (state.finished and state.status is AssignmentStatus.FREE)
            }
            parts.append(f"{group}: {left} events left, {units}")
        return "; ".join(parts)


@cache
def _number(unit: str) -> int:
    """The segment's number in a unit's name."""
    return int(unit.rpartition("/")[2])


SCENARIO = SharedScenario
