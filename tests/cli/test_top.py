"""``headrace top``: everything on one screen, live."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from headrace.catalog.streams import StreamConfig
from headrace.cli import run
from headrace.cli.top_screen import Choice, Seen, Size, Sorting, keys_of, pressed, screen, sparkline
from headrace.groups.partitioned import admin
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.node import looking

WIDE = Size(140, 40)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """On SQLite: what a look sees is tested on both catalogs elsewhere."""
    found = open_log(str(tmp_path / "log"), create=True)
    with closing(found.catalog):
        yield found


@pytest.fixture
def seen(log: Log) -> Seen:
    """Two streams with a group each, of which one is behind."""
    for stream in ("orders", "clicks"):
        log.create_stream(stream, StreamConfig(subjects=(f"{stream}.*",), partitions=2))
        admin.create_static(log, stream, "audit", max_members=2, members=["m1", "m2"])
    log.append("orders", [Event(subject=f"orders.{n}", value=b"x") for n in range(8)])
    found = Seen()
    look(log, found)
    return found


def look(log: Log, seen: Seen) -> None:
    found = looking.look(log.catalog, seen.look)
    seen.add(found.look, found.decisions)


def drawn(seen: Seen, choice: Choice = Choice(), size: Size = WIDE) -> str:  # noqa: B008
    out = Console(width=size.columns, height=size.lines, highlight=False, record=True, file=None)
    with out.capture() as capture:
        out.print(screen(seen, choice, "catalog here", size))
    return capture.get()


def press(seen: Seen, *keys: str, choice: Choice = Choice()) -> Choice:  # noqa: B008
    for key in keys:
        choice = pressed(choice, key, seen)
    return choice


def test_the_screen_has_groups_worst_first_streams_findings_and_decisions(seen: Seen) -> None:
    text = drawn(seen)
    rows = [line for line in text.splitlines() if "/audit" in line and "static" in line]
    assert [row.split()[0] for row in rows] == ["orders/audit", "clicks/audit"]
    assert " 8 " in rows[0]
    assert "no instance of m1" in text
    assert "the group was created" in text
    assert "2 streams  2 groups" in text


@pytest.mark.parametrize("size", [Size(140, 40), Size(80, 24), Size(40, 10), Size(20, 5)])
@pytest.mark.parametrize("keys", [(), ("j",), ("enter",)])
def test_a_screen_fits_the_terminal(seen: Seen, size: Size, keys: tuple[str, ...]) -> None:
    lines = drawn(seen, press(seen, *keys), size).splitlines()
    assert all(len(line) <= size.columns for line in lines)
    if size.lines >= 24:
        assert len(lines) <= size.lines


def test_what_is_narrow_shows_the_lag_whole(seen: Seen) -> None:
    assert any(
        line.startswith("orders/audit") and " 8 " in line
        for line in drawn(seen, size=Size(40, 24)).splitlines()
    )


def test_rates_and_trends_come_of_two_looks(seen: Seen, log: Log) -> None:
    log.append("clicks", [Event(subject=f"clicks.{n}", value=b"x") for n in range(100)])
    found = looking.look(log.catalog, seen.look)
    assert seen.look is not None
    # As if two seconds lay between the looks.
    later = msgspec.structs.replace(found.look, seen_us=seen.look.seen_us + 2_000_000)
    seen.add(later, found.decisions)
    text = drawn(seen)
    assert "in 50/s" in text
    row = next(line for line in text.splitlines() if line.startswith("clicks "))
    assert row.split()[-2:] == ["50", "▁█"]


def test_keys_choose_open_and_leave_a_group(seen: Seen) -> None:
    chosen = press(seen, "down")
    assert chosen.group == "orders/audit"
    assert press(seen, "down", "down").group == "clicks/audit"
    assert press(seen, "down", "down", "down").group == "clicks/audit"
    assert press(seen, "up").group == "clicks/audit"
    opened = press(seen, "enter")
    assert opened.opened
    text = drawn(seen, opened)
    assert "static group orders/audit consumes stream orders" in text
    assert "clicks/audit" not in "".join(text.splitlines()[5:])
    assert not press(seen, "enter", "esc").opened
    assert press(seen, "enter", "esc", "esc").over
    assert press(seen, "q").over
    assert press(seen, "x", "7") == Choice()


def test_the_cursor_stays_on_its_group_when_the_order_changes(seen: Seen) -> None:
    choice = press(seen, "down", "s", "s", "s")
    assert (choice.order, choice.group) == (Sorting.NAME, "orders/audit")
    assert press(seen, "s", choice=choice).order is Sorting.WORST


def test_a_group_that_goes_while_it_is_open_gives_way_to_the_list(seen: Seen, log: Log) -> None:
    opened = press(seen, "enter")
    admin.delete(log, "orders", "audit")
    look(log, seen)
    assert "clicks/audit" in drawn(seen, opened)


def test_a_catalog_that_is_away_is_said_and_the_last_look_stays(seen: Seen) -> None:
    seen.away = "the server does not answer"
    text = drawn(seen)
    assert "cannot be read now: the server does not answer" in text
    assert "orders/audit" in text


def test_names_are_no_markup(log: Log) -> None:
    log.create_stream("a", StreamConfig(subjects=("a.>",)))
    found = Seen()
    look(log, found)
    found.away = "[bold]x[/bold]"
    assert "[bold]x[/bold]" in drawn(found)


def test_bars_and_keys() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert keys_of("\x1b[B\r s\x1b") == ["down", "enter", " ", "s", "esc"]


def test_without_a_terminal_it_says_what_to_use_instead(
    log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "log")
    assert run(["--catalog", place, "top"]) == 2
    assert "headrace status" in capsys.readouterr().err
    assert run(["--catalog", place, "top", "--every", "0s"]) == 2
    assert "0.2s" in capsys.readouterr().err


# -- on a real terminal -----------------------------------------------------------------------


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self.own, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.before = termios.tcgetattr(inner)
        self.inner = inner
        env = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=env,
            start_new_session=True,
            # So that Ctrl-C on it is a signal for the process.
            preexec_fn=lambda: fcntl.ioctl(inner, termios.TIOCSCTTY, 0),
        )
        self.text = ""

    def until(self, words: str, limit_s: float = 60.0) -> None:
        """Read until some words were shown."""
        end_s = time.monotonic() + limit_s
        while words not in self.text:
            ready, _, _ = select.select([self.own], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"{words!r} was not shown: {self.text[-2000:]}"
            self.text += os.read(self.own, 65536).decode(errors="replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.own)
        os.close(self.inner)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    place = str(tmp_path / "data")
    made = run(["--catalog", place, "stream", "create", "orders", "--subjects", "orders.>"])
    assert made == 0
    found = Terminal(sys.executable, "-m", "headrace", "--catalog", place, "top")
    yield found
    found.close()


@pytest.mark.parametrize("ends", ["q", "\x03", "SIGINT"])
def test_a_terminal_is_left_as_it_was(terminal: Terminal, ends: str) -> None:
    terminal.until("orders")
    if ends == "SIGINT":
        terminal.process.send_signal(signal.SIGINT)
    else:
        os.write(terminal.own, ends.encode())
    terminal.until("\x1b[?1049l")  # the alternate screen is left
    assert terminal.process.wait(30) == (0 if ends == "q" else 130)
    assert termios.tcgetattr(terminal.inner)[3] == terminal.before[3]
