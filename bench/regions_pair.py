"""Two regions for the benchmarks: linked, with their programs, and read from a third process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.catalog.streams import StreamConfig
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.regions.linking import link, name_region
from headrace.regions.records import AGENT_LEASE

NAMES = ("eu", "us")
STREAM = "bench"
PATIENCE_S = 60.0

_TAIL = """
import asyncio, struct, sys, time, headrace
async def main():
    async with headrace.open(sys.argv[1]) as hr:
        reading, left = hr.tail("bench"), int(sys.argv[2])
        pending = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(0.5)
        print("ready", flush=True)
        while left > 0:
            batch = await pending
            now = time.perf_counter_ns()
            sent = struct.unpack("<q", batch.column("value")[0].as_py()[:8])[0]
            print((now - sent) / 1e6, batch.num_rows)
            left -= batch.num_rows
            pending = asyncio.ensure_future(anext(reading))
        pending.cancel()
asyncio.run(main())
"""


class Pair:
    """Two regions that share a stream, on SQLite; their programs run on demand."""

    def __init__(self, folder: Path, segments: int = 4) -> None:
        self.paths = {name: folder / name for name in NAMES}
        self.logs: dict[str, Log] = {}
        self._programs: dict[str, list[subprocess.Popen[str]]] = {name: [] for name in NAMES}
        for name, path in self.paths.items():
            self.logs[name] = open_log(str(path))
            name_region(self.logs[name], name)
        config = StreamConfig(subjects=(f"{STREAM}.>",), partitions=segments)
        self.eu.create_stream(STREAM, config)
        link(self.eu, STREAM, "us", here=str(self.paths["eu"]), catalog=str(self.paths["us"]))

    @property
    def eu(self) -> Log:
        return self.logs["eu"]

    @property
    def us(self) -> Log:
        return self.logs["us"]

    def run(self) -> None:
        """Start ``headrace region run`` in both, and wait until their agents work."""
        for name, path in self.paths.items():
            self.start(name, "-m", "headrace", "--catalog", str(path), "region", "run")
        for name in NAMES:
            wait(lambda name=name: self._has_agent(name), f"an agent in {name}")  # type: ignore[misc]

    def start(self, region: str, *words: str) -> subprocess.Popen[str]:
        """A Python program of a region; it goes when the region does."""
        program = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._programs[region].append(program)
        return program

    def tail(self, region: str, count: int) -> subprocess.Popen[str]:
        """A reader that prints how old the first event of each batch is, up to ``count``."""
        program = self.start(region, "-c", _TAIL, str(self.paths[region]), str(count))
        assert program.stdout is not None
        program.stdout.readline()
        return program

    def kill(self, region: str) -> None:
        """All programs of a region, at once."""
        for program in self._programs[region]:
            program.kill()
        for program in self._programs.pop(region):
            program.communicate()
        self._programs[region] = []

    def cpu_s(self, region: str) -> float:
        """CPU time that the programs of a region have taken so far."""
        return sum(_cpu_s(program.pid) for program in self._programs[region])

    def close(self) -> None:
        for name in NAMES:
            self.kill(name)
            self.logs[name].catalog.close()

    def _has_agent(self, name: str) -> bool:
        return self.logs[name].catalog.leases.get(AGENT_LEASE) is not None


@contextmanager
def pair(folder: Path, segments: int = 4) -> Iterator[Pair]:
    """A pair that is gone in the end."""
    made = Pair(folder, segments)
    try:
        yield made
    finally:
        made.close()


def wait(condition: Callable[[], bool], what: str, pause_s: float = 0.02) -> None:
    """Until something holds; what does not come is an error."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_S:g} s in vain for {what}")
        time.sleep(pause_s)


def ages(program: subprocess.Popen[str]) -> list[float]:
    """How old each event was that a tail has read, at most, when it has come to its end."""
    assert program.stdout is not None
    found: list[float] = []
    for line in program.stdout:
        age, rows = line.split()
        found += [float(age)] * int(rows)
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
