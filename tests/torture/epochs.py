"""A torture of epochs: publishers and subscribers killed, and frozen past their leases.

Standbys wait for each, segments split and merge, and then every epoch is accounted for.
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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Console

import headrace
import headrace.sync
from headrace.epochs.runtime.progress_log import ProgressLog
from headrace.errors import CatalogUnavailableError, SegmentSealedError
from headrace.log.events import Event
from headrace.log.log import Log
from tests.support import Process
from tests.torture import dying
from tests.torture import epoch_account as account
from tests.torture.epoch_worker import LEASE_MS, PUBLISHERS, Seen
from tests.torture.run import Catalog
from tests.torture.server import create_database, running_postgres

T = TypeVar("T")
Crew = tuple[str, ...]
"""The roles of one process."""
CREWS: tuple[Crew, ...] = (
    *((f"publish:{name}",) for name in PUBLISHERS for _ in range(2)),
    *(("output:o1", "ack:a1"), ("output:o1", "ack:a1")),
    ("whole:w1", "streaming:s1"),
    *(("relay:r",), ("relay:r",)),
)
SMALL: tuple[Crew, ...] = (
    *((f"publish:{PUBLISHERS[0]}", f"publish:{PUBLISHERS[1]}") for _ in range(2)),
    *(("output:o1", "ack:a1", "relay:r"), ("output:o1", "ack:a1", "relay:r")),
    ("whole:w1", "streaming:s1"),
)
FED = 5
PLACES: tuple[dying.Place, ...] = ("before-commit", "after-commit", "in-commit", "in-transaction")
DEATH_S = 6.0
STALL_S = 1.0
AIMED = 0.8
"""Of the freezes so many are aimed at the active one of a name."""
PATIENCE_S = 120


class Outcome(msgspec.Struct, frozen=True):
    """One ordeal."""

    catalog: str
    faults: dict[str, int]
    epochs: int
    relayed: int
    taken_back: int
    take_overs: int
    findings: list[str]


class Result(msgspec.Struct, frozen=True):
    """All ordeals of one run."""

    seed: int
    outcomes: list[Outcome]
    seconds: float

    @property
    def findings(self) -> list[str]:
        return [each for outcome in self.outcomes for each in outcome.findings]


class Ordeal:
    """The processes, and whoever does them harm."""

    def __init__(
        self,
        catalog: str,
        url: str,
        folder: Path,
        faults: int,
        rng: random.Random,
        crews: Sequence[Crew],
    ) -> None:
        self._catalog = catalog
        self._url = url
        self._folder = folder
        self._faults = faults
        self._rng = rng
        self._crews = crews
        self._running: dict[int, Process] = {}
        self._frozen: dict[int, float] = {}
        self._timers: list[threading.Timer] = []
        self._lives = 0
        self._life: dict[int, str] = {}
        self._done: Counter[str] = Counter()
        self._deck: list[str] = []
        self._inputs: list[bytes] = []
        self._failures: list[str] = []

    def run(self, told: Callable[[int], None]) -> Outcome:
        with headrace.sync.open(self._url, housekeeping=False) as hr:
            self._hr = hr
            epochs = headrace.Epochs(publishers=PUBLISHERS)
            hr.create_stream("orders", ["orders.>"], segments=3, epochs=epochs)
            hr.create_stream("via", ["via.>"], segments=2, epochs=headrace.Epochs())
            hr.create_stream("in", ["in.>"], segments=2)
            hr.create_stream("out", ["out.>"], segments=1)
            self._group = hr.reader_groups.create("relay", streams=["in"])
            try:
                for crew in range(len(self._crews)):
                    self._start(crew)
                for process in self._running.values():
                    process.line()
                while sum(self._done.values()) < self._faults:
                    self._step()
                    told(sum(self._done.values()))
                    time.sleep(self._rng.uniform(0.1, 0.8))
                self._calm()
            finally:
                for timer in self._timers:
                    timer.join()
                for process in self._running.values():
                    process.kill()
        return self._account()

    def _start(self, crew: int) -> None:
        self._lives += 1
        self._life[crew] = f"{crew}-{self._lives}"
        self._running[crew] = Process(
            "tests.torture.epoch_worker",
            self._url,
            str(self._folder),
            self._life[crew],
            *self._crews[crew],
        )

    # -- harm ----------------------------------------------------------------------------

    def _step(self) -> None:
        for crew in [crew for crew, until in self._frozen.items() if time.monotonic() > until]:
            del self._frozen[crew]
        if not self._deck:
            # Dealt, so that a short run has all of them.
            self._deck = ["kill", "kill", "exact", "exact", "freeze", "freeze", "split", "merge"]
            if self._catalog == "sqlite" and self._faults > len(self._deck):
                self._deck.append("compact")  # the other has no store here
            self._rng.shuffle(self._deck)
        try:
            self._feed()
            if getattr(self, f"_{self._deck[-1]}")():
                self._done[self._deck.pop()] += 1
            else:
                self._rng.shuffle(self._deck)
        except (CatalogUnavailableError, SegmentSealedError):
            return  # somebody was frozen with the lock in hand

    def _feed(self) -> None:
        values = [str(len(self._inputs) + n).encode() for n in range(FED)]
        self._inputs += values  # also if it is not known whether they are stored
        self._hr.append("in", [Event(subject="in.x", key=str(v), value=v) for v in values])

    def _pick(self) -> int | None:
        awake = [crew for crew in self._running if crew not in self._frozen and self._ready(crew)]
        for crew in awake:
            if (status := self._running[crew].status) is not None:
                self._failures.append(f"{self._crews[crew]} ended with {status}")
                self._start(crew)
        return self._rng.choice(awake) if awake else None

    def _ready(self, crew: int) -> bool:
        """Whether it is at work, or has ended: who still starts is not worth a kill."""
        ended = self._running[crew].status is not None
        return ended or (self._folder / f"{self._life[crew]}.ready").exists()

    def _kill(self) -> bool:
        crew = self._pick()
        if crew is None:
            return False
        self._running.pop(crew).kill()
        self._start(crew)
        return True

    def _exact(self) -> bool:
        """Somebody dies at an exact place: around a commit, or between its rows and its line."""
        crew = self._pick()
        if crew is None:
            return False
        place = self._rng.choice(PLACES)
        process = self._running.pop(crew)
        with suppress(OSError):
            process.tell(f"die {place} {self._rng.randint(1, 5)}")
        deadline = time.monotonic() + DEATH_S
        while process.status is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()  # one that has nothing to commit
        self._start(crew)
        return True

    def _freeze(self) -> bool:
        """Mostly the one that is active under a name, and for so long that it is replaced."""
        crew, frozen = self._pick(), self._rng.uniform(0.8, 2)
        if crew is None or len(self._frozen) > 1:
            return False
        # Every other one is for a publisher, also in a short run.
        publisher = self._done["freeze"] % 2 == 0
        names = PUBLISHERS if publisher else (*PUBLISHERS, "o1", "a1", "r")
        holder = self._folder / f"{self._rng.choice(names)}.holder"
        if (publisher or self._rng.random() < AIMED) and holder.exists():
            active = int(holder.read_text().partition("-")[0] or crew)
            if active in self._running and active not in self._frozen:
                crew, frozen = active, self._rng.uniform(1.3, 2)
        process = self._running[crew]
        pid = process.pid
        frozen_s = LEASE_MS / 1000 * frozen
        # A publisher with a commit in hand, which it goes on with when it was replaced; who has
        # none soon is frozen as it is.
        deadline = time.monotonic() + STALL_S
        with suppress(OSError):
            process.tell(f"stall {self._rng.randint(1, 3)} {deadline}")
        while process.status is None and not _stopped(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.status is not None:
            return False
        os.kill(pid, signal.SIGSTOP)
        self._frozen[crew] = time.monotonic() + frozen_s + 1
        # By a thread: it may be frozen with the lock in hand that everybody waits for.
        timer = threading.Timer(frozen_s, _go_on, (pid,))
        timer.start()
        self._timers.append(timer)
        return True

    def _compact(self) -> bool:
        self._hr.compact("orders")
        return True

    def _split(self) -> bool:
        found = self._hr.stream("orders").open_segments
        if len(found) > 6:
            return False
        self._hr.split("orders", self._rng.choice(found).number)
        return True

    def _merge(self) -> bool:
        found = self._hr.stream("orders").open_segments
        if len(found) < 3:
            return False
        at = self._rng.randrange(len(found) - 1)
        self._hr.merge("orders", [segment.number for segment in found[at : at + 2]])
        return True

    # -- the end -------------------------------------------------------------------------

    def _calm(self) -> None:
        """Publishers leave; everybody else gets what is there."""
        for timer in self._timers:
            timer.join()
        publishers = [crew for crew in self._running if self._crews[crew][0].startswith("publish")]
        for crew in publishers:
            with suppress(OSError):
                self._running[crew].tell("stop")
        for crew in publishers:
            status = self._running[crew].wait(PATIENCE_S)
            if status != 0:
                self._failures.append(f"{self._crews[crew]} ended with {status} when told to stop")
        counted = asyncio.run(self._look(lambda log: _counted(log, "orders")))
        frontier, last = counted.frontier, max(counted.digests(), default=-1)
        deadline = time.monotonic() + PATIENCE_S
        while behind := self._behind(last):
            if time.monotonic() > deadline:
                self._failures.append(f"not caught up with {frontier}: {behind}")
                return
            time.sleep(0.1)

    def _behind(self, last: int) -> list[str]:
        try:
            named = {each.name: each.frontier for each in self._hr.epoch_subscriptions()}
            lag = self._group.lag().events
        except CatalogUnavailableError:
            return ["unknown"]
        found = [name for name in ("o1", "a1") if (named.get(name) or (0,)) <= (last,)]
        for chain in ("whole-w1", "streaming-s1"):
            given = [epoch for seen in self._seen(chain) for epoch in seen.epochs]
            if not given or given[-1][0] < last:
                found.append(chain)
        return [*found, f"relay by {lag}"] if lag else found

    def _seen(self, role: str) -> list[Seen]:
        paths = sorted(self._folder.glob(f"{role}.*.jsonl"))
        lines = [line for path in paths for line in path.read_bytes().splitlines()]
        return [msgspec.json.decode(line, type=Seen) for line in lines]

    async def _look(self, work: Callable[[Log], T]) -> T:
        async with headrace.open(self._url, housekeeping=False) as hr:
            return await hr.in_thread(work, hr.log)

    def _account(self) -> Outcome:
        def look(log: Log) -> tuple[account.Counted, account.Counted, list[bytes], list[bytes]]:
            orders, via = (_counted(log, stream) for stream in ("orders", "via"))
            return orders, via, _values(log, "out"), _values(log, "in")

        orders, via, out, inputs = asyncio.run(self._look(look))
        outputs = [row.split() for row in out]
        with headrace.sync.open(self._url, housekeeping=False) as hr:
            lag = hr.reader_groups.get("relay").lag().events
        digests = orders.digests()
        findings = [*self._failures, *orders.findings, *via.findings]
        findings += account.judge_sources(orders, PUBLISHERS)
        written = [(int(time), what.decode()) for name, time, what in outputs if name == b"o1"]
        findings += account.judge_chain("output", written, digests)
        for role in ("whole-w1", "streaming-s1"):
            given = [epoch for seen in self._seen(role) for epoch in seen.epochs]
            findings += account.judge_chain(role, given, digests)
        findings += account.judge_acks("ack", self._seen("ack-a1"), digests)
        findings += account.judge_relay(via, inputs, lag)
        return Outcome(
            self._catalog,
            dict(self._done),
            orders.frontier,
            via.frontier,
            orders.taken_back,
            len(orders.lives) - len(PUBLISHERS),
            findings,
        )


def _go_on(pid: int) -> None:
    """Said more than once: it may have been stopped just before it stopped itself."""
    for _ in range(4):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.2)


def _stopped(pid: int) -> bool:
    """Whether a process was stopped, by itself or by others."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def _values(log: Log, stream: str) -> list[bytes]:
    return [value for batch in log.read(stream) for value in batch.column("value").to_pylist()]


