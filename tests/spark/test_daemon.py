"""Spark's daemon of Python workers: one that is closed while it waits for work ends quietly."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import ROOT, wait_until


@pytest.mark.parametrize(
    ("module", "loud"), [("pyspark.daemon", True), ("headrace.spark.daemon", False)]
)
def test_a_worker_that_is_closed_while_it_waits_says_nothing(module: str, loud: bool) -> None:
    """Spark's own says something; when it no longer does, ours has had its day."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        with said.open("w") as errors:
            daemon = subprocess.Popen(
                [sys.executable, "-m", module, "pyspark.worker"],
                cwd=ROOT,
                env=os.environ
                | {
                    "PYTHON_UNIX_DOMAIN_ENABLED": "true",
                    "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
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
            wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the worker to end", 120)
            assert ("BrokenPipeError" in said.read_text()) == loud
            assert loud or said.read_text() == ""
        finally:
            daemon.stdin.close()
            daemon.wait(60)
            daemon.stdout.close()
