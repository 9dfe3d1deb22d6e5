"""A writer that is paused in the middle of a commit: reading goes on, and who waits says so."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.catalog import gate, open_catalog
from headrace.catalog.sqlite_writer import LOCK_FILE
from headrace.catalog.streams import StreamConfig
from headrace.log.events import Event
from headrace.log.open import open_log
from tests.support import wait_until

PAUSED = """
import fcntl, os, signal, sys
lock = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
print("inside", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = open_log(tmp_path / "data")
    log.create_stream("s", StreamConfig(subjects=("s.>",)))
    log.publish(Event(subject="s.x", value=b"1"))
    log.catalog.close()
    return tmp_path / "data"


@pytest.fixture
def paused(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that was stopped while it held the lock."""
    command = [sys.executable, "-c", PAUSED, str(folder / LOCK_FILE)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        process.send_signal(signal.SIGSTOP)
        yield process
        process.send_signal(signal.SIGCONT)
        process.communicate()


@pytest.mark.usefixtures("paused")
@pytest.mark.parametrize("command", [["stream", "ls"], ["doctor"], ["read", "s"]])
def test_commands_that_read_wait_for_no_writer(folder: Path, command: list[str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "headrace", "--catalog", str(folder), *command],
        check=True,
        capture_output=True,
        timeout=20,
    )


def test_who_waits_to_write_says_for_whom(
    folder: Path,
    paused: subprocess.Popen[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "PATIENCE_S", 0.2)
    with caplog.at_level(logging.WARNING), closing(open_catalog(folder)) as catalog:
        thread = threading.Thread(target=catalog.entries.put, args=("b", "k", b"v"))
        thread.start()
        wait_until(lambda: caplog.records, "a word")
        told = caplog.records[0].getMessage()
        assert told.startswith(f"{folder / LOCK_FILE}: waiting for ")
        assert f"process {paused.pid} ({sys.executable} -c" in told
        assert catalog.entries.get("b", "k") is None
        paused.send_signal(signal.SIGCONT)
        paused.communicate()
        thread.join()
        assert catalog.entries.get("b", "k") is not None


def test_who_does_not_wait_long_says_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = os.open(folder / LOCK_FILE, os.O_RDWR)
    with closing(open_catalog(folder)) as catalog:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=catalog.entries.put, args=("b", "k", b"v"))
        thread.start()
        wait_until(lambda: gate._waiting, "somebody at the gate")
        fcntl.flock(lock, fcntl.LOCK_UN)
        thread.join()
        assert not gate._waiting
    os.close(lock)
    assert caplog.records == []
