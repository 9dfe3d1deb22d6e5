"""``headrace publish``: events from arguments, from lines, or from files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Group, Parameter

from headrace.cli import records, values
from headrace.cli.done_shapes import PublishedEvent, PublishedEvents
from headrace.cli.failures import StoppedError, UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import progress
from headrace.errors import HeadraceError, InvalidEventError
from headrace.log import limits
from headrace.log.times import now_us

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.append import Write
    from headrace.log.events import Event
    from headrace.log.log import Log

app = App(name="publish", help_epilogue="")

READ_BYTES = 1024 * 1024
LINE_BYTES_MAX = 2 * limits.EVENT_BYTES_MAX


@Parameter(name="*", group=Group("With --file", sort_key=10))
@dataclass(frozen=True)
class Rows:
    """How the rows of a file become events."""

    stream: Annotated[
        str | None,
        Parameter(help="The stream; if not given, the one that captures the first row's subject."),
    ] = None
    subject: Annotated[
        str | None,
        Parameter(
            name="--subject",
            help="A column, or a template such as flights.{origin}.{dest}; without it the file's "
            "columns must be an event's own (subject, value, key, timestamp, headers).",
        ),
    ] = None
    value: Annotated[
        str | None,
        Parameter(name="--value", help="A column; without it the value is the whole row as JSON."),
    ] = None
    timestamp: Annotated[
        str | None, Parameter(help="A column of times; without it the time is now.")
    ] = None
    text: Annotated[
        bool,
        Parameter(negative="", help="Take every CSV column as text instead of guessing its kind."),
    ] = False


NO_ROWS = Rows()


@Parameter(name="*")
@dataclass(frozen=True)
class Input:
    """Where many events come from."""

    lines: Annotated[bool, Parameter(negative="", help="One event for each line of the input.")] = (
        False
    )
    json_lines: Annotated[
        bool,
        Parameter(negative="", help="One event for each JSON line of the input or the file named."),
    ] = False
    file: Annotated[
        Path | None,
        Parameter(help="A .parquet, .csv or .tsv file (.gz too); one event for each row."),
    ] = None

    empty: Annotated[
        bool, Parameter(negative="", help="One event without a value; so does the VALUE ''.")
    ] = False

    def check(self, rows: Rows, value: str | None) -> None:
        if self.empty and (value is not None or self != Input(empty=True)):
            raise UsageError("--empty goes with a SUBJECT alone: it says that there is no VALUE")
        if sum((self.lines, self.json_lines, self.file is not None)) > 1:
            raise UsageError("choose one of --lines, --json-lines and --file")
        if self.file is None and rows != NO_ROWS:
            raise UsageError("--stream, --subject, --value, --timestamp and --text go with --file")


ARGUMENTS = Input()

Headers = Annotated[
    list[str] | None,
    Parameter(alias="-H", negative="", help="name=value; may be given again."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Audience:
    """Who gets events of linked streams."""

    regions: Annotated[
        str | None,
        Parameter(help="Of a linked stream: who gets them, as us,ap; '' keeps them here."),
    ] = None

    def add(self, log: Log, write: Write, stream: str, batch: pa.RecordBatch) -> None:
        """Append a checked batch to a stream, as a part of a write."""
        step = None
        if self.regions is not None:
            from headrace.regions.linking import step_for

            step = step_for(log, stream, values.regions(self.regions, "--regions"))
        write.add(stream, batch, step=step)


EVERYBODY = Audience()


@app.default
def publish(
    subject: str | None = None,
    value: str | None = None,
    /,
    *,
    key: Annotated[str | None, Parameter(alias="-k")] = None,
    header: Headers = None,
    audience: Audience = EVERYBODY,
    source: Input = ARGUMENTS,
    rows: Rows = NO_ROWS,
    options: Options = NONE,
) -> None:
    """Publish events; they are durable when this returns.

    * One event:
      `headrace publish orders.eu.42 '{"total": 12}' --key 42`
    * One for each line of the input:
      `tail -f app.log | headrace publish logs.app --lines`
    * One for each JSON line, an object with subject, value (text, or any JSON) or value_base64,
      and if wanted key, headers, timestamp:
      `headrace read orders --json | headrace --catalog ./copy publish --json-lines`
    * One for each row of a Parquet or CSV file:
      `headrace publish --file f.parquet --subject 'flights.{origin}.{dest}' --key tailnum`
    * To some regions of a linked stream only, or, with `--regions ''`, to no other:
      `headrace publish orders.eu.42 '{"total": 12}' --key 42 --regions us`

    Parameters
    ----------
    subject
        The event's subject; with --json-lines, a file to read instead of the input.
    value
        The event's value; without one, or with -, all of the input.
    key
        Events of one key stay in order; with --file, a column or a template with {column}.
    """
    source.check(rows, value)
    headers = [_header(each) for each in header or ()]
    if source.file is not None:
        if subject is not None or headers:
            raise UsageError("with --file, give --subject instead of a SUBJECT, and no --header")
        _publish_file(source.file, rows, key, audience, options)
    elif source.json_lines:
        if value is not None or key is not None or headers:
            raise UsageError("with --json-lines each line has its own key, value and headers")
        _publish_json_lines(subject, audience, options)
    elif subject is None:
        raise UsageError("give a SUBJECT, or --json-lines, or --file (see headrace publish --help)")
    else:
        template = _template(subject, key, headers)
        _publish_to(template, "" if source.empty else value, source.lines, audience, options)


def _template(subject: str, key: str | None, headers: list[tuple[str, bytes]]) -> Event:
    from headrace.log.events import Event  # it needs Arrow

    return Event(subject=subject, value=b"", key=key, headers=headers or None)


def _publish_to(
    template: Event, value: str | None, lines: bool, audience: Audience, options: Options
) -> None:
    """One event of a subject, or one for each line."""
    if not lines:
        event = msgspec.structs.replace(template, value=value_of(value))
        _publish_one(event, audience, options)
        return
    if value is not None:
        raise UsageError("with --lines the values come from the input; leave VALUE out")
    from headrace.log.events import check_event

    check_event(template)
    tally = _Tally()
    with options.open() as log, tally.told(options):
        stream = log.routes.stream_for(template.subject)
        number = 0
        for chunk in chunks(sys.stdin.buffer):
            chosen: list[Event] = []
            for line in chunk:
                number += 1
                if len(line) > limits.EVENT_BYTES_MAX:
                    _append(log, {stream: chosen}, audience, tally)
                    raise InvalidEventError(f"line {number} is longer than an event may be")
                chosen.append(msgspec.structs.replace(template, value=line))
            _append(log, {stream: chosen}, audience, tally)


def _header(text: str) -> tuple[str, bytes]:
    name, value = values.pair(text, "--header")
    return name, _raw(value)


def _raw(argument: str) -> bytes:
    """An argument's own bytes, also when they are not UTF-8."""
    return argument.encode(errors="surrogateescape")