def _counted(log: Log, stream: str) -> account.Counted:
    progress = ProgressLog(log, log.stream(stream))
    lines = [line for _, line in progress.scan(*progress.bounds())]
    stored = {}
    for batch in log.read(stream):
        for row in batch.to_pylist():
            value = account.Stored(row["epoch"][0], row["value"])
            stored[row["segment"], row["offset"]] = value
    return account.count(lines, stored)


def torture_epochs(
    catalogs: Sequence[Catalog],
    faults: int,
    seed: int,
    folder: Path,
    told: Callable[[Catalog, int], None] = lambda catalog, faults: None,
    crews: Sequence[Crew] = CREWS,
) -> Result:
    """Share ``faults`` among the catalogs, one after the other."""
    began = time.monotonic()
    outcomes = []
    with ExitStack() as servers:
        for catalog in catalogs:
            place = folder / f"epochs-{catalog}"
            (place / "seen").mkdir(parents=True)
            url = str(place / "data")
            if catalog == "postgres":
                server = servers.enter_context(running_postgres(place / "server"))
                url = create_database(server, "epochs")
            rng = random.Random(f"{seed} epochs {catalog}")
            share = faults // len(catalogs)
            ordeal = Ordeal(catalog, url, place / "seen", share, rng, crews)
            outcomes.append(ordeal.run(lambda count, catalog=catalog: told(catalog, count)))  # type: ignore[misc]
    return Result(seed, outcomes, time.monotonic() - began)


def show(console: Console, result: Result) -> None:
    """The sums."""
    for each in result.outcomes:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(each.faults.items()))
        console.print(
            f"epochs on {each.catalog}: {sum(each.faults.values())} faults ({faults}); "
            f"{each.epochs} epochs, {each.relayed} relayed, {each.taken_back} rows taken back in "
            f"{each.take_overs} take-overs"
        )
        for finding in each.findings:
            console.print(f"  {finding}", style="red", markup=False, soft_wrap=True)
    console.print(f"epochs: {len(result.findings)} findings in {result.seconds:.0f} s")
