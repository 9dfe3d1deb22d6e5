"""Hostile command lines: every command there is, with every argument wrong in turn.

``python -m tests.torture.command_lines --calls 5000`` calls that many, in this process and through
the entry point.  Whatever is typed, a command ends: with status 0, 1 or 2, never with a traceback;
with one sentence where it failed; and with nothing changed where its input makes no sense (2).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import msgspec
from cyclopts import App, Parameter

import headrace.sync
from headrace.cli import app as commands
from headrace.cli import run

NAMES = ("orders", "billing", "audit", "m1", "worker", "nobody", "days", "report", "eu", "good")
HOSTILE = (
    "", " ", "-", "--", "-1", "0", "1", "7", "9" * 400, "9" * 5000, "1e400", "nan", "inf", "-inf",
    "0x10", "१", "a\0b", "\udcff\udce9", "\U0001f4a5", "x" * 5000, "/" * 5000, "../../etc/passwd",
    "a b", "a.b", "a.*", ">", "*", "orders.>", "$share/audit/orders.>", "$share//x", "$share/", "$",
    "{", "[" * 9_000, "{}", "null", "m1:0,1", "m1:", ":", "0:1,0:2", "0:1", "0,1", ",",
    "0-10", "5-1", "0x0-0x10", "--json", "15m", "-15m", "999999w", "9" * 30 + "w", "2013-13-45",
    "2013-07-04", "0001-01-01", "9999-12-31T23:59Z", "9999-12-31T23:59:59-23:59", "earliest",
    "latest", "now", "10GB", "1e9GB", "k=v", "=v", "k=", "%s%n", "\x1b[31m", "'", '"', "\n",
    "true", "on", "off", "postgresql://", "s3://", "file:///dev/null", "[/]", "[red]", "\\",
    "audit/billing", "reader/report", "partitioned/audit/billing", "env:NOTHING", "sessions",
    "deep.json", "latin1.csv", "empty", ".", "/dev/null", "y" * 300, "-0.0", "1,1", "0:-1",
    "18446744073709551616", "-9223372036854775809", "1e308", "m1,m1", "http://127.0.0.1:1",
)  # fmt: skip
FOR_EVER = {"up", "serve", "demo", "region run", "pipeline", "sim"}
"""Commands that run until they are stopped, or for long whatever they are told."""
WAITING = {"--follow", "--watch", "--wait", "--timeout", "--exec", "--catalog", "--spark"}
"""Options that make a command wait, or start something: not in this process."""
CALL_S = 300


class Argument(msgspec.Struct, frozen=True):
    name: str
    flag: bool
    required: bool

    @property
    def option(self) -> bool:
        return self.name.startswith("--")


class Failure(msgspec.Struct, frozen=True):
    """A command line that broke a promise."""

    words: tuple[str, ...]
    why: str


def every_command() -> dict[str, list[Argument]]:
    """What each command takes, as it says itself."""
    found = {}
    for name, each in _walk(commands, ()):
        if name not in FOR_EVER:
            found[name] = [
                Argument(one.name, one.hint is bool, one.required)
                for one in each.assemble_argument_collection()
                if one.parse and one.name != "*" and one.name not in WAITING
            ]
    return found


def _walk(node: App, before: tuple[str, ...]) -> Iterator[tuple[str, App]]:
    for name in node:
        if not name.startswith("-"):
            yield from _walk(node[name], (*before, name))
    if before and node.default_command is not None:
        yield " ".join(before), node


def hostile(known: dict[str, list[Argument]], chance: random.Random) -> list[str]:
    """A command line that nobody would type."""
    command = chance.choice(sorted(known))
    takes = known[command]
    words = command.split()
    names = [each for each in takes if not each.option]
    for each in names:
        if each.required or chance.random() < 0.5:
            words.append(_value(chance))
    if chance.random() < 0.1:
        words.append(_value(chance))
    elif chance.random() < 0.1 and len(words) > len(command.split()):
        words.pop()
    options = [each for each in takes if each.option]
    wanted = [each for each in options if each.required and chance.random() < 0.9]
    wanted += chance.sample(options, min(len(options), chance.randint(0, 3)))
    if chance.random() < 0.1 and wanted:
        wanted.append(wanted[-1])  # twice
    for each in wanted:
        words += [each.name] if each.flag else [each.name, _value(chance)]
    if any(each.name == "--idle" for each in options):
        words += ["--idle", "0.01"]  # it would wait for more events
    return words


def _value(chance: random.Random) -> str:
    return chance.choice(NAMES if chance.random() < 0.5 else HOSTILE)


def build(folder: Path) -> None:
    """A catalog with a bit of everything, and files that are no good."""
    with headrace.sync.open(folder / "data", housekeeping=False) as hr:
        hr.regions.name("eu")
        hr.create_stream("orders", ["orders.>"], segments=2)
        hr.create_stream("audit", ["audit.>"], partitions=2)
        hr.create_stream("days", ["days.>"], epochs=headrace.Epochs())
        hr.groups.create_static("audit", "billing", max_members=2, members=["m1"])
        hr.reader_groups.create("report", streams=["orders"])
        hr.shared_groups.declare("audit", "orders.>")
        hr.publish("orders.eu", b"1", key="k")
        hr.publish("audit.eu", b"1", key="k")
        with hr.epoch_publisher("days", "worker") as publisher:
            publisher.append(1, headrace.Event(subject="days.x", value=b"1"), advance_to=2)
        with hr.session("worker") as session:
            session.subscribe("orders.>")
    (folder / "deep.json").write_text('{"subject": "orders.x", "value": ' + "[" * 10_000 + "\n")
    (folder / "latin1.csv").write_bytes(b"subject,value\norders.x,caf\xe9\n")
    (folder / "empty").touch()


class Fuzz:
    """A run in ``folder``, the working folder: each call finds the catalog as it was built."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._known = every_command()
        self.calls: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.failures: list[Failure] = []
        build(folder)
        shutil.copytree(folder / "data", folder / "whole", ignore=shutil.ignore_patterns("wake"))
        self._whole = digest(folder / "data")

    def one(self, words: list[str] | None = None) -> None:
        """Call a command, by chance or as it is given."""
        words = hostile(self._known, self._chance) if words is None else words
        self.calls[_command(self._known, words)] += 1
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _in_time():
                status = run(words)
        except BaseException as error:
            self._failed(words, f"{type(error).__name__}: {error!s:.200}")
            return
        self.statuses[status] += 1
        why = wrong(words, status, err.getvalue())
        changed = digest(self._folder / "data") != self._whole
        if status == 2 and changed:
            why = "status 2, and something was changed"
        if why:
            self._failed(words, why)
        if changed:
            shutil.rmtree(self._folder / "data", ignore_errors=True)
            shutil.copytree(self._folder / "whole", self._folder / "data")

    def _failed(self, words: list[str], why: str) -> None:
        self.failures.append(Failure(tuple(words), why))


