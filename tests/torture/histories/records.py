"""What the processes of a round wrote down: each call before it, and how it ended."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import msgspec

IN, SIDE, OUT = "in", "side", "out"
"""What the group consumes; what publishers write besides; what consumers' transactions publish."""
GROUP = "g"

Told = Literal["done", "refused", "unknown", "given up", "taken"]
"""How a call ended.  `refused`: it does not count; `unknown`: it may; `given up`: cancelled;
`taken`: an appender took it, and will store it."""


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """An event by its name, which is its value."""

    stream: str
    key: str
    name: str


class Spot(msgspec.Struct, frozen=True, array_like=True):
    """A place in the log."""

    stream: str
    segment: int
    offset: int


class Writing(msgspec.Struct, frozen=True, array_like=True, tag="w"):
    """A write is about to be asked for; once more under the same call: an idempotent repeat."""

    at_ns: int
    call: str
    way: str
    events: list[Sent]
    sequence: int = -1


class Written(msgspec.Struct, frozen=True, array_like=True, tag="W"):
    """A write ended; with its places, where the call tells them."""

    at_ns: int
    call: str
    told: Told
    spots: list[Spot] | None = None
    error: str = ""


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """A delivery: what was handed out, and under which ownership."""

    unit: str
    token: int
    name: str
    attempt: int


class Delivered(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    at_ns: int
    hold: Hold


class Acking(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """An ack is about to be asked for; `output` is what a transaction publishes with it."""

    at_ns: int
    hold: Hold
    output: str = ""


class Acked(msgspec.Struct, frozen=True, array_like=True, tag="A"):
    at_ns: int
    hold: Hold
    told: Told
    error: str = ""


class Trimming(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Events that are about to be trimmed away."""

    at_ns: int
    events: list[tuple[Spot, str]]


class Noted(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """Anything else that happened; for whoever reads a journal."""

    at_ns: int
    what: str


Record = Writing | Written | Delivered | Acking | Acked | Trimming | Noted

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Journal:
    """A process's own file; a line is one ``write``, so that only a last one can be torn."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, record: Record) -> None:
        line = _encode(record) + b"\n"
        if os.write(self._fd, line) != len(line):
            raise OSError("the journal took only a part of a record")

    def note(self, what: str) -> None:
        self.write(Noted(now_ns(), what))


def now_ns() -> int:
    return time.monotonic_ns()


def read_journal(path: Path) -> list[Record]:
    """All whole records of a journal."""
    *lines, _ = path.read_bytes().split(b"\n")
    return [_decode(line) for line in lines]
