"""Dead letters of a group as they are read: what each was, why it died, and how often.

A letter is an event of the group's dead-letter stream.  What was put back or discarded is
*settled*: it is acked by a reader of the stream's own name, so it is gone for everybody who looks,
and the events themselves go when all before them are settled, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime

import msgspec

from headrace.catalog import Tx, claims, streams
from headrace.catalog import progress as stored
from headrace.catalog.streams import Stream
from headrace.errors import InvalidInputError
from headrace.groups import letter_names as headers
from headrace.groups.operations.targets import Target
from headrace.groups.progress import Progress
from headrace.groups.progress.store import ack_alone, load
from headrace.log.log import Log
from headrace.log.plain import Row
from headrace.log.query import Query
from headrace.log.times import to_us

LIMIT = 100
LIMIT_MAX = 100_000
ABOUT = frozenset(
    {
        *(headers.REASON, headers.DETAIL, headers.STREAM, headers.SEGMENT, headers.OFFSET),
        *(headers.ATTEMPTS, headers.GROUP, headers.MEMBER, headers.DIED, headers.LIVES),
        headers.PUT_BACK,
    }
)


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter."""

    id: int
    """Its offset in the dead-letter stream."""
    subject: str
    key: str | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    """Those that its publisher gave it."""
    timestamp_us: int
    died_us: int | None
    """When it was given up; None for letters from before that was written down."""
    reason: str
    error: str
    """The last one; of ``--exec``, with the end of what the command said."""
    attempts: int
    lives: int
    """How often it has died."""
    member: str
    stream: str
    segment: int
    offset: int


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters; all that fit everything given."""

    ids: tuple[int, ...] | None = None
    reason: str | None = None
    """A part of its reason or of its error."""
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = LIMIT_MAX

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 1 <= self.limit <= LIMIT_MAX:
            raise InvalidInputError(f"limit={self.limit}: give 1 to {LIMIT_MAX}")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InvalidInputError("since is not before until, so no letter fits both")

    def fits(self, letter: Letter) -> bool:
        if self.ids is not None and letter.id not in self.ids:
            return False
        if self.key is not None and letter.key != self.key:
            return False
        if self.reason is not None and self.reason not in f"{letter.reason}: {letter.error}":
            return False
        died_us = letter.timestamp_us if letter.died_us is None else letter.died_us
        if self.since is not None and died_us < to_us(self.since):
            return False
        return self.until is None or died_us < to_us(self.until)


def settled(tx: Tx, stream: Stream) -> Progress:
    """What of a dead-letter stream was put back or discarded."""
    return load(tx, stream.name, stream.segments[0].id) or Progress()


def settle(tx: Tx, stream: Stream, ids: Collection[int]) -> None:
    """Letters are gone; raises ``AlreadyAckedError`` if one of them is already."""
    ack_alone(tx, stream.name, stream.segments[0].id, sorted(ids))
    stored.subscribe(tx, stream.id, stream.name)


def settle_lock(stream: str) -> str:
    """Held by :func:`settle`."""
    return claims.lock(stream, "letters")


def stream_of(log: Log, target: Target) -> Stream | None:
    """A group's dead-letter stream, if anything has died yet."""
    return log.catalog.read(lambda tx: streams.get(tx, target.dead_letters), snapshot=True)


def select(log: Log, stream: Stream, selection: Selection) -> Iterator[Letter]:
    """The letters that fit, oldest first."""
    gone = log.catalog.read(lambda tx: settled(tx, stream)).acked()
    segment = log.stream(stream.name).segments[0]
    first = max(gone.floor, segment.tail)
    if selection.ids is not None:
        first = max(first, min(selection.ids, default=segment.head))
    if first >= segment.head:
        return
    left = selection.limit
    for rows in log.rows(stream.name, Query(start={0: first}, segments=[0])):
        for letter in map(_letter, rows):
            if letter.id not in gone and selection.fits(letter):
                yield letter
                left -= 1
                if not left:
                    return


def _letter(row: Row) -> Letter:
    given = row.headers or ()
    about = {key: value.decode(errors="replace") for key, value in given if key in ABOUT}
    died = about.get(headers.DIED, "")
    assert row.offset is not None
    return Letter(
        id=row.offset,
        subject=row.subject,
        key=row.key,
        value=row.value,
        headers=tuple((key, value) for key, value in given if key not in ABOUT),
        timestamp_us=row.timestamp_us,
        died_us=int(died) if died.isdecimal() else None,
        reason=about.get(headers.REASON, ""),
        error=about.get(headers.DETAIL, ""),
        attempts=_number(about.get(headers.ATTEMPTS, "")),
        lives=max(1, _number(about.get(headers.LIVES, ""))),
        member=about.get(headers.MEMBER, ""),
        stream=about.get(headers.STREAM, ""),
        segment=_number(about.get(headers.SEGMENT, "")),
        offset=_number(about.get(headers.OFFSET, "")),
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else 0
