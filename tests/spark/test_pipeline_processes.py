"""``headrace pipeline`` as processes: one leads, one stands by, and they may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.groups.partitioned import admin
from headrace.log.compact import CompactionPolicy
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark.records import PipelineStatus, read_status
from tests.log.helpers import create, event, numbers, read
from tests.support import ROOT, wait_until

PATIENCE_S = 240
pytestmark = pytest.mark.timeout(900)  # Two Sparks start at once; seconds, unless others work too.


class Running:
    """A supervisor's process and what it says."""

    def __init__(self, catalog: Path, name: str) -> None:
        self._said = catalog.parent / f"{name}.log"
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "headrace", "--catalog", str(catalog), "pipeline"),
                    *("--master", "local[1]", "--lease-ttl", "4s"),
                    *("--spark-conf", "spark.driver.memory=512m"),
                ],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        def heard() -> bool:
            assert self.process.poll() is None, self.said
            return text in self.said

        wait_until(heard, f"{text!r} in what it says", PATIENCE_S)

    @property
    def children(self) -> list[Path]:
        """Folders that tell of the processes it started, as long as those live."""
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        return [Path("/proc") / pid for pid in found.stdout.split()]


@contextmanager
def pipeline(catalog: Path, name: str) -> Iterator[Running]:
    running = Running(catalog, name)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def add(log: Log, count: int) -> None:
    first = sum(segment.head for segment in log.stream("s").segments)
    for at in range(first, first + count, 50):
        log.append("s", [event(n, key=f"k{n % 11}") for n in range(at, at + 50)])


def queued(log: Log) -> Counter[int]:
    return Counter(int(row["value"]) for row in read(log, "s.g"))


def test_a_standby_takes_over_from_a_killed_leader_and_stops_cleanly(tmp_path: Path) -> None:
    catalog = tmp_path / "data"
    log = open_log(catalog)
    create(log, segments=2)
    admin.create_elastic(log, "s", "g", max_members=3, filter="s.*", wildcards=[1], members=["m"])
    log.set_compaction("s", CompactionPolicy(min_batches=2, min_age_s=0))

    def status() -> PipelineStatus:
        return read_status(log.catalog)

    def led_by(running: Running) -> bool:
        found = status()
        return (
            found.led
            and found.supervisor is not None
            and (found.supervisor.pid == running.process.pid)
        )

    with pipeline(catalog, "first") as first, pipeline(catalog, "second") as second:
        wait_until(lambda: led_by(first) or led_by(second), "a leader", PATIENCE_S)
        leader, standby = (first, second) if led_by(first) else (second, first)
        standby.wait_for("standing by")
        add(log, 500)
        wait_until(lambda: len(queued(log)) == 500, "the work queue to be filled", PATIENCE_S)

        orphans = leader.children
        assert orphans
        leader.process.kill()
        add(log, 500)
        wait_until(lambda: led_by(standby), "the other to take over", PATIENCE_S)
        wait_until(lambda: len(queued(log)) == 1000, "the rest to arrive", PATIENCE_S)
        wait_until(
            lambda: (
                {job.name for job in status().jobs if job.state == "running"}
                == {"compaction/s", "partition/s.g"}
            ),
            "both jobs to be told of",
            PATIENCE_S,
        )
        wait_until(
            lambda: any(job.kind == "compaction" and job.events for job in status().jobs),
            "a compaction",
            PATIENCE_S,
        )
        assert set(queued(log).values()) == {1}, "exactly once"
        wait_until(
            lambda: not any((one / "exe").exists() for one in orphans),
            "Spark to end with its supervisor",
            PATIENCE_S,
        )

        standby.process.send_signal(signal.SIGTERM)
        assert standby.process.wait(PATIENCE_S) == 0, standby.said
        ended = status()
        assert not ended.led
        assert ended.supervisor is not None
        assert ended.supervisor.stopped
        assert {job.state for job in ended.jobs} == {"stopped"}
        assert "Traceback" not in standby.said
    assert sorted(numbers(log)) == list(range(1000))
    log.catalog.close()