def value_of(argument: str | None) -> bytes:
    if argument is not None and argument != "-":
        return _raw(argument)
    if argument is None and sys.stdin.isatty():
        raise UsageError("give a VALUE, or - to type it (end with Ctrl-D), or --lines")
    found = sys.stdin.buffer.read(limits.EVENT_BYTES_MAX + 1)
    if not found:
        raise UsageError("the input is empty: give a VALUE, or --empty for an event without one")
    return found


def _publish_one(event: Event, audience: Audience, options: Options) -> None:
    from headrace.log.events import batch_of, check_event

    check_event(event)
    with options.open() as log:
        write = log.write_of()
        stream = log.routes.stream_for(event.subject)
        audience.add(log, write, stream, batch_of([event], now_us()))
        placed = log.commit(write).placed[0]
    data = PublishedEvent(stream=placed.stream, segment=placed.segment, offset=placed.start)
    options.show(data, f"{placed.stream} {placed.segment}:{placed.start}")


# --- lines ---------------------------------------------------------------------------------


@dataclass
class _Tally:
    """What has been published so far."""

    by_stream: dict[str, int] = field(default_factory=dict)

    def add(self, stream: str, count: int) -> None:
        self.by_stream[stream] = self.by_stream.get(stream, 0) + count

    @property
    def total(self) -> int:
        return sum(self.by_stream.values())

    @contextmanager
    def told(self, options: Options) -> Iterator[None]:
        """Say at the end how much was published, also when it ended early."""
        try:
            yield
        except HeadraceError as error:
            if self.total:
                raise StoppedError(error, self.total) from error
            raise
        where = ", ".join(f"{count:,} to {name}" for name, count in self.by_stream.items())
        data = PublishedEvents(published_events=self.total, streams=self.by_stream)
        options.show(data, f"published {where or 'nothing'}")


