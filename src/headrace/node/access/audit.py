"""Who did what: every change that came through a node, in the internal stream ``node.audit``."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

import msgspec

from headrace.catalog.streams import Limits
from headrace.errors import StreamExistsError, TrimmedError
from headrace.log.events import Event
from headrace.log.given import to_batch
from headrace.log.log import Log
from headrace.log.query import Query

STREAM = "node.audit"
KEPT_S = 90 * 86_400
SHOWN_MAX = 1_000


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One change, or one that was refused."""

    at: datetime
    token: str
    """The name of the token that was used."""
    address: str
    method: str
    path: str
    about: str
    """What was asked for, without payloads."""
    status: int


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(AuditLine)


def record(log: Log, line: AuditLine) -> None:
    """Write a line down; durable when this returns."""
    if STREAM not in {stream.name for stream in log.streams(internal=True)}:
        with suppress(StreamExistsError):
            log.create_internal_stream(STREAM, 1, Limits(age_s=KEPT_S))
    write = log.write_of()
    event = Event(subject="audit", key=line.token, value=_encode(line))
    write.add(STREAM, to_batch([event]), segment=0, captured=True)
    log.commit(write)


def latest(log: Log, limit: int) -> tuple[AuditLine, ...]:
    """The last changes, newest first."""
    known = {stream.name: stream for stream in log.streams(internal=True)}
    stream = known.get(STREAM)
    if stream is None:
        return ()
    segment = stream.segments[0]
    first = max(segment.tail, segment.head - limit)
    found: list[AuditLine] = []
    with suppress(TrimmedError):
        for batch in log.read(STREAM, Query(start={0: first}, segments=[0])):
            for value in batch.column("value").to_pylist():
                with suppress(msgspec.MsgspecError):
                    found.append(_decoder.decode(value))
    return tuple(reversed(found[-limit:]))
