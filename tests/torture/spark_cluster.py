"""The torture of a Spark reader through Spark itself, with executors in processes of their own.

``python -m tests.torture.spark_cluster --kills 30 --freezes 10``.  The driver is killed with all
its processes at every point of a batch, or frozen there past its lease while a successor works.
Beside a Headrace sink two Python readers are in the group.  ``--sink parquet`` has a foreign sink
and nobody who could take over, so that killed drivers must not double anything either;
``--readers 2`` gives it company, and then nothing may be missing.

A fault takes 15 to 40 s, on an idle machine.  With ``--minutes`` no fault begins after that time;
what was met by then is judged all the same, which takes a minute or two more.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
import pyarrow.parquet as pq
from cyclopts import Parameter

import headrace.sync
from headrace.spark import group_source
from tests.support import ROOT, SOURCES, signal_session
from tests.torture import spark_cluster_driver
from tests.torture.run import Catalog, new_folder
from tests.torture.server import create_database, running_postgres
from tests.torture.spark_driver import GROUP, POINTS
from tests.torture.spark_readers import Ordeal, Readers, judge, outputs, plan, prepare

LEASE_MS = 4000
PATIENCE_S = 300
ZOMBIE_S = 8
SINK_POINTS = ("staged", "counted")
Sink = Literal["headrace", "parquet"]


class ClusterDriver:
    """A driver with all its processes, in a session of their own."""

    def __init__(self, folder: Path, *words: str) -> None:
        folder.mkdir()
        self._mark = folder / "mark"
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", spark_cluster_driver.__name__, str(folder), *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=os.environ
                | {"PYTHONPATH": SOURCES, group_source.LEASE_VARIABLE: str(LEASE_MS)},
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        return self._process.poll()

    @property
    def is_struck(self) -> bool:
        return self._mark.exists()

    def freeze(self) -> None:
        signal_session(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        self._mark.unlink()
        signal_session(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        while signal_session(self._process.pid, signal.SIGKILL):
            self._process.poll()
            time.sleep(0.02)
        self._process.wait()

    def said(self) -> list[str]:
        """Why its queries have ended."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if line.startswith("ended ")]

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class ClusterOrdeal:
    """Drivers, one after another, and what they meet."""

    def __init__(self, url: str, folder: Path, rng: random.Random, sink: Sink) -> None:
        self.fed = Ordeal(url, folder, rng)
        self.folder = folder
        self.sink = "headrace" if sink == "headrace" else str(folder / "out")
        self.kills = self.freezes = 0
        self.ends: Counter[str] = Counter()
        self.drivers: list[ClusterDriver] = []

    def start(self, point: str) -> ClusterDriver:
        own = self.folder / f"driver-{len(self.drivers)}"
        checkpoint = str(self.folder / "checkpoint")
        made = ClusterDriver(own, self.fed.url, checkpoint, self.sink, point)
        self.drivers.append(made)
        return made

    def strike(self, hr: headrace.sync.Headrace, point: str, fault: str) -> None:
        """One driver meets its fault at a point, and another one goes on."""
        driver = self.start(point)
        fed = 1 if point == "idle" else 1 << 30
        self._wait(hr, driver, lambda: driver.is_struck, f"no batch comes to {point}", fed)
        if fault == "kill":
            driver.kill()
            self.kills += 1
            return
        driver.freeze()
        before, began_s = self.finished(), time.monotonic()
        after = self.start("")

        def went_on() -> bool:
            waited_s = time.monotonic() - began_s
            return self.finished() > before and waited_s > LEASE_MS / 1000

        self._wait(hr, after, went_on, f"nobody goes on for the one frozen at {point}")
        driver.thaw()
        until_s = time.monotonic() + ZOMBIE_S
        while driver.status is None and time.monotonic() < until_s:
            self.fed.feed(hr)
            time.sleep(0.3)
        for each in (driver, after):
            self.ends.update(said.split()[-1] for said in each.said())
            each.kill()
        self.freezes += 1

    def _wait(
        self,
        hr: headrace.sync.Headrace,
        driver: ClusterDriver,
        done: Callable[[], bool],
        why: str,
        feeds: int = 1 << 30,
    ) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not done():
            assert driver.status is None, f"{why}: the driver has ended: {driver.tail()}"
            assert time.monotonic() < until_s, f"{why}: {driver.tail()}"
            if feeds:
                feeds -= 1
                self.fed.feed(hr)
            time.sleep(0.3)

    def finished(self) -> int:
        """The last batch that some driver has finished."""
        names = (path.name for path in (self.folder / "checkpoint" / "commits").glob("*"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def drain(self, hr: headrace.sync.Headrace, copies: int, *, once: bool) -> list[str]:
        """Let a driver without a fault finish, and run on; what is wrong with the output."""
        group = hr.reader_groups.get(GROUP)
        driver = self.drivers[-1] if self.drivers else self.start("")
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            if driver.status is not None:
                driver = self.start("")  # it met what the last one left behind
            if group.lag().events == 0 and len(self.outputs(hr)) >= self.fed.sent * copies:
                break
            time.sleep(0.5)
        found = self.outputs(hr)
        if not once:
            return [each for each in judge(found, self.fed.sent, copies) if "missing" in each]
        return judge(found, self.fed.sent, copies)

    def outputs(self, hr: headrace.sync.Headrace) -> list[int]:
        found = outputs(hr)
        return found if self.sink == "headrace" else found + parquet_values(Path(self.sink))

    def end(self) -> None:
        for driver in self.drivers:
            driver.kill()


def parquet_values(folder: Path) -> list[int]:
    """What Spark's file sink has committed, batch by batch; other files are of dead tasks."""
    files: dict[str, int] = {}
    for log in (folder / "_spark_metadata").glob("[0-9]*"):
        number = int(log.name.removesuffix(".compact"))
        for line in log.read_text().splitlines()[1:]:
            path = json.loads(line)["path"].removeprefix("file://")
            files[path] = min(number, files.get(path, number))
    ordered = sorted(files, key=lambda path: (files[path], path))
    return [
        int(value)
        for path in ordered
        for value in pq.read_table(path, columns=["value"])["value"].to_pylist()
    ]


def torture_cluster(
    catalog: Catalog,
    kills: int,
    freezes: int,
    seed: int,
    folder: Path,
    *,
    sink: Sink = "headrace",
    readers: int = 2,
    points: Sequence[str] = POINTS,
    minutes: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Run one ordeal; what is wrong with the output."""
    rng = random.Random(seed)
    until_s = math.inf if minutes is None else time.monotonic() + 60 * minutes
    if sink == "parquet":
        points = [point for point in points if point not in SINK_POINTS]
    with running_postgres(folder) if catalog == "postgres" else nullcontext() as server:
        url = str(folder / "catalog") if server is None else create_database(server, "spark")
        ordeal = ClusterOrdeal(url, folder, rng, sink)
        with headrace.sync.open(url) as hr:
            prepare(hr)
            others = Readers(url, readers)
            others.start()
            try:
                for number, (point, fault) in enumerate(plan(rng, kills, freezes, points)):
                    began_s = time.monotonic()
                    if began_s > until_s:
                        tell(f"the time is over after {number} faults")
                        break
                    ordeal.strike(hr, point, fault)
                    if number % 5 == 4:
                        ordeal.fed.split(hr)
                    tell(f"{fault} at {point}: {time.monotonic() - began_s:.0f} s")
                once = sink == "headrace" or not (readers or freezes)
                findings = ordeal.drain(hr, 1, once=once)
                if not findings and sink == "headrace":
                    hr.reader_groups.get(GROUP).reset("earliest")
                    after = ordeal.drain(hr, 2, once=True)
                    findings = [f"after the reset: {each}" for each in after]
            finally:
                ordeal.end()
                others.stop()
            total = len(ordeal.outputs(hr))
        tell(
            f"{catalog}, {sink}: {ordeal.kills} kills, {ordeal.freezes} freezes, "
            f"{ordeal.fed.splits} splits, {ordeal.fed.sent} events, "
            f"{total - others.written} outputs by Spark, {others.written} by readers"
        )
    return findings


def main(
    *,
    catalog: Catalog = "sqlite",
    sink: Sink = "headrace",
    kills: int = 30,
    freezes: int = 10,
    readers: Annotated[int | None, Parameter(help="2, or none beside a foreign sink")] = None,
    points: Annotated[str, Parameter(help="where to strike, in turn")] = ",".join(POINTS),
    minutes: Annotated[float | None, Parameter(help="begin no fault after this time")] = None,
    seed: int | None = None,
) -> int:
    """Kill and freeze drivers of Spark, and account for every event."""
    chosen = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    folder = new_folder()
    print(f"seed {chosen}, files in {folder}", flush=True)
    company = readers if readers is not None else 2 * (sink == "headrace")
    findings = torture_cluster(
        *(catalog, kills, freezes, chosen, folder),
        sink=sink,
        readers=company,
        points=points.split(","),
        minutes=minutes,
        tell=lambda text: print(text, flush=True),
    )
    print("\n".join(findings) or "every event is accounted for", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    cyclopts.run(main)