def _publish_json_lines(name: str | None, audience: Audience, options: Options) -> None:
    from headrace.log.events import check_event

    tally = _Tally()
    with options.open() as log, _input(name) as source, tally.told(options):
        number = 0
        for chunk in chunks(source):
            by_stream: dict[str, list[Event]] = {}
            try:
                for line in chunk:
                    number += 1
                    if not line.strip():
                        continue
                    event = check_event(records.parsed(line, number))
                    by_stream.setdefault(log.routes.stream_for(event.subject), []).append(event)
            except HeadraceError as error:
                # Lines before the bad one are published; those after it are not read.
                _append(log, by_stream, audience, tally)
                at = f"line {number}"
                text = str(error) if str(error).startswith(at) else f"{at}: {error}"
                raise InvalidEventError(text) from error
            _append(log, by_stream, audience, tally)


@contextmanager
def _input(name: str | None) -> Iterator[IO[bytes]]:
    if name is None or name == "-":
        yield sys.stdin.buffer
        return
    if not Path(name).exists():
        raise UsageError(f"there is no file {name}; give a file of JSON lines, or - for the input")
    with Path(name).open("rb") as opened:
        yield opened


def _append(log: Log, by_stream: dict[str, list[Event]], audience: Audience, tally: _Tally) -> None:
    """Append what was read at once; events of all streams commit together."""
    from headrace.log.events import batch_of

    write = log.write_of()
    now = now_us()
    for stream, events in by_stream.items():
        if events:
            audience.add(log, write, stream, batch_of(events, now))
    if not any(by_stream.values()):
        return
    log.commit(write)
    for stream, events in by_stream.items():
        tally.add(stream, len(events))


def chunks(source: IO[bytes]) -> Iterator[list[bytes]]:
    """Whole lines, as many as are there now: those that come during a commit share the next one."""
    descriptor = source.fileno()
    rest = b""
    while data := os.read(descriptor, READ_BYTES):
        lines = data.split(b"\n")
        lines[0] = rest + lines[0]
        rest = lines.pop()
        if len(rest) > LINE_BYTES_MAX:
            raise InvalidEventError("a line is longer than an event may be")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


# --- files ---------------------------------------------------------------------------------


def _publish_file(
    path: Path, rows: Rows, key: str | None, audience: Audience, options: Options
) -> None:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from headrace.cli.files import Mapping, open_file
    from headrace.log.given import to_batch

    tally = _Tally()
    stream = rows.stream
    mapping = Mapping(rows.subject, key, rows.value, rows.timestamp)
    bar = progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[events]:,} events"),
        TimeRemainingColumn(),
        quiet=options.json,
    )
    with (
        options.open() as log,
        tally.told(options),
        open_file(path, mapping, as_text=rows.text) as source,
        bar,
    ):
        task = bar.add_task(path.name, total=source.size, events=0)
        for part in source.parts:
            if stream is None:
                stream = log.routes.stream_for(part.events.column("subject")[0].as_py())
            try:
                write = log.write_of()
                audience.add(log, write, stream, to_batch(part.events))
                log.commit(write)
            except InvalidEventError as error:
                if error.row is None:
                    raise
                told = str(error).removeprefix(f"row {error.row}: ")
                row = part.first_row + error.row + 1
                raise InvalidEventError(f"row {row} of {path.name}: {told}", row=row) from error
            tally.add(stream, part.events.num_rows)
            bar.update(task, completed=part.done, events=tally.total)
