"""A Spark query as a reader of a group: drivers die, freeze, wake and replace each other.

Up to three drivers run on one checkpoint directory, a step at a time: plan, log, open, bind, read,
write, commit.  Between any two steps one may be killed, stopped in order, or stand still for long,
and the thread beside it gives up and claims segments.  Leases run out, a Python reader takes
segments, holds events in its hand for a while, and gives segments back, acks are taken back, the
group is reset, and the checkpoint directory is put back.  Every third seed writes to a foreign
sink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from headrace.errors import BatchFenced, CheckpointPutBackError
from headrace.groups.readers.core import balance, spark_batches
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.spark_batches import SparkOpening, SparkPlan
from headrace.groups.readers.core.updates import (
    AcquireShare,
    AddReader,
    ReleaseSegments,
    RemoveReader,
)
from headrace.sim.faults import Fault
from headrace.sim.scenario import Action, Scenario
from headrace.sim.spark_catalog import SPARK, DriverEnd, SparkCatalog
from headrace.sim.spark_output import WrittenOutput
from headrace.sim.world import Process

DRIVERS = 3
OTHER = "python"


class CheckpointDirectory:
    """What Spark keeps: a plan per batch, and which batches are finished."""

    def __init__(self) -> None:
        self.query = 0
        self.offsets: list[SparkPlan] = []
        self.commits: set[int] = set()
        self.restored = False

    def begin_anew(self) -> None:
        """Somebody gives the query an empty directory, as the error says."""
        self.query += 1
        self.offsets, self.commits, self.restored = [], set(), False

    def put_back(self, batches: int, *, finished: bool) -> None:
        """Somebody restores an older copy; its last batch may be logged and not `finished`."""
        del self.offsets[batches:]
        until = batches if finished else batches - 1
        self.commits = {number for number in self.commits if number < until}
        self.restored = True


class Driver(Process):
    """One process on the checkpoint; every life of it is a run of the query."""

    catalog: SparkCatalog
    directory: CheckpointDirectory
    wanted = True
    """Whether somebody starts it again when it has ended."""

    def start(self) -> None:
        self.course: Iterator[None] | None = None
        self.after(self.world.rng.randint(1, 2000), "begin")

    @property
    def at_work(self) -> bool:
        """Whether a run is under way."""
        return self.alive and self.course is not None

    def timer(self, tag: Any) -> None:
        if tag == "begin":
            if not self.wanted:
                return
            self.course = self._run()
        if self.course is None:
            return
        try:
            next(self.course)
        except (BatchFenced, CheckpointPutBackError, DriverEnd) as end:
            self.note("ends: %s", end)
            self.world.reach(f"driver.{type(end).__name__}")
            if isinstance(end, CheckpointPutBackError) and self.query == self.directory.query:
                old = self.directory.restored or self.number in self.directory.commits
                self.world.require(old, "what is called put back is old", str(end))
                self.directory.begin_anew()
            self.course = None
            self.after(self.world.rng.randint(50, 3000), "begin")
        else:
            slow = self.world.faults.strikes(Fault.PAUSE, 0.12)
            self.after(self.world.rng.randint(1, 3000 if slow else 60), "step")

    def keep(self) -> None:
        """The thread beside a driver: gives up and claims what is not in a batch."""
        catalog, rng = self.catalog, self.world.rng
        life = catalog.life(SPARK)
        if not self.at_work or life is None or life != self.life:
            return
        line = catalog.lines.get(self.line)
        busy = self.planned
        if line is not None and line.opening is not None and not line.opening.settled:
            busy = busy | {span.segment for span in line.opening.spans}
        going = [s for s in balance.segments_to_release(catalog.state, SPARK) if s not in busy]
        if going and rng.random() < 0.5:
            catalog.put(ReleaseSegments(SPARK, life, tuple(going)))
        else:
            catalog.put(AcquireShare(SPARK, life))

    def leave(self) -> None:
        """It is stopped in order: it leaves the group, and somebody starts it again later."""
        if not self.at_work:
            return
        if self.life is not None:
            self.catalog.leave(self.line, self.instance, self.life)
        self.course = None
        self.world.reach("driver.left")
        self.after(self.world.rng.randint(50, 3000), "begin")

    # --- one run, step by step ---

    def _run(self) -> Iterator[None]:
        catalog, directory = self.catalog, self.directory
        self.query = directory.query
        self.run = catalog.new_id("run")
        self.instance = catalog.new_id("instance")
        self.life: int | None = None
        self.took = False
        self.opened: dict[str, SparkOpening] = {}
        self.planned: frozenset[SegmentId] = frozenset()
        logged = list(directory.offsets)
        self.line = logged[-1].line if logged else catalog.new_id("line")
        number = len(logged)
        plan: SparkPlan | None = None
        if logged and number - 1 not in directory.commits:
            number, plan = number - 1, logged[-1]
            self.world.reach("driver.replays")
        last = logged[number - 1] if number else None
        yield
        while True:
            if plan is None:
                for planned in self._plan(last):
                    plan = planned
                    yield
                assert plan is not None
                if len(directory.offsets) != number or directory.query != self.query:
                    raise DriverEnd("multiple streaming jobs")
                directory.offsets.append(plan)
                yield
            yield from self._batch(plan, number)
            if number in directory.commits or directory.query != self.query:
                raise DriverEnd("another run has finished the batch")
            directory.commits.add(number)
            yield
            last, plan, number = plan, None, number + 1

    def _plan(self, last: SparkPlan | None) -> Iterator[SparkPlan | None]:
        """``latestOffset``: settle, act as a reader, and plan until there is something to read."""
        catalog, rng = self.catalog, self.world.rng
        finished = None if last is None else (last.batch, self._mine(last.batch))
        while True:
            life = self._join(last, finished)
            if finished is not None:
                catalog.settle(self.line, *finished)
            yield None
            life = self._join(last, finished)
            going = balance.segments_to_release(catalog.state, SPARK)
            if going and rng.random() < 0.5:
                catalog.put(ReleaseSegments(SPARK, life, tuple(going)))
            elif rng.random() < 0.7:
                catalog.put(AcquireShare(SPARK, life))
            paused = [s for s in catalog.heads if rng.random() < 0.2]
            limit = rng.randint(1, 4)
            spans = spark_batches.plan_spans(catalog.views(), life, catalog.heads, paused, limit)
            if spans:
                self.planned = frozenset(span.segment for span in spans)
                yield SparkPlan.after(last, self.line, catalog.new_id("batch"), spans)
                return
            yield None

    def _mine(self, batch: str) -> str | None:
        return self.opened[batch].opening if batch in self.opened else None

    def _join(self, plan: SparkPlan | None, finished: tuple[str, str | None] | None) -> int:
        catalog = self.catalog
        life = catalog.life(SPARK)
        if life == self.life and catalog.holder == (self.line, self.instance) and life is not None:
            return life
        wants = () if plan is None else tuple(span.segment for span in plan.spans)
        self.life = catalog.join(self.line, self.instance, wants, finished, took=self.took)
        self.took = True
        return self.life

    def _batch(self, plan: SparkPlan, number: int) -> Iterator[None]:
        """``partitions``, the read tasks, and the sink."""
        self.number = number
        catalog, run = self.catalog, (self.query, self.run, number)
        if plan.batch not in self.opened:
            self.opened[plan.batch] = catalog.open(plan, self._join(plan, None))
        opening = self.opened[plan.batch]
        self.planned = frozenset()
        yield
        if opening.spans:
            catalog.bind(plan.line, opening.opening, run)
        rows = [(span.segment, span.ranges) for span in opening.spans]
        yield
        catalog.sink(run, rows)
        self.world.reach("driver.wrote" if rows else "driver.wrote nothing")
        yield


class SparkReaderScenario(Scenario):
    """One query, one Python reader, one group."""

    name: ClassVar[str] = "spark-reader"
    about: ClassVar[str] = "a Spark query in a reader group: deaths, zombies, replays, resets"
    steps: ClassVar[int] = 700
    mishap_ms: ClassVar[int] = 400
    pause_ms: ClassVar[tuple[int, int]] = (50, 4000)
    down_ms: ClassVar[tuple[int, int]] = (10, 1500)
    action_ms: ClassVar[int] = 30

    def build(self) -> None:
        rng = self.world.rng
        heads = {SegmentId("a", n): rng.randint(2, 8) for n in range(rng.randint(1, 3))}
        self.foreign = self.world.seed % 3 == 2
        self.catalog = SparkCatalog(heads, foreign=self.foreign)
        self._written = WrittenOutput(self.catalog)
        self.directory = CheckpointDirectory()
        self.drivers: list[Driver] = []
        for number in range(rng.randint(2, DRIVERS)):
            driver = Driver(self.world, f"driver-{number}")
            driver.catalog, driver.directory = self.catalog, self.directory
            self.drivers.append(driver)
            self.world.spawn(driver)
        self._healing = False
        self._checked = -1
        self._hand: dict[SegmentId, tuple[int, int]] = {}
        """What the Python reader works on: (token, offset)."""

    def actions(self) -> list[Action]:
        return [
            Action("append", 6, self._append),
            Action("reader", 12, self._other_reader),
            Action("keeper", 6, lambda: self.world.rng.choice(self.drivers).keep()),
            Action("expire", 4, self._expire, Fault.PAUSE),
            Action("leave", 1, self._leave, Fault.CRASH),
            Action("reset", 1, self._reset),
            Action("rewind", 1, self._rewind),
            Action("put back", 1, self._put_back, Fault.CRASH),
        ]

    def _append(self) -> None:
        segment = self.world.rng.choice(list(self.catalog.heads))
        self.catalog.heads[segment] += self.world.rng.randint(1, 3)

    def _expire(self) -> None:
        if self.world.rng.random() < 0.3:
            self.catalog.expire()

    def _other_reader(self) -> None:
        """A Python reader: joins, claims, works in transactions, gives back, leaves."""
        catalog, rng = self.catalog, self.world.rng
        life = catalog.life(OTHER)
        if life is None:
            if self._healing or rng.random() < 0.3:
                catalog.put(AddReader(OTHER))
            return
        chance = rng.random()
        if chance < 0.1 and not self._healing:
            catalog.put(RemoveReader(OTHER))
        elif chance < 0.3:
            going = balance.segments_to_release(catalog.state, OTHER)
            if going:
                for segment in going:
                    self._hand.pop(segment, None)
                catalog.put(ReleaseSegments(OTHER, life, tuple(going)))
        elif chance < 0.6:
            catalog.put(AcquireShare(OTHER, life))
        for segment, (token, low) in list(self._hand.items()):
            if self._healing or rng.random() < 0.5:
                del self._hand[segment]
                life = catalog.life(OTHER)
                if life is not None and catalog.claims[segment] == (life, token):
                    catalog.write([(segment, ((low, low + 1),))])
                    catalog.ack({segment: ((low, low + 1),)})
                    self.world.reach("python.read")
        for segment in catalog.state.owned(OTHER):
            missing = catalog.acked[segment].missing(catalog.heads[segment])
            if missing and segment not in self._hand and rng.random() < 0.4:
                self._hand[segment] = (catalog.claims[segment][1], missing[0][0])

    def _leave(self) -> None:
        rng = self.world.rng
        if rng.random() < 0.5:
            rng.choice(self.drivers).leave()

    def _reset(self) -> None:
        rng, catalog = self.world.rng, self.catalog
        if rng.random() < 0.6:
            return
        kept = {s: rng.randint(0, acked.floor) for s, acked in catalog.acked.items()}
        catalog.reset(kept)
        self.world.reach("group.reset")

    def _rewind(self) -> None:
        rng, catalog = self.world.rng, self.catalog
        reader = rng.choice((SPARK, OTHER))
        owned = list(catalog.state.owned(reader)) if reader in catalog.state.members else []
        if owned and rng.random() < 0.4:
            segment = rng.choice(owned)
            catalog.rewind(reader, segment, rng.randint(0, catalog.acked[segment].floor))
            self.world.reach("group.rewind")

    def _put_back(self) -> None:
        """The directory of a query that does not run is restored from an older copy."""
        directory, rng = self.directory, self.world.rng
        busy = any(driver.at_work for driver in self.drivers)
        if not busy and len(directory.offsets) > 1 and rng.random() < 0.4:
            batches = rng.randint(0, len(directory.offsets) - 1)
            directory.put_back(batches, finished=rng.random() < 0.5)
            self.world.reach("checkpoint.put back")

    # --- invariants ---

    def check(self) -> None:
        catalog = self.catalog
        if catalog.version == self._checked:
            return
        self._checked = catalog.version
        if not (self._written.holds() if self.foreign else self._written.is_exact()):
            self._check_all()

    def _check_all(self) -> None:
        """Look at all acks and all of the output, and say what is wrong."""
        catalog = self.catalog
        written = Counter(catalog.output)
        acked = {
            (segment, offset)
            for segment, ranges in catalog.acked.items()
            for offset in range(catalog.heads[segment])
            if offset in ranges
        }
        lost = acked - written.keys()
        self.world.require(not lost, "nothing is acked that was not written", f"{lost}")
        if self.foreign:
            return
        self.world.require(
            acked == written.keys(), "output and acks are one", f"{written.keys() - acked}"
        )
        twice = {place: times for place, times in written.items() if times > 1}
        self.world.require(not twice, "nothing counts twice", f"{twice}")
        last: dict[SegmentId, int] = {}
        for segment, offset in catalog.output:
            at = f"{segment} {offset} after {last.get(segment)}"
            self.world.require(offset > last.get(segment, -1), "key order", at)
            last[segment] = offset

    def healed(self) -> None:
        """One driver goes on; the others are gone for good."""
        self._healing = True
        for driver in self.drivers[1:]:
            driver.wanted = False
            driver.course = None
        self.world.call_in(50, self._tend)

    def _tend(self) -> None:
        """The Python reader works on, and a query that has ended loses its lease."""
        self._other_reader()
        if not self.drivers[0].at_work and self.world.rng.random() < 0.1:
            self.catalog.expire()
        self.world.call_in(50, self._tend)

    def quiescent(self) -> bool:
        return not self.catalog.missing()

    def unsettled(self) -> str:
        floors = {str(s): acked.floor for s, acked in self.catalog.acked.items()}
        return f"{floors} of {self.catalog.heads}; {self.catalog.claims}"


SCENARIO = SparkReaderScenario
