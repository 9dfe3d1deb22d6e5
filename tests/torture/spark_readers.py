"""A torture of a Spark query that is a reader: its driver is killed at every point, and frozen.

Two Python readers share the group with it.  All of them write what they read to one stream, in the
transactions of their acks.  Segments split meanwhile, and in the end the group is reset.  Every
event is in the output once, and once more for the reset, in the order of its key.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import msgspec
from rich.console import Console

import headrace
import headrace.sync
from headrace.errors import HeadraceError
from headrace.log.events import Event
from tests.support import Process
from tests.torture import spark_driver
from tests.torture.run import Catalog
from tests.torture.server import create_database, running_postgres
from tests.torture.spark_driver import FENCED, GROUP, POINTS

LEASE_MS = 1500
KEYS = 12
FED = 20
PATIENCE_S = 180


class SparkOutcome(msgspec.Struct, frozen=True):
    """One ordeal."""

    catalog: str
    kills: int
    freezes: int
    events: int
    by_spark: int
    splits: int
    findings: list[str]


class Readers(threading.Thread):
    """Python readers, on an event loop of their own, that come and go."""

    def __init__(self, catalog: str, count: int) -> None:
        super().__init__(daemon=True)
        self._catalog = catalog
        self._count = count
        self._stopping = threading.Event()
        self.written = 0
        self.errors: list[str] = []

    def run(self) -> None:
        asyncio.run(self._main())

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)

    async def _main(self) -> None:
        async with headrace.open(self._catalog) as hr:
            await asyncio.gather(*(self._read(hr, f"r{n}") for n in range(self._count)))

    async def _read(self, hr: headrace.Headrace, name: str) -> None:
        group = await hr.reader_groups.get(GROUP)
        while not self._stopping.is_set():
            async with group.reader(name, lease_ttl_ms=LEASE_MS) as reader:
                for _ in range(30):
                    delivery = await reader.next(timeout_s=0.2)
                    if self._stopping.is_set():
                        break
                    if delivery is None:
                        continue
                    try:
                        async with delivery.transaction() as transaction:
                            place = delivery.subject.split(".")[1]
                            transaction.publish(f"clean.{place}", delivery.value, key=delivery.key)
                        self.written += 1
                    except HeadraceError:
                        continue
            await asyncio.sleep(random.random() / 4)


class Ordeal:
    """Drivers, one after another, and what they meet."""

    def __init__(self, url: str, folder: Path, rng: random.Random) -> None:
        self.url = url
        self.folder = folder
        self.rng = rng
        self.sent = 0
        self.kills = self.freezes = self.splits = 0
        self.drivers: list[Process] = []

    def start(self, point: str, fault: str) -> Process:
        made = Process(
            spark_driver.__name__,
            self.url,
            str(self.folder / "checkpoint"),
            point,
            fault,
            str(LEASE_MS),
        )
        self.drivers.append(made)
        return made

    def feed(self, hr: headrace.sync.Headrace) -> None:
        numbers = range(self.sent, self.sent + FED)
        self.sent += FED
        hr.append(
            "orders",
            [
                Event(subject=f"orders.{n % KEYS}", key=str(n % KEYS), value=b"%d" % n)
                for n in numbers
            ],
        )

    def strike(self, hr: headrace.sync.Headrace, point: str, fault: str) -> None:
        """One driver meets its fault at a point, and another one goes on."""
        driver = self.start(point, fault)
        until_s = time.monotonic() + PATIENCE_S
        if fault == "kill":
            while driver.status in (None, FENCED) and time.monotonic() < until_s:
                if driver.status == FENCED:  # the machine is busy, and leases are short here
                    driver = self.start(point, fault)
                self.feed(hr)
                time.sleep(0.15)
            self.kills += 1
            assert driver.status == -signal.SIGKILL, f"{point}: the driver has {driver.status}"
            return
        # Another thread lets it go on: on SQLite it may be frozen in a commit of one of its own
        # threads, and then nobody writes before it has gone on.
        frozen = threading.Event()
        watching = threading.Thread(target=_freeze, args=(driver, frozen), daemon=True)
        watching.start()
        while not frozen.is_set():
            self.feed(hr)
            time.sleep(0.15)
            assert time.monotonic() < until_s, f"no batch comes to {point}"
        after = self.start("", "")
        while watching.is_alive():
            self.feed(hr)
            time.sleep(0.2)
        self.feed(hr)
        time.sleep(1.0)
        after.kill()
        driver.kill()
        self.freezes += 1

    def split(self, hr: headrace.sync.Headrace) -> None:
        opened = [s for s in hr.stream("orders").segments if not s.sealed]
        if len(opened) < 12:
            hr.split("orders", self.rng.choice(opened).number, 2)
            self.splits += 1

    def drain(self, hr: headrace.sync.Headrace, copies: int) -> list[str]:
        """Let a driver without a fault finish; what is wrong with the output."""
        driver = self.start("", "")
        until_s = time.monotonic() + PATIENCE_S
        group = hr.reader_groups.get(GROUP)
        while time.monotonic() < until_s:
            if driver.status is not None:
                driver = self.start("", "")  # it met what the last one left behind
            if group.lag().events == 0 and len(outputs(hr)) >= self.sent * copies:
                break
            time.sleep(0.3)
        driver.kill()
        return judge(outputs(hr), self.sent, copies)

    def end(self) -> None:
        """Nothing of it runs on."""
        for driver in self.drivers:
            driver.kill()


def _freeze(driver: Process, frozen: threading.Event) -> None:
    """Wait until a driver has stopped itself, and let it go on after twice the time of a lease."""
    while not _is_stopped(driver.pid) and driver.status is None:
        time.sleep(0.05)
    frozen.set()
    time.sleep(LEASE_MS / 1000 * 2)
    with suppress(ProcessLookupError):
        os.kill(driver.pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def outputs(hr: headrace.sync.Headrace) -> list[int]:
    return [int(v) for batch in hr.read("clean") for v in batch.column("value").to_pylist()]


def judge(found: Sequence[int], sent: int, copies: int) -> list[str]:
    """What is wrong with an output of events that were read ``copies`` times."""
    times = Counter(found)
    lost = [n for n in range(sent) if times[n] < copies]
    many = [n for n, count in times.items() if count > copies]
    findings = []
    if lost:
        findings.append(f"{len(lost)} events are missing, the first {lost[:5]}")
    if many:
        findings.append(f"{len(many)} events are there too often, the first {sorted(many)[:5]}")
    for key in range(KEYS):
        mine = [n for n in found if n % KEYS == key]
        each = max(1, len(mine) // copies)
        rounds = [mine[at : at + each] for at in range(0, len(mine), each)]
        if any(part != sorted(part) for part in rounds) and not findings:
            findings.append(f"key {key} is out of order")
    return findings


class Result(msgspec.Struct, frozen=True):
    """All ordeals of one run."""

    seed: int
    outcomes: list[SparkOutcome]
    seconds: float

    @property
    def findings(self) -> list[str]:
        return [each for outcome in self.outcomes for each in outcome.findings]


def torture_spark_readers(
    catalogs: Sequence[Catalog],
    faults: int,
    seed: int,
    folder: Path,
    told: Callable[[Catalog, int], None] = lambda catalog, faults: None,
) -> Result:
    """Share ``faults`` among the catalogs; one of four is a freeze."""
    began_s = time.monotonic()
    outcomes = []
    for catalog in catalogs:
        place = folder / f"spark-readers-{catalog}"
        place.mkdir(parents=True)
        each = faults // len(catalogs)
        outcomes.append(
            torture_spark_reader(
                catalog,
                each - each // 4,
                each // 4,
                seed,
                place,
                lambda count, catalog=catalog: told(catalog, count),  # type: ignore[misc]
            )
        )
    return Result(seed, outcomes, time.monotonic() - began_s)


def show(console: Console, result: Result) -> None:
    """The sums."""
    for each in result.outcomes:
        console.print(
            f"a Spark reader on {each.catalog}: {each.kills} kills, {each.freezes} freezes, "
            f"{each.splits} splits; {each.events} events, {each.by_spark} outputs by Spark, with "
            "those of the reset"
        )
    for finding in result.findings:
        console.print(f"FOUND: {finding}")


def torture_spark_reader(
    catalog: Catalog,
    kills: int,
    freezes: int,
    seed: int,
    folder: Path,
    tell: Callable[[int], None] = lambda _: None,
    points: Sequence[str] = POINTS,
) -> SparkOutcome:
    """Run one ordeal; each point is struck in turn."""
    rng = random.Random(seed)
    faults = plan(rng, kills, freezes, points)
    with running_postgres(folder) if catalog == "postgres" else nullcontext() as server:
        url = str(folder / "catalog") if server is None else create_database(server, "spark")
        return _run(catalog, faults, Ordeal(url, folder, rng), tell)


def plan(
    rng: random.Random, kills: int, freezes: int, points: Sequence[str]
) -> list[tuple[str, str]]:
    """Which fault comes where; each point in turn, and all of them mixed."""
    faults = [(points[n % len(points)], "kill") for n in range(kills)]
    faults += [(points[n % len(points)], "freeze") for n in range(freezes)]
    rng.shuffle(faults)
    return faults


def prepare(hr: headrace.sync.Headrace) -> None:
    """What is read, what is written, and by whom."""
    hr.create_stream("orders", ["orders.>"], segments=4)
    hr.create_stream("clean", ["clean.>"], segments=1)
    hr.reader_groups.create(GROUP, streams=["orders"])


def _run(
    catalog: str,
    faults: Sequence[tuple[str, str]],
    ordeal: Ordeal,
    tell: Callable[[int], None],
) -> SparkOutcome:
    with headrace.sync.open(ordeal.url) as hr:
        prepare(hr)
        readers = Readers(ordeal.url, 2)
        readers.start()
        try:
            for number, (point, fault) in enumerate(faults):
                ordeal.strike(hr, point, fault)
                if number % 5 == 4:
                    ordeal.split(hr)
                tell(number + 1)
            findings = ordeal.drain(hr, 1)
            if not findings:
                hr.reader_groups.get(GROUP).reset("earliest")
                findings = [f"after the reset: {each}" for each in ordeal.drain(hr, 2)]
        finally:
            ordeal.end()
            readers.stop()
        total = len(outputs(hr))
    return SparkOutcome(
        catalog=catalog,
        kills=ordeal.kills,
        freezes=ordeal.freezes,
        events=ordeal.sent,
        by_spark=total - readers.written,
        splits=ordeal.splits,
        findings=findings,
    )
