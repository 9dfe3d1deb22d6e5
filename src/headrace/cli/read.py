"""``headrace read``: events on the screen, or as JSON lines."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from headrace.catalog.streams import Stream
from headrace.cli import records, values
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, tell, until_ctrl_c
from headrace.cli.screens import time_text
from headrace.errors import DamagedBatchError
from headrace.log.plain import Row
from headrace.log.query import Query

app = App(name="read", help_epilogue="")

PIPE_VALUE_CHARS = 200
SUBJECT_CHARS_MAX = 48
KEY_CHARS_MAX = 24


@Parameter(name="*")
@dataclass(frozen=True)
class Which:
    """The events that are read."""

    start: Annotated[str, Parameter(name="--from", help="Where to begin.")] = "earliest"
    until: Annotated[
        str | None, Parameter(help="Where to end, if not at the end of what is there now.")
    ] = None
    follow: Annotated[
        bool,
        Parameter(negative="", alias="-f", help="Go on as events arrive, until Ctrl-C."),
    ] = False
    subject: Annotated[
        str | None, Parameter(help="Only events whose subject passes this filter.")
    ] = None
    segments: Annotated[str | None, Parameter(help="Only these segments, comma-separated.")] = None
    limit: Annotated[int | None, Parameter(help="At most this many events.")] = None

    def query(self) -> Query:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit {self.limit}: read at least one event")
        if self.follow and self.until is not None:
            raise UsageError("a read that follows has no end: choose --follow or --until")
        return Query(
            start=values.place(self.start, "--from"),
            until=None if self.until is None else values.place(self.until, "--until"),
            follow=self.follow,
            subject=self.subject,
            segments=None if self.segments is None else values.numbers(self.segments, "--segments"),
            limit=self.limit,
        )


EVERYTHING = Which()


@app.default
def read(
    stream: str,
    /,
    *,
    which: Which = EVERYTHING,
    skip_damaged: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Read a stream's events, in order per key.

    A place is earliest, latest, a time (2013-07-04, 2013-07-04T10:30Z), a time ago (15m), or
    positions (0:120,1:98, and the segments that follow from them).

    * `headrace read orders --from 15m --subject 'orders.eu.>'`
    * `headrace read orders --follow --from latest --json | jq .value`

    Parameters
    ----------
    stream
        The stream's name.
    skip_damaged
        Go on after a damaged batch; what was skipped is said on stderr.
    """
    query = which.query()
    skipped = _Skipped(options.json)
    show = show_json if options.json else RowScreen().show
    if which.follow:
        until_ctrl_c()
    shown = False
    with options.open() as log:
        for rows in log.rows(stream, query, skipped if skip_damaged else None):
            show(rows)
            sys.stdout.flush()
            shown = True
        if not shown and not options.json:
            tell(f"headrace: {_nothing(log.stream(stream), which)}")
    skipped.sum_up()


def _nothing(stream: Stream, which: Which) -> str:
    """Why a read shows nothing, and what to do next."""
    events = sum(segment.events for segment in stream.segments)
    if events and which != EVERYTHING:
        return (
            f"no such event among the {counted(events, 'event')} of stream {stream.name!r}; read "
            f"all of it with: headrace read {stream.name}"
        )
    if any(segment.tail for segment in stream.segments):
        return f"stream {stream.name!r} holds no events: all of them were trimmed"
    example = stream.config.subjects[0].replace("*", "x").replace(">", "x")
    publish = f"publish one with: headrace publish {example} VALUE"
    return f"stream {stream.name!r} holds no events yet; {publish}"


class _Skipped:
    """Says what was damaged, as it is met and once more at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._batches = 0
        self._events = 0

    def __call__(self, error: DamagedBatchError) -> None:
        self._batches += 1
        self._events += error.end - error.start
        if self._as_json:
            names = ("stream", "segment", "start", "end", "reason")
            skipped = {"skipped": {name: getattr(error, name) for name in names}}
            tell(msgspec.json.encode(skipped).decode())
        else:
            tell(
                f"headrace: skipped segment {error.segment} offsets {error.start} to "
                f"{error.end - 1}: {error.reason}"
            )

    def sum_up(self) -> None:
        if self._batches and not self._as_json:
            batches = counted(self._batches, "damaged batch", "es")
            tell(f"headrace: skipped {counted(self._events, 'event')} in {batches}")


def show_json(rows: Sequence[Row]) -> None:
    encode = msgspec.json.encode
    lines = [encode(records.shown(row)) for row in rows]
    sys.stdout.write(b"\n".join(lines).decode() + "\n")


class RowScreen:
    """Lines for people: columns grow as longer texts come, the value takes what is left."""

    def __init__(self) -> None:
        terminal = sys.stdout.isatty()
        self._room = shutil.get_terminal_size().columns if terminal else None
        self._subject = len("subject")
        self._key = len("key")
        self._place = len("seg:offset")
        self._begun = False

    def show(self, given: Sequence[Row]) -> None:
        rows = [
            (
                time_text(row.timestamp_us // 1000 * 1000).replace("T", " ").removesuffix("Z"),
                _cut(printable(row.subject), SUBJECT_CHARS_MAX),
                _cut(printable(row.key or ""), KEY_CHARS_MAX),
                "" if row.segment is None else f"{row.segment}:{row.offset}",
                row.value,
            )
            for row in given
        ]
        self._subject = max(self._subject, *(len(row[1]) for row in rows))
        self._key = max(self._key, *(len(row[2]) for row in rows))
        self._place = max(self._place, *(len(row[3]) for row in rows))
        lines = []
        if not self._begun:
            self._begun = True
            lines.append(self._line("time (UTC)", "subject", "key", "seg:offset", b"value"))
        lines.extend(self._line(*row) for row in rows)
        sys.stdout.write("\n".join(lines) + "\n")

    def _line(self, time: str, subject: str, key: str, place: str, value: bytes) -> str:
        line = (
            f"{_whole(time):23}  {subject:{self._subject}}  {key:{self._key}}  "
            f"{place:>{self._place}}  "
        )
        room = PIPE_VALUE_CHARS if self._room is None else max(8, self._room - len(line))
        # More bytes than characters fit are not worth decoding.
        text = printable(value[: 4 * room].decode(errors="backslashreplace"))
        return (line + _cut(text, room, more=len(value) > 4 * room)).rstrip()


def _whole(time: str) -> str:
    return time if "." not in time else time[:23]


def _cut(text: str, room: int, *, more: bool = False) -> str:
    if len(text) <= room and not more:
        return text
    return text[: room - 1] + "…"


def printable(text: str) -> str:
    """Text that cannot play tricks on a terminal.

    >>> printable("a\\x1b[31mb\\n")
    'a\\\\x1b[31mb\\\\n'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
