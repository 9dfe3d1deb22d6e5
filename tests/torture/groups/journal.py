"""What the processes of a group's torture saw, one line each, on files that outlive them.

A line is written with a single ``write`` to a file opened for appending, so what was written
stands when the process is killed; only a last line can be torn, and is left out.  Times are of
the machine's monotonic clock, which is one for all processes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import msgspec

STREAM = "work"
OUTPUT = "done"

Way = Literal["ack", "soon", "transaction", "batch"]
Outcome = Literal["acked", "fenced", "unknown"]


class Event(msgspec.Struct, frozen=True, array_like=True):
    """An event by its content: the ``number``-th of its key, counted from 1."""

    key: int
    number: int


def value_of(event: Event) -> bytes:
    return event.key.to_bytes(4, "little") + event.number.to_bytes(4, "little")


def event_of(value: bytes) -> Event:
    return Event(int.from_bytes(value[:4], "little"), int.from_bytes(value[4:8], "little"))


def subject_of(key: int) -> str:
    return f"{STREAM}.{'eu' if key % 3 else 'us'}.k{key}"


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """A delivery: what was delivered to whom, under which ownership."""

    group: str
    unit: str
    token: int
    event: Event
    attempt: int


class Published(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """The feeder's events of one append, which has returned."""

    at_ns: int
    events: list[Event]


class Delivered(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    at_ns: int
    hold: Hold


class Acking(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """The ack is about to be asked for."""

    at_ns: int
    hold: Hold
    way: Way


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """The ack was answered."""

    at_ns: int
    hold: Hold
    outcome: Outcome


class Nacked(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    at_ns: int
    hold: Hold


Record = Published | Delivered | Acking | Settled | Nacked

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Journal:
    """A process's own file, open for writing."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *records: Record) -> None:
        lines = b"".join(_encode(record) + b"\n" for record in records)
        if os.write(self._fd, lines) != len(lines):
            raise OSError("the journal took only a part of a record")


def now_ns() -> int:
    return time.monotonic_ns()


def read_journal(path: Path) -> list[Record]:
    """All whole records of a journal."""
    *lines, _ = path.read_bytes().split(b"\n")
    return [_decode(line) for line in lines]


class Freeze(msgspec.Struct, frozen=True):
    """An instance that was stopped and woken, as the ordeal did it."""

    instance: str
    stopped_ns: int
    woken_ns: int