def wrong(words: list[str], status: int, said: str) -> str:
    """What is wrong with an answer; nothing if it is as it should be."""
    if status not in (0, 1, 2):
        return f"status {status}"
    if "Traceback" in said:
        return f"a traceback: {said[-300:]}"
    if status == 2:
        lines = [line for line in said.splitlines() if "left out" not in line]
        if len(lines) != 1:
            return f"{len(lines)} lines: {said:.300}"
        if "--json" in words:
            with contextlib.suppress(ValueError):
                return "" if json.loads(lines[0])["message"] else "an empty message"
        if not lines[0].startswith("headrace: ") and "--json" not in words:
            return f"no sentence: {said:.300}"
        if len(lines[0]) > 12_000:
            return f"{len(lines[0])} characters: {said:.100}…"
    return ""


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"did not end within {CALL_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(CALL_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _command(known: dict[str, list[Argument]], words: list[str]) -> str:
    fitting = [each for each in known if words[: len(each.split())] == each.split()]
    return max(fitting, key=len, default="")


def digest(folder: Path) -> str:
    """All that a catalog says, but for who was there when."""
    found = hashlib.sha256()
    with contextlib.closing(sqlite3.connect(folder / "headrace.db")) as connection:
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall():
            if name not in ("leases", "buckets"):
                rows = connection.execute(f"SELECT * FROM {name}").fetchall()
                rows = [row for row in rows if name != "entries" or row[0] not in ("nodes",)]
                found.update(repr((name, rows)).encode())
    return found.hexdigest()


@contextlib.contextmanager
def there(folder: Path) -> Iterator[None]:
    """The working folder, the catalog and the input of the calls."""
    before = os.getcwd(), os.environ.get("HEADRACE_CATALOG"), sys.stdin
    os.chdir(folder)
    os.environ["HEADRACE_CATALOG"] = str(folder / "data")
    with open(os.devnull) as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = before[2]
            os.chdir(before[0])
            del os.environ["HEADRACE_CATALOG"]
            if before[1] is not None:
                os.environ["HEADRACE_CATALOG"] = before[1]


app = cyclopts.App(name="python -m tests.torture.command_lines", help_format="plaintext")


@app.default
def main(
    *,
    calls: Annotated[int, Parameter(help="how many")] = 3000,
    seed: Annotated[int | None, Parameter(help="repeat an earlier run")] = None,
) -> int:
    """Call commands with hostile arguments; exits with 1 when one broke a promise."""
    chosen = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    print(f"seed {chosen}", flush=True)
    with tempfile.TemporaryDirectory() as name, there(Path(name)):
        fuzz = Fuzz(Path(name), chosen)
        for _ in range(calls):
            fuzz.one()
    print(f"{calls} calls of {len(fuzz.calls)} commands; by status {dict(fuzz.statuses)}")
    for each in fuzz.failures:
        print(f"headrace {[word[:60] for word in each.words]}: {each.why}")
    return 1 if fuzz.failures else 0


if __name__ == "__main__":
    sys.exit(app())
