"""Bit flips: one bit of a catalog is turned over, and everything is read again.

``python -m tests.torture.flips --flips 500`` prints a table, and the same as JSON with ``--json``.
What can come of a flip:

- ``detected``  an error of Headrace says so
- ``harmless``  everything reads as before
- ``silent``    something reads differently, and nobody says so; ``events`` if it is events that
  are missing, changed or new, ``rest`` if it is only what surrounds them (streams, progress)
- ``raw``       an error that is none of Headrace's own, or no end within a minute or so

What was silent is given to ``headrace doctor --deep`` as well.

Each flip is judged in a process of its own, forked off before anything is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
import msgspec
import pyarrow as pa
from cyclopts import Parameter

import headrace.sync
from headrace.cli.doctor import check_contents
from headrace.errors import HeadraceError
from headrace.log.open import open_log
from tests.torture.run import new_folder

Target = Literal["files", "batches", "database", "rows", "wal"]
Verdict = Literal["detected", "harmless", "silent events", "silent rest", "raw"]

TARGETS: tuple[Target, ...] = ("files", "batches", "database", "rows", "wal")
VERDICTS: tuple[Verdict, ...] = ("detected", "harmless", "silent events", "silent rest", "raw")
READ_S = 90
DATABASE, WAL = "headrace.db", "headrace.db-wal"

app = cyclopts.App(name="python -m tests.torture.flips", help_format="plaintext")


class Flip(msgspec.Struct, frozen=True):
    """One flip, and what came of it."""

    target: Target
    where: str
    verdict: Verdict
    said: str = ""
    audited: bool = False
    """Whether ``headrace doctor --deep`` finds what nobody else said."""


class Result(msgspec.Struct, frozen=True):
    seed: int
    flips: list[Flip]

    def count(self, target: Target, verdict: Verdict) -> int:
        return sum(flip.target == target and flip.verdict == verdict for flip in self.flips)

    def of(self, *verdicts: Verdict) -> list[Flip]:
        return [flip for flip in self.flips if flip.verdict in verdicts]


# --- the catalog ---------------------------------------------------------------------------


def build(folder: Path) -> None:
    """A catalog with a bit of everything; ``clean`` was closed, ``killed`` was not."""
    url = str(folder / "clean")
    with headrace.sync.open(url, housekeeping=False) as hr:
        hr.create_stream("a", ["a.>"], segments=2)
        hr.create_stream("p", ["p.>"], partitions=2)
        hr.groups.create_static("p", "g", max_members=2, members=["m"])
        for number in range(40):
            hr.publish("a.x", b"event %d" % number, key=str(number))
            hr.publish("p.x", b"event %d" % number, key=str(number), producer="p", sequence=number)
        values = [random.Random(row).randbytes(150_000) for row in range(10)]
        hr.append("a", pa.table({"subject": ["a.large"] * 10, "value": pa.array(values)}))
        hr.split("a", 0)
        for number in range(40, 60):
            hr.publish("a.x", b"event %d" % number, key=str(number))
        hr.trim("a", {1: 2})
        with hr.join("p", "g", "m") as member:
            deliveries = iter(member)
            for _ in range(15):
                next(deliveries).ack()
        with hr.session("s") as session:
            session.subscribe("$share/h/a.x", start="earliest")
            deliveries = iter(session)
            for _ in range(10):
                next(deliveries).ack()
    shutil.copytree(url, folder / "killed")
    hr = headrace.sync.open(folder / "killed", housekeeping=False).__enter__()
    for number in range(60, 120):
        hr.publish("a.x", b"event %d" % number, key=str(number))


def read_all(url: str) -> dict[str, Any]:
    """Everything that a program can see: events by stream, and what surrounds them."""
    events: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    with headrace.sync.open(url, create=False, housekeeping=False) as hr:
        for stream in hr.streams(internal=True):
            found = events.setdefault(stream.name, [])
            for batch in hr.read(stream.name):
                names = ("segment", "offset", "timestamp", "subject", "key", "value")
                for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    digest = hashlib.sha256(row[-1]).hexdigest()
                    found.append([*row[:2], *map(str, row[2:5]), digest])
            found.sort()
            rest[stream.name] = str(stream)
        rest["lag"] = [part.events for part in hr.groups.lag("p", "g").parts]
        rest["groups"] = str(hr.groups.list())
        shared = hr.shared_groups.list()
        rest["shared"] = str([(info.properties, info.units) for info in shared])
        rest["sessions"] = str([info.record for info in hr.sessions()])
        with hr.join("p", "g", "m") as member:
            deliveries = iter(member)
            left = hr.groups.lag("p", "g").events
            rest["next"] = sorted(next(deliveries).value.decode() for _ in range(left))
    return {"events": events, "rest": rest}


def audit(url: str) -> list[str]:
    """What ``headrace doctor --deep`` says of a catalog."""
    log = open_log(url, create=False)
    try:
        flaws = [each.found for each in check_contents(log) if each.state != "ok"]
    finally:
        log.catalog.close()
    return flaws


# --- processes -----------------------------------------------------------------------------


def in_child(work: Callable[[], Any]) -> dict[str, Any]:
    """What work returns in a child, or its error."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(READ_S)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)
        try:
            answer = {"seen": work()}
        except HeadraceError as error:
            answer = {"detected": f"{type(error).__name__}: {error}"}
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            answer = {"raw": said}
        with open(writing, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    found: dict[str, Any] = {"raw": f"ended with {status}"}
    if said:
        found = json.loads(said)
    return found


# --- flips ---------------------------------------------------------------------------------


def flip_byte(path: Path, rng: random.Random) -> str:
    size = path.stat().st_size
    at, bit = rng.randrange(size), rng.randrange(8)
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))
    return f"{path.name}, byte {at} of {size}, bit {bit}"


