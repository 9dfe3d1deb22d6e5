"""The account of regions: what was published, given and acked where, and what that must not be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec


class Line(msgspec.Struct, frozen=True, order=True):
    """A program was given an event, or its ack came back (``got``, ``acked``, ``refused``)."""

    at_ns: int
    what: str
    value: str
    region: str = ""


class Loss(msgspec.Struct, frozen=True):
    """From this moment on a region did without another; ``known`` was acked by then, as it knew."""

    at_ns: int
    region: str
    known: frozenset[str]
    acked_until_ns: int = 0
    """Of a group that moved by snapshot: until then, the other region went on acking."""


class Counted(msgspec.Struct, frozen=True):
    """How it went."""

    published: int
    acked: int
    in_doubt: int
    """Given, and whether they were acked is known to nobody: their program died."""
    again: int
    """Given again although they had been acked; only after a loss."""
    findings: tuple[str, ...]


def read(path: Path, region: str) -> list[Line]:
    """A journal; a line that its program did not finish does not count."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="ascii").splitlines(keepends=True):
            if line.endswith("\n"):
                at, what, value = line.split()
                found.append(Line(int(at), what, value, region))
    return found


class Tail:
    """Counts the acks of a journal while it grows; each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._rest = b""
        self._acked = 0

    def acked(self) -> int:
        """How many acks have come back so far."""
        if self._path.exists():
            with self._path.open("rb") as journal:
                journal.seek(self._place)
                data = journal.read()
            self._place += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._acked += sum(line.split(b" ")[1] == b"acked" for line in lines)
        return self._acked


def judge(
    published: Sequence[str],
    lines: Iterable[Line],
    losses: Sequence[Loss] = (),
    in_doubt_max: int = 0,
) -> Counted:
    """``published`` values are ``region-key-number``, ascending for each region and key."""
    acked: dict[str, list[Line]] = {}
    got: set[str] = set()
    last: dict[tuple[str, str], int] = {}
    again: list[str] = []
    findings: list[str] = []
    for line in sorted(lines):
        if line.what == "acked":
            acked.setdefault(line.value, []).append(line)
        elif line.what == "got":
            if line.value not in got:
                origin, key, number = line.value.split("-")
                if int(number) < last.get((origin, key), -1):
                    findings.append(f"out of order: {line.value} came after a later one of its key")
                last[origin, key] = int(number)
                got.add(line.value)
            if line.value in acked:
                again.append(line.value)
                findings += (f for ack in acked[line.value] for f in _excuse(line, ack, losses))
    missing = sorted(set(published) - got)
    if missing:
        findings.append(f"lost: {len(missing)} were given to nobody, such as {missing[0]}")
    unknown = sorted(got - set(published))
    if unknown:
        findings.append(f"no event: {unknown[0]} was given and never published")
    doubtful = got - set(acked)
    if len(doubtful) > in_doubt_max:
        findings.append(
            f"lost: {len(doubtful)} were given and never acked, such as {min(doubtful)}; at most "
            f"{in_doubt_max} were in hand where a program died"
        )
    return Counted(len(published), len(acked), len(doubtful), len(again), tuple(findings))


def _excuse(line: Line, ack: Line, losses: Sequence[Loss]) -> list[str]:
    """A repeat is excused by a loss after the ack, in a region that did not know of that ack.

    What was acked in a region it knows by itself, whatever it loses.
    """
    if ack.region == line.region:
        return [f"again: {line.value} was given in {line.region}, where it was acked"]
    since = [
        x
        for x in losses
        if ack.at_ns < max(x.at_ns, x.acked_until_ns)
        and x.at_ns < line.at_ns
        and x.region == line.region
    ]
    if not since:
        return [f"again: {line.value} was given in {line.region} after its ack in {ack.region}"]
    if all(line.value in loss.known for loss in since):
        return [f"again: {line.value} was known to be acked in {line.region}"]
    return []
