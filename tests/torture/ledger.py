"""What the writers said: intents before each append, outcomes after it, on one file each.

A record is written with a single ``write`` to a file opened for appending, before the append
starts and after it has returned.  The page cache outlives a process, so whatever was written
stands when the writer is killed.  Only the last record of a file can be torn: a torn intent was
never followed by an append, and a torn acknowledgement leaves its append in doubt.

Events are known by a ``uid``: writer, incarnation and a running number, in one integer that grows
with every event of a writer.  The uid, the key, the key's own running number and the size stand
in the first bytes of the event's value.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

STREAMS = ("alpha", "beta", "gamma")
IDENTITY = np.dtype([("uid", "<u8"), ("key", "<u4"), ("number", "<u4"), ("size", "<u4")])
INCARNATION_SHIFT = 32
WRITER_SHIFT = 52
RECORD_BYTES_MAX = 64 * 1024 * 1024

Identities = npt.NDArray[np.void]
Kind = Literal[
    "publish",
    "batch",
    "transaction",
    "conditional",
    "loop",
    "producer-publish",
    "producer-append",
    "producer-transaction",
]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Events of one append for one stream: uids ``first`` and on, one for each key."""

    stream: int
    first: int
    size: int
    keys: list[int]
    numbers: list[int]


class Spot(msgspec.Struct, frozen=True, array_like=True):
    """Offsets ``start`` to ``start + count - 1`` of a segment, as the log answered."""

    stream: str
    segment: int
    start: int
    count: int


class Intent(msgspec.Struct, frozen=True, array_like=True, tag="intent"):
    """An append is about to start; ``op`` is the uid of its first event."""

    op: int
    kind: Kind
    parts: list[Part]
    producer: str | None = None
    sequence: int | None = None
    expected_head: int | None = None
    loop: int | None = None
    """The first append of the same loop through an appender."""


class Acked(msgspec.Struct, frozen=True, array_like=True, tag="acked"):
    """The append returned; an appender does not say where its events are."""

    op: int
    spots: list[Spot]


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The append failed for sure: none of its events may be in the log."""

    op: int


class InDoubt(msgspec.Struct, frozen=True, array_like=True, tag="doubt"):
    """The append failed in a way that leaves its outcome open."""

    op: int
    reason: str


Record = Intent | Acked | Refused | InDoubt

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode
_FRAME = struct.Struct("<II")


class Journal:
    """The ledger of one incarnation, open for writing."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, record: Record) -> None:
        payload = _encode(record)
        frame = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        if os.write(self._fd, frame) != len(frame):
            raise OSError("the journal took only a part of a record")


class JournalTail:
    """A journal as it grows, seen from another process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.acked = 0

    def refresh(self) -> int:
        """How many appends have been acknowledged by now."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return self.acked
        for record, end in _frames(data):
            self._at += end
            self.acked += isinstance(record, Acked)
        return self.acked


def read_journal(path: Path) -> list[Record]:
    """All whole records of a journal."""
    return [record for record, _ in _frames(path.read_bytes())]


def _frames(data: bytes) -> Iterator[tuple[Record, int]]:
    """Records with the bytes each takes, up to a torn one."""
    at = 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + length
        if end > len(data):
            return
        payload = data[at + _FRAME.size : end]
        if length > RECORD_BYTES_MAX or zlib.crc32(payload) != checksum:
            return
        yield _decode(payload), end - at
        at = end


def journal_path(folder: Path, writer: int, incarnation: int) -> Path:
    return folder / f"writer-{writer}-{incarnation:04}.journal"


def journals(folder: Path, writer: int | None = None) -> list[Path]:
    """The journals of a writer, or of all, oldest first."""
    return sorted(folder.glob(f"writer-{'*' if writer is None else writer}-*.journal"))


def unresolved(records: Iterable[Record]) -> list[Intent]:
    """Appends of idempotent producers that were never acknowledged, in their order."""
    open_ops: dict[int, Intent] = {}
    for record in records:
        match record:
            case Intent(op=op, producer=str()):
                open_ops[op] = record
            case Acked(op=op):
                open_ops.pop(op, None)
    return list(open_ops.values())


# --- events --------------------------------------------------------------------------------


def first_uid(writer: int, incarnation: int) -> int:
    return writer << WRITER_SHIFT | incarnation << INCARNATION_SHIFT


def show_uid(uid: int) -> str:
    writer, rest = divmod(uid, 1 << WRITER_SHIFT)
    incarnation, number = divmod(rest, 1 << INCARNATION_SHIFT)
    return f"writer {writer}, incarnation {incarnation}, event {number}"


def subject_of(stream: int, key: int) -> str:
    return f"{STREAMS[stream]}.k{key}"


def key_of(key: int) -> str | None:
    """Every other key is left to the subject, so that both ways of routing are used."""
    return None if key % 2 else f"k{key}"


def values_of(part: Part) -> list[bytes]:
    """The values of a part's events: their identity, then filling."""
    found = np.zeros(len(part.keys), IDENTITY)
    found["uid"] = np.arange(part.first, part.first + len(part.keys), dtype=np.uint64)
    found["key"] = part.keys
    found["number"] = part.numbers
    found["size"] = part.size
    filling = bytes(part.size - IDENTITY.itemsize)
    return [row.tobytes() + filling for row in found]


def batch_of(part: Part) -> pa.RecordBatch:
    """A part's events in Arrow."""
    return pa.record_batch(
        {
            "subject": pa.array([subject_of(part.stream, key) for key in part.keys], pa.string()),
            "key": pa.array([key_of(key) for key in part.keys], pa.string()),
            "value": pa.array(values_of(part), pa.binary()),
        }
    )


def identities_of(values: Any) -> Identities:
    """The identities in a column of values; raises ValueError when one is not whole."""
    heads = pc.binary_slice(values, 0, IDENTITY.itemsize)
    joined = b"".join(heads.to_pylist())
    if len(joined) != len(values) * IDENTITY.itemsize:
        raise ValueError("an event is shorter than its identity")
    found = np.frombuffer(joined, IDENTITY)
    sizes = np.asarray(pc.binary_length(values))
    if not np.array_equal(sizes, found["size"]):
        row = int(np.argmax(sizes != found["size"]))
        raise ValueError(
            f"{show_uid(int(found['uid'][row]))} has {sizes[row]} bytes, "
            f"not the {found['size'][row]} it was sent with"
        )
    return found