def flip_value(path: Path, rng: random.Random, only: str = "") -> str:
    """Turn over a bit of one value of one row, of any table or of one."""
    with sqlite3.connect(path) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if not name.startswith("sqlite_")
            and connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        ]
        table = only or rng.choice(sorted(tables))
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        rows = connection.execute(f"SELECT rowid, * FROM {table}").fetchall()
        rowid, *values = rng.choice(rows)
        filled = [at for at, value in enumerate(values) if value not in (None, "", b"")]
        at = rng.choice(filled)
        value = flipped(values[at], rng)
        try:
            connection.execute(
                f"UPDATE {table} SET {columns[at]} = ? WHERE rowid = ?", (value, rowid)
            )
        except sqlite3.IntegrityError:
            return "refused by SQLite"
    connection.close()
    return f"{table}.{columns[at]} of row {rowid}"


def flipped(value: Any, rng: random.Random) -> Any:
    if isinstance(value, int):
        return value ^ (1 << rng.randrange(max(1, value.bit_length())))
    if isinstance(value, str):
        at = rng.randrange(len(value))
        return value[:at] + chr(ord(value[at]) ^ (1 << rng.randrange(7))) + value[at + 1 :]
    if isinstance(value, bytes):
        turned = bytearray(value)
        turned[rng.randrange(len(turned))] ^= 1 << rng.randrange(8)
        return bytes(turned)
    return value


def flip(target: Target, folder: Path, rng: random.Random) -> str:
    match target:
        case "files":
            return flip_byte(rng.choice(sorted((folder / "store").rglob("*.parquet"))), rng)
        case "database":
            return flip_byte(folder / DATABASE, rng)
        case "wal":
            return flip_byte(folder / WAL, rng)
        case "batches":
            return flip_value(folder / DATABASE, rng, "batches")
        case "rows":
            return flip_value(folder / DATABASE, rng)


def judge(before: dict[str, Any], after: dict[str, Any]) -> tuple[Verdict, str]:
    if "seen" not in after:
        ((kind, said),) = after.items()
        return ("detected" if kind == "detected" else "raw"), str(said)
    if after["seen"]["events"] != before["events"]:
        return "silent events", differences(before["events"], after["seen"]["events"])
    if after["seen"] != before:
        return "silent rest", differences(before["rest"], after["seen"]["rest"])
    return "harmless", ""


