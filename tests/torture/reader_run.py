"""A torture of readers: killed, frozen past their leases, killed while frozen, put offline.

Segments split and merge, checkpoints are taken in between and gone back to, a stream is dropped.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
from rich.console import Console

import headrace
import headrace.sync
from headrace.errors import (
    CatalogUnavailableError,
    CheckpointTimeoutError,
    HeadraceError,
    TooManyCheckpointsError,
)
from headrace.log.events import Event
from tests.support import Process
from tests.torture.reader_account import Output, Phase, Place, acked_at, judge
from tests.torture.reader_worker import LEASE_MS
from tests.torture.run import Catalog
from tests.torture.server import create_database, running_postgres

READERS = 4
KEYS = 40
FED = 30
PATIENCE_S = 120


class Outcome(msgspec.Struct, frozen=True):
    """One ordeal."""

    catalog: str
    faults: dict[str, int]
    events: int
    outputs: int
    resets: int
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
    """Readers of one group in processes of their own, and whoever does them harm."""

    def __init__(self, catalog: str, url: str, faults: int, rng: random.Random) -> None:
        self._catalog = catalog
        self._url = url
        self._faults = faults
        self._rng = rng
        self._readers: dict[str, Process] = {}
        self._frozen: dict[str, float] = {}
        self._names = iter(f"r{n}" for n in range(100_000))
        self._done: Counter[str] = Counter()
        self._next = 0
        self._taken: list[headrace.Checkpoint] = []
        self._failures: list[str] = []
        self._doomed: list[Process] = []
        self._resets: list[tuple[int, headrace.Checkpoint | None]] = []

    def run(self, told: Callable[[int], None]) -> Outcome:
        with headrace.sync.open(self._url, housekeeping=False) as hr:
            self._hr = hr
            for stream in ("orders", "extra", "out"):
                hr.create_stream(stream, [f"{stream}.>"], segments=1 if stream == "out" else 3)
            self._group = hr.reader_groups.create(
                "report", streams=["orders", "extra"], checkpoints_kept=5
            )
            self._resets.append((self._group.info().revision, None))
            try:
                while len(self._readers) < READERS:
                    self._start(next(self._names))
                while sum(self._done.values()) < self._faults:
                    self._feed()
                    self._harm()
                    told(sum(self._done.values()))
                    time.sleep(self._rng.uniform(0.05, 0.3))
                self._calm()
                return self._account()
            finally:
                for reader in (*self._readers.values(), *self._doomed):
                    reader.kill()

    def _feed(self) -> None:
        numbers = range(self._next, self._next + FED)
        self._next += FED
        self._hr.append(
            "orders",
            [Event(subject="orders.x", key=str(n % KEYS), value=str(n).encode()) for n in numbers],
        )

    def _start(self, name: str) -> None:
        self._readers[name] = Process("tests.torture.reader_worker", self._url, name)

    def _harm(self) -> None:
        for name in [name for name, until in self._frozen.items() if time.monotonic() > until]:
            del self._frozen[name]
        kinds = ("kill", "kill", "freeze", "split", "merge", "checkpoint", "checkpoint", "reset",
                 "offline", "close", "join", "drop")  # fmt: skip
        kind = self._rng.choice(kinds)
        try:
            if getattr(self, f"_{kind}")():
                self._done[kind] += 1
        except CatalogUnavailableError:
            return  # somebody was frozen with the lock in hand

    def _pick(self) -> str | None:
        awake = [name for name in self._readers if name not in self._frozen]
        return self._rng.choice(awake) if len(awake) > 1 else None

    def _kill(self) -> bool:
        name = self._pick()
        if name is None:
            return False
        self._readers.pop(name).kill()
        # Sometimes the same name comes back, and has its segments again.
        self._start(name if self._rng.random() < 0.5 else next(self._names))
        return True

    def _freeze(self) -> bool:
        name = self._pick()
        if name is None or len(self._frozen) > 1:
            return False
        pid = self._readers[name].pid
        ends = signal.SIGKILL if self._rng.random() < 0.3 else signal.SIGCONT
        frozen_s = LEASE_MS / 1000 * self._rng.uniform(0.5, 2)
        os.kill(pid, signal.SIGSTOP)
        self._frozen[name] = time.monotonic() + frozen_s
        # By a thread: it may be frozen with the lock in hand that everybody waits for.
        threading.Timer(frozen_s, os.kill, (pid, ends)).start()
        if ends is signal.SIGKILL:
            self._doomed.append(self._readers.pop(name))
            del self._frozen[name]
            self._start(next(self._names))
        return True

    def _split(self) -> bool:
        open_segments = self._hr.stream("orders").open_segments
        if len(open_segments) > 8:
            return False
        self._hr.split("orders", self._rng.choice(open_segments).number)
        return True

    def _merge(self) -> bool:
        open_segments = self._hr.stream("orders").open_segments
        if len(open_segments) < 3:
            return False
        at = self._rng.randrange(len(open_segments) - 1)
        self._hr.merge("orders", [s.number for s in open_segments[at : at + 2]])
        return True

    def _checkpoint(self) -> bool:
        name = f"c{len(self._taken)}-{self._rng.getrandbits(32):x}"
        try:
            self._taken.append(self._group.checkpoint(name, timeout_s=LEASE_MS / 1000 * 2))
        except (CheckpointTimeoutError, TooManyCheckpointsError):
            with suppress(HeadraceError):
                self._group.cancel_checkpoint()
            return False
        return True

    def _reset(self) -> bool:
        if not self._taken:
            return False
        # A text that was kept is as good as one that the group still knows.
        checkpoint = headrace.Checkpoint.parse(str(self._rng.choice(self._taken)))
        self._resets.append((self._group.reset(checkpoint), checkpoint))
        return True

    def _offline(self) -> bool:
        name = self._pick()
        return name is not None and self._group.offline(name)

    def _close(self) -> bool:
        name = self._pick()
        if name is None or self._frozen:
            return False  # who is frozen may hold the lock that closing waits for
        reader = self._readers.pop(name)
        with suppress(OSError):
            reader.tell("close")
        if reader.wait(PATIENCE_S) != 0:
            self._failures.append(f"{name} did not close well")
        self._start(next(self._names))
        return True

    def _join(self) -> bool:
        if len(self._readers) >= READERS + 2:
            return False
        self._start(next(self._names))
        return True

    def _drop(self) -> bool:
        if self._done["drop"] or sum(self._done.values()) < self._faults // 2:
            return False
        self._hr.delete_stream("extra", force=True)
        return True

    def _calm(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._group.lag().events and time.monotonic() < deadline:
            time.sleep(0.2)

    def _account(self) -> Outcome:
        events: dict[Place, int] = {}
        for batch in self._hr.read("orders"):
            for row in batch.to_pylist():
                events[row["segment"], row["offset"]] = int(row["value"])
        outputs = []
        for batch in self._hr.read("out"):
            for row in batch.to_pylist():
                number, token, stream, segment, offset = row["value"].decode().split()
                if stream == "orders":
                    outputs.append(Output(int(number), int(token), (int(segment), int(offset))))
        graph = {s.number: s.predecessors for s in self._hr.stream("orders").segments}
        phases = [
            Phase(
                revision,
                frozenset()
                if checkpoint is None
                else acked_at(checkpoint, events, graph, "orders"),
            )
            for revision, checkpoint in self._resets
        ]
        findings = judge(events, outputs, phases, KEYS) + self._failures
        return Outcome(
            self._catalog, dict(self._done), len(events), len(outputs), len(phases) - 1, findings
        )


def torture_readers(
    catalogs: Sequence[Catalog],
    faults: int,
    seed: int,
    folder: Path,
    told: Callable[[Catalog, int], None] = lambda catalog, faults: None,
) -> Result:
    """Share ``faults`` among the catalogs, one after the other."""
    began = time.monotonic()
    outcomes = []
    with ExitStack() as servers:
        for catalog in catalogs:
            place = folder / f"readers-{catalog}"
            place.mkdir(parents=True)
            url = str(place / "data")
            if catalog == "postgres":
                server = servers.enter_context(running_postgres(place / "server"))
                url = create_database(server, "readers")
            rng = random.Random(f"{seed} readers {catalog}")
            ordeal = Ordeal(catalog, url, faults // len(catalogs), rng)
            outcomes.append(ordeal.run(lambda count, catalog=catalog: told(catalog, count)))  # type: ignore[misc]
    return Result(seed, outcomes, time.monotonic() - began)


def show(console: Console, result: Result) -> None:
    """The sums."""
    for each in result.outcomes:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(each.faults.items()))
        console.print(
            f"readers on {each.catalog}: {sum(each.faults.values())} faults ({faults}); "
            f"{each.events} events, {each.outputs} outputs, {each.resets} resets"
        )
        for finding in each.findings:
            console.print(f"  [red]{finding}[/red]")
    console.print(f"readers: {len(result.findings)} findings in {result.seconds:.0f} s")
