"""Temporary folders: there while somebody uses them, gone afterwards, whatever the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.catalog import scratch
from headrace.catalog.scratch import Scratch, sweep
from tests.support import ROOT, SOURCES, wait_until

LISTENER = """
import sys
from headrace.catalog import open_catalog

catalog = open_catalog(sys.argv[1])
catalog.subscribe("c", lambda: None)
print("ready", flush=True)
word = sys.stdin.readline().strip()
if word == "close":
    catalog.close()
elif word == "raise":
    raise SystemExit("no more")
"""


class Listener:
    """A program that waits for news of a catalog, until it is told how to end."""

    def __init__(self, catalog: Path, temporary: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTENER, str(catalog)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": SOURCES, "TMPDIR": str(temporary)},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def end(self, word: str) -> None:
        if word == "kill":
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate(f"{word}\n", timeout=60)


@pytest.fixture
def far_away(tmp_path: Path) -> Path:
    """A catalog whose path is too long for sockets."""
    return tmp_path / ("long" * 20) / "catalog"


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The temporary folder of the test's programs; pytest's own has too long a path for sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("word", ["close", "raise", "just end"])
def test_a_program_that_ends_leaves_no_folder(far_away: Path, temporary: Path, word: str) -> None:
    first, second = Listener(far_away, temporary), Listener(far_away, temporary)
    assert len(list(temporary.iterdir())) == 2, "each has its own"
    first.end(word)
    (folder,) = temporary.iterdir()
    assert (folder / "wake").readlink() == far_away.resolve() / "wake"
    assert folder.stat().st_mode & 0o777 == 0o700
    second.end(word)
    assert list(temporary.iterdir()) == []


def test_what_killed_programs_left_goes_with_the_next_start(
    far_away: Path, temporary: Path
) -> None:
    for number in range(3):
        Listener(far_away.with_name(f"killed-{number}"), temporary).end("kill")
    assert len(list(temporary.iterdir())) == 1, "each start clears away what was left before"
    running = Listener(far_away, temporary)
    (folder,) = temporary.iterdir()
    assert (folder / "wake").readlink() == far_away.resolve() / "wake"
    running.end("close")
    assert list(temporary.iterdir()) == []


def test_a_program_that_needs_no_folder_clears_away_what_killed_ones_left(
    far_away: Path, temporary: Path
) -> None:
    Listener(far_away, temporary).end("kill")
    (left,) = temporary.glob("headrace-wake-*")
    with tempfile.TemporaryDirectory(dir=temporary) as near:
        Listener(Path(near), temporary).end("close")
    assert not left.exists()


def test_a_forked_child_that_ends_takes_nothing_away() -> None:
    mine = Scratch("headrace-test-")
    child = os.fork()
    if child == 0:
        mine.close()
        os._exit(0)
    wait_until(lambda: os.waitpid(child, os.WNOHANG)[0], "the child's end")
    assert mine.path.exists()
    sweep(mine.path.name, mine.path.parent)
    assert mine.path.exists()
    mine.close()
    assert not mine.path.exists()


def test_a_sweep_leaves_links_and_files_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "x-link").symlink_to(tmp_path / "kept")
    (tmp_path / "x-file").write_text("")
    (tmp_path / "x-stale").mkdir()
    sweep("x-", tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept", "x-file", "x-link"]
    sweep("x-", tmp_path / "nowhere")


def test_a_sweep_between_the_making_and_the_lock_takes_nothing_from_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = scratch._open, 0

    def swept(path: Path) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            path.rmdir()
        descriptor = real(path)
        if calls == 2:
            path.rmdir()
        return descriptor

    monkeypatch.setattr(scratch, "_open", swept)
    mine = Scratch("x-", tmp_path)
    assert calls == 3
    assert list(tmp_path.iterdir()) == [mine.path]
    mine.close()
