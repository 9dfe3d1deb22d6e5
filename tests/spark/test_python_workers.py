"""Spark's Python workers: idle ones end without a traceback, and all begin their work sooner."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import wait_until

WORK = """
import gc
import sys
from headrace.spark import python_workers

if {ours}:
    python_workers.tend_workers()


def main(infile, outfile):
    asked = infile.read(4)
    outfile.write(gc.get_freeze_count().to_bytes(4, "big"))
    if not asked:
        sys.exit(-1)
    outfile.flush()
"""
"""Answers what it is asked; when the other end is gone it answers all the same, as Spark's does."""


@contextmanager
def a_worker(folder: Path, *, ours: bool) -> Iterator[tuple[int, socket.socket]]:
    """A worker of Spark's daemon, by its process id, and a link to it."""
    (folder / "pyspark_at_work.py").write_text(WORK.format(ours=ours))
    with (folder / "said").open("w") as errors:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "pyspark.daemon", "pyspark_at_work"],
            cwd=folder,
            env=os.environ
            | {
                "PYTHONPATH": str(folder),
                "PYTHON_UNIX_DOMAIN_ENABLED": "true",
                "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
                "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
                "SPARK_REUSE_WORKER": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    try:
        (length,) = struct.unpack("!i", daemon.stdout.read(4))
        path = daemon.stdout.read(length).decode()
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            (worker,) = struct.unpack("!i", link.recv(4, socket.MSG_WAITALL))
            yield worker, link
    finally:
        daemon.stdin.close()
        daemon.wait(60)
        daemon.stdout.close()


def asked(link: socket.socket) -> int:
    """How many objects a worker's collections leave out, as its next piece of work sees it."""
    link.sendall(b"work")
    return int.from_bytes(link.recv(4, socket.MSG_WAITALL), "big")


@pytest.mark.parametrize("ours", [False, True])
def test_a_worker_that_is_closed_while_it_waits_says_nothing(ours: bool) -> None:
    """Without us Spark's daemon does; when it no longer does, this has had its day."""
    with tempfile.TemporaryDirectory() as name:
        with a_worker(Path(name), ours=ours) as (worker, link):
            asked(link)
            link.close()
            wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the worker to end", 120)
        said = (Path(name) / "said").read_text()
        assert ("BrokenPipeError" in said) is not ours
        assert not ours or said == ""


def test_what_a_worker_has_loaded_is_not_looked_through_after_each_piece_of_work() -> None:
    with tempfile.TemporaryDirectory() as name, a_worker(Path(name), ours=True) as (_, link):
        first, second, third = (asked(link) for _ in range(3))
    assert first == 0
    assert second > 10_000
    assert third <= second  # once: what later work leaves is garbage like any other
