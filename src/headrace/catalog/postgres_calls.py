"""Calls on PostgreSQL: a group of writes is one function of the server, and one round trip.

The function takes the locks, places the batches, stores the acks, and signs for the writer; its
statement is a transaction of its own.  Whatever the client does, the locks are held for as long as
the server works, and not over the network.  Right behind it, in the same packets, goes the NOTIFY,
as a second transaction that is not synced: a NOTIFY holds a lock of the whole server until its
transaction is on disk, so none is part of a durable commit.  A lone batch, the most frequent call,
has a function of its own: fewer cases, and a third less of the server's time.

The functions' names hold a hash of their text, so that programs of different versions each call
their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources

import msgspec
import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from headrace.catalog import schema
from headrace.catalog.batches import NewBatch
from headrace.catalog.calls import AckCall, AppendCall, Call
from headrace.catalog.postgres_connections import PgConnection, lock_number
from headrace.catalog.postgres_pipeline import Pipeline

SCHEMA_LOCK = lock_number("schema")
"""Shared by writers; whoever migrates waits for them, and they for him."""

UNSIGNED = "HR001"
"""SQLSTATE of a call whose writer has no row, or whose number was declared void."""

LONG = "HR002"
"""SQLSTATE of a call that has to be made the long way, which finds the reason."""

_INT8, _TEXT, _BYTEA = 20, 25, 17
_INT8S, _TEXTS, _BYTEAS, _BOOL, _INT4S = 1016, 1009, 1001, 16, 1007

_PARAMETERS = (
    *(_TEXT, _INT8, _BOOL, _INT8S),
    *(_INT8S, _INT8S, _INT8S, _INT8S, _INT8S, _INT8S, _TEXTS, _BYTEAS),
    *(_INT8, _TEXT, _INT8, _INT8, _BYTEA, _INT8S, _INT8),
    *(_TEXTS, _TEXTS, _INT8S, _INT8S, _INT8S, _BYTEAS, _BYTEAS),
)
_ONE_BATCH = (_TEXT, *[_INT8] * 8, _TEXT, _BYTEA)
_BINARY = [1] * len(_PARAMETERS)
_NOTIFY = b"SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"


class Functions(msgspec.Struct, frozen=True):
    """What makes calls on the server."""

    text: str
    """Makes both."""
    any_calls: str
    one_batch: str


@cache
def functions() -> Functions:
    """The functions that make calls, by name."""
    text = (resources.files("headrace.catalog") / "postgres_calls.sql").read_text()
    text = text.replace("{version}", str(schema.VERSION)).replace("{lock}", str(SCHEMA_LOCK))
    which = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    names = f"make_calls_{which}", f"append_one_{which}"
    return Functions(text.replace("{name}", names[0]).replace("{append}", names[1]), *names)


# --- parameters ------------------------------------------------------------------------------

_int8 = struct.Struct("!q").pack
_element = struct.Struct("!iq").pack
_header = struct.Struct("!iiiii").pack
_length = struct.Struct("!i").pack
_NULL = _length(-1)


def _int8s(values: Sequence[int]) -> bytes:
    return _header(1, 0, _INT8, len(values), 1) + b"".join([_element(8, v) for v in values])


def _blobs(oid: int, values: Iterable[bytes | memoryview | None]) -> bytes:
    found = list(values)
    parts: list[bytes | memoryview] = [_header(1, 1 if None in found else 0, oid, len(found), 1)]
    for value in found:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_length(len(value)), value)
    return b"".join(parts)


class Request(msgspec.Struct, frozen=True):
    """Which function is called, and with what."""

    function: bytes
    types: tuple[int, ...]
    arguments: list[bytes | memoryview | None]


def request(
    writer: str, number: int, locks: list[int], sync: bool, calls: Sequence[Call]
) -> Request:
    """What makes these calls in one statement; at most one of them is an append."""
    if len(calls) == 1 and len(locks) == 1 and sync:
        (call,) = calls
        if isinstance(call, AppendCall) and len(call.batches) == 1 and call.producer is None:
            found = _one_batch(writer, number, locks[0], call.batches[0])
            return Request(functions().one_batch.encode(), _ONE_BATCH, found)
    found = _any_calls(writer, number, locks, sync, calls)
    return Request(functions().any_calls.encode(), _PARAMETERS, found)


def _one_batch(
    writer: str, number: int, lock: int, batch: NewBatch
) -> list[bytes | memoryview | None]:
    return [
        writer.encode(),
        _int8(number),
        _int8(lock),
        _int8(batch.segment_id),
        _int8(batch.rows),
        _int8(batch.size_bytes),
        _int8(batch.max_ts_us),
        _int8(batch.layout),
        _int8(batch.checksum),
        None if batch.path is None else batch.path.encode(),
        batch.data,
    ]


def _any_calls(
    writer: str, number: int, locks: list[int], sync: bool, calls: Sequence[Call]
) -> list[bytes | memoryview | None]:
    found: list[bytes | memoryview | None] = [
        writer.encode(),
        _int8(number),
        b"\x01" if sync else b"\x00",
        _int8s(locks),
    ]
    append = next((call for call in calls if isinstance(call, AppendCall)), None)
    found += [None] * 15 if append is None else _append(append)
    rows = [row for call in calls if isinstance(call, AckCall) for row in call.rows]
    if not rows:
        return found + [None] * 7
    return [
        *found,
        _blobs(_TEXT, (row.group.encode() for row in rows)),
        _blobs(_TEXT, (row.unit.encode() for row in rows)),
        _int8s([row.token for row in rows]),
        _int8s([row.segment_id for row in rows]),
        _int8s([row.floor for row in rows]),
        _blobs(_BYTEA, (row.state for row in rows)),
        _blobs(_BYTEA, (row.before for row in rows)),
    ]


def _append(call: AppendCall) -> list[bytes | None]:
    new = call.batches
    found: list[bytes | None] = [
        _int8s([batch.segment_id for batch in new]),
        _int8s([batch.rows for batch in new]),
        _int8s([batch.size_bytes for batch in new]),
        _int8s([batch.max_ts_us for batch in new]),
        _int8s([batch.layout for batch in new]),
        _int8s([batch.checksum for batch in new]),
        _blobs(_TEXT, (None if b.path is None else b.path.encode() for b in new)),
        _blobs(_BYTEA, (batch.data for batch in new)),
    ]
    producer = call.producer
    if producer is None:
        return found + [None] * 7
    checksum = None if producer.checksum is None else _int8(producer.checksum)
    return [
        *found,
        _int8(producer.scope),
        producer.producer.encode(),
        _int8(producer.sequence),
        checksum,
        producer.positions,
        _int8s(producer.gaps),
        _int8(producer.kept),
    ]


# --- the exchange ----------------------------------------------------------------------------


class Exchange:
    """One call on a connection, and the news that follow it."""

    def __init__(self, connection: PgConnection, limit_s: float) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._pipeline: Pipeline | None = None
        self._preparing: list[list[bytes]] = []
        """For each group of statements, those that it prepares."""

    def send(self, request: Request, notices: Sequence[tuple[str, str]]) -> None:
        """Send the call and, as transactions of their own, what others are to hear of it."""
        pg = self._connection.pgconn
        pipeline = self._pipeline = Pipeline(self._connection, self._limit_s)
        name, count = request.function, len(request.types)
        if name not in self._connection.prepared:
            marks = ", ".join(f"${n}" for n in range(1, count + 1))
            self._prepare(name, b"SELECT %s(%s)" % (name, marks.encode()), request.types)
        else:
            self._preparing.append([])
        pg.send_query_prepared(name, request.arguments, _BINARY[:count])
        pipeline.sync()
        if notices:
            self._prepare(b"notify", _NOTIFY, [_TEXT, _TEXT])
            for where, payload in notices:
                pg.send_query_prepared(b"notify", [where.encode(), payload.encode()])
            pipeline.sync()
        pipeline.flush()

    def _prepare(self, name: bytes, text: bytes, types: Sequence[int]) -> None:
        due = name not in self._connection.prepared
        self._preparing.append([name] if due else [])
        if due:
            self._connection.pgconn.send_prepare(name, text, types)

    def answer(self) -> list[int]:
        """What the function returned, once that is durable; raises the driver's errors."""
        value = self._results()[-1].get_value(0, 0)
        assert value is not None
        return [int(number) for number in value[1:-1].split(b",")]

    def finish(self) -> None:
        """Read what is left, so that the connection can be used again; no news is no error."""
        pipeline = self._pipeline
        if pipeline is None:
            return
        while pipeline.syncs and not self._connection.closed:
            with contextlib.suppress(psycopg.Error):
                self._results()
        if not self._connection.closed:
            pipeline.end()

    def _results(self) -> list[PGresult]:
        assert self._pipeline is not None
        prepared = self._preparing.pop(0)
        try:
            return self._pipeline.results()
        finally:
            heard = self._pipeline.heard
            if prepared and heard and heard[0].status == ExecStatus.COMMAND_OK:
                self._connection.prepared.update(prepared)