def differences(before: dict[str, Any], after: dict[str, Any]) -> str:
    names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    return ", ".join(sorted(names))


class Flips:
    """A run in ``folder``."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._rng = random.Random(seed)

    def run(
        self, counts: dict[Target, int], tell: Callable[[Flip], None] = lambda flip: None
    ) -> Result:
        built = in_child(lambda: build(self._folder))
        assert "seen" in built, built
        (self._folder / "killed" / "headrace.db-shm").unlink(missing_ok=True)
        whole = {name: self._whole(name) for name in ("clean", "killed")}
        found = []
        for target, count in counts.items():
            name = "killed" if target == "wal" else "clean"
            for _ in range(count):
                found.append(self._one(target, name, whole[name]))
                tell(found[-1])
        return Result(self._seed, found)

    def _whole(self, name: str) -> dict[str, Any]:
        """What is read without any flip, twice the same."""
        first, second = (self._read(self._copy(name)) for _ in range(2))
        assert "seen" in first, first
        verdict, what = judge(first["seen"], second)
        assert verdict == "harmless", what
        seen: dict[str, Any] = first["seen"]
        return seen

    @staticmethod
    def _read(copy: Path) -> dict[str, Any]:
        return in_child(lambda: read_all(str(copy)))

    def _copy(self, name: str) -> Path:
        copy = self._folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        # The address of the store is in the catalog: relative, or of this place.
        shutil.copytree(self._folder / name, copy, ignore=shutil.ignore_patterns("wake"))
        return copy

    def _one(self, target: Target, name: str, whole: dict[str, Any]) -> Flip:
        copy = self._copy(name)
        where = flip(target, copy, self._rng)
        # Reading changes the catalog, so that it is looked at as it was.
        shutil.rmtree(copy.with_name("flipped"), ignore_errors=True)
        shutil.copytree(copy, copy.with_name("flipped"))
        found = self._read(copy)
        verdict, said = judge(whole, found)
        audited = False
        if verdict.startswith("silent"):
            shutil.rmtree(copy)
            shutil.copytree(copy.with_name("flipped"), copy)
            audited = in_child(lambda: audit(str(copy))).get("seen") != []
        return Flip(target, where, verdict, said, audited)


def table_of(result: Result) -> str:
    lines = ["| bits flipped in | times | " + " | ".join(VERDICTS) + " | of the silent: doctor |"]
    lines.append("|---" * (len(VERDICTS) + 3) + "|")
    for target in TARGETS:
        counts = [result.count(target, verdict) for verdict in VERDICTS]
        shown = " | ".join(map(str, counts))
        audited = sum(flip.target == target and flip.audited for flip in result.flips)
        lines.append(f"| {target} | {sum(counts)} | {shown} | {audited} |")
    return "\n".join(lines)


def _summary(flip: Flip) -> str:
    what = flip.said if flip.verdict == "raw" else flip.where.split(" of row")[0].split(",")[0]
    return f"{flip.verdict}, {flip.target}: {what}"


@app.default
def main(
    *,
    flips: Annotated[int, Parameter(help="how many, over all targets")] = 500,
    only: Annotated[tuple[Target, ...], Parameter(help="targets")] = TARGETS,
    seed: Annotated[int | None, Parameter(help="repeat an earlier run")] = None,
    json: Annotated[Path | None, Parameter(help="write every flip to this file")] = None,
) -> int:
    """Flip bits and read everything; exits with 1 when a change of events was silent."""
    chosen = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    counts = Counter(only[number % len(only)] for number in range(flips))
    folder = new_folder()
    result = Flips(folder, chosen).run(counts)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"seed {chosen}\n{table_of(result)}")
    for shown, count in Counter(
        map(_summary, result.of("silent events", "silent rest", "raw"))
    ).items():
        print(f"{count:4} {shown}")
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    return 1 if result.of("silent events", "raw") else 0


if __name__ == "__main__":
    sys.exit(app())
