"""Interrupts by signal in blocking publishes: what they leave behind for others.

``python -m tests.torture.interrupts --interrupts 10000`` has a program struck that often
(``interrupted``).  After each, another process writes: within a second, or a lock was left.  Then
the struck program writes itself, and at the end it closes.  What either was told is durable is
in the log, once; what was struck is there once or not at all.
"""

from __future__ import annotations

import queue
import random
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import cyclopts
import msgspec
from cyclopts import Parameter

import headrace.sync
from tests.support import Process
from tests.torture.account import Finding
from tests.torture.interrupted import STREAM
from tests.torture.run import new_folder

WRITE_S = 1.0
"""A second process writes within this."""
GIVE_UP_S = 20.0
WAL_BYTES_MAX = 64 << 20
FINDINGS_MAX = 50
PROGRAM_INTERRUPTS = 2500
"""Interrupts of one program, before the next one takes its place."""

app = cyclopts.App(name="python -m tests.torture.interrupts", help_format="plaintext")


class Result(msgspec.Struct):
    """What came of a run."""

    seed: int
    interrupts: int = 0
    told: int = 0
    """Writes of the struck program that returned."""
    in_doubt: int = 0
    """Of those that were struck, how many are in the log."""
    locks_left: int = 0
    programs_stuck: int = 0
    slowest_ms: float = 0.0
    """Of the other process's writes."""
    wal_bytes_max: int = 0
    seconds: float = 0.0
    findings: list[Finding] = msgspec.field(default_factory=list)


class Witness:
    """Another user of the catalog, who writes when asked; on a thread, since it may get stuck."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.written = 0
        self.owed = False
        """Whether the last write has not returned."""

    def write(self, timeout_s: float) -> float | None:
        """Seconds that a publish took; None if it still waits."""
        if self.owed:
            self._done.get(timeout=GIVE_UP_S)
        self.owed = True
        self._asked.put(True)
        try:
            took_s = self._done.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self.owed = False
        return took_s

    def close(self) -> None:
        self._asked.put(False)
        self._thread.join(GIVE_UP_S)

    def _run(self) -> None:
        with headrace.sync.open(self._url, housekeeping=False) as hr:
            while self._asked.get():
                began = time.monotonic()
                if self.written % 100 == 99:
                    with headrace.sync.open(self._url, housekeeping=False) as other:
                        other.publish("struck.witness", b"w")
                else:
                    hr.publish("struck.witness", b"w")
                self.written += 1
                self._done.put(time.monotonic() - began)


class Interrupts:
    """One run on a catalog in ``folder``."""

    def __init__(self, folder: Path, interrupts: int, seed: int, write_s: float = WRITE_S) -> None:
        self._write_s = write_s
        self._url = str(folder / "data")
        self._wal = folder / "data" / "headrace.db-wal"
        self._wanted = interrupts
        self._told: list[str] = []
        self.result = Result(seed)

    def run(self) -> Result:
        began = time.monotonic()
        with headrace.sync.open(self._url, housekeeping=False) as hr:
            hr.create_stream(STREAM, ["struck.>"])
        witness = Witness(self._url)
        programs = 0
        while self.result.interrupts < self._wanted and len(self.result.findings) < FINDINGS_MAX:
            count = min(PROGRAM_INTERRUPTS, self._wanted - self.result.interrupts)
            programs += 1
            self._strike(witness, self.result.seed + programs, count)
        witness.close()
        self._account(witness.written)
        self.result.seconds = time.monotonic() - began
        return self.result

    def _strike(self, witness: Witness, seed: int, count: int) -> None:
        program = Process("tests.torture.interrupted", self._url, str(seed), str(count))
        try:
            while (line := self._next_line(program)) != "closed":
                if line.startswith("+"):
                    self._told.append(line[2:])
                elif line == "!":
                    self._struck(witness)
                    program.tell("go")
                elif line == "stuck":
                    self.result.programs_stuck += 1
                    self._find("stuck program", f"it cannot write after an interrupt (seed {seed})")
                    return
                self._measure()
            program.finish()
        except (AssertionError, queue.Empty) as error:
            self._find("program failed", f"{error or type(error)} (seed {seed})")
            self.result.interrupts += 1
        finally:
            program.kill()

    def _next_line(self, program: Process) -> str:
        """Its next line; a program that says nothing for long is stuck, and killed."""
        timer = threading.Timer(GIVE_UP_S, program.kill)
        timer.start()
        try:
            return program.line()
        finally:
            timer.cancel()

    def _struck(self, witness: Witness) -> None:
        self.result.interrupts += 1
        took_s = witness.write(self._write_s)
        if took_s is None:
            self.result.locks_left += 1
            self._find("lock left", f"others wait after interrupt {self.result.interrupts}")
        else:
            self.result.slowest_ms = max(self.result.slowest_ms, took_s * 1000)

    def _measure(self) -> None:
        if self.result.interrupts % 50 == 0 and self._wal.exists():
            size = self._wal.stat().st_size
            self.result.wal_bytes_max = max(self.result.wal_bytes_max, size)

    def _account(self, written: int) -> None:
        with headrace.sync.open(self._url, housekeeping=False) as hr:
            found: Counter[str] = Counter()
            witnessed = 0
            for batch in hr.read(STREAM):
                for subject, value in zip(
                    batch.column("subject").to_pylist(),
                    batch.column("value").to_pylist(),
                    strict=True,
                ):
                    if subject == "struck.x":
                        found[value.decode()] += 1
                    witnessed += subject == "struck.witness"
        told = set(self._told)
        self.result.told = len(told)
        self.result.in_doubt = len(set(found) - told)
        missing = sorted(told - set(found))
        twice = [value for value, count in found.items() if count > 1]
        if missing:
            self._find("missing", f"{len(missing)} that were durable: {missing[:5]}")
        if twice:
            self._find("twice", f"{len(twice)}: {twice[:5]}")
        if witnessed != written:
            self._find("missing", f"{witnessed} of {written} of the other process")
        if self.result.wal_bytes_max > WAL_BYTES_MAX:
            self._find("write-ahead log", f"grew to {self.result.wal_bytes_max >> 20} MB")

    def _find(self, kind: str, detail: str) -> None:
        self.result.findings.append(Finding(kind, detail))


@app.default
def main(
    *,
    interrupts: Annotated[int, Parameter(help="how often a program is struck")] = 10_000,
    seed: Annotated[
        int | None, Parameter(help="repeat an earlier run, as far as that goes")
    ] = None,
) -> int:
    """Strike a program that publishes, and see what others can do; exits with 1 on any finding."""
    chosen = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    folder = new_folder()
    result = Interrupts(folder, interrupts, chosen).run()
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(result)).decode() + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if result.findings else 0


if __name__ == "__main__":
    sys.exit(app())
