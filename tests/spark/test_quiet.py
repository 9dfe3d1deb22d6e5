"""A Python worker that Spark closes while it waits for work ends without a traceback."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import wait_until

WORK = """
import sys
from headrace.spark import quiet

if {ours}:
    quiet.end_quietly_when_closed()


def main(infile, outfile):
    asked = infile.read(4)
    outfile.write(b"done")
    if not asked:
        sys.exit(-1)
    outfile.flush()
"""
"""Answers what it is asked; when the other end is gone it answers all the same, as Spark's does."""


@pytest.mark.parametrize("ours", [False, True])
def test_a_worker_that_is_closed_while_it_waits_says_nothing(ours: bool) -> None:
    """Without us Spark's daemon does; when it no longer does, this has had its day."""
    with tempfile.TemporaryDirectory() as name:
        folder, said = Path(name), Path(name) / "said"
        (folder / "pyspark_at_work.py").write_text(WORK.format(ours=ours))
        with said.open("w") as errors:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "pyspark.daemon", "pyspark_at_work"],
                cwd=folder,
                env=os.environ
                | {
                    "PYTHONPATH": name,
                    "PYTHON_UNIX_DOMAIN_ENABLED": "true",
                    "PYTHON_WORKER_FACTORY_SOCK_DIR": name,
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
                link.sendall(b"work")
                assert link.recv(4, socket.MSG_WAITALL) == b"done"
            wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the worker to end", 120)
            assert ("BrokenPipeError" in said.read_text()) is not ours
            assert not ours or said.read_text() == ""
        finally:
            daemon.stdin.close()
            daemon.wait(60)
            daemon.stdout.close()
