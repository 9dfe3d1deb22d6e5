"""``headrace epoch publish``, ``advance`` and ``close``: a publisher at the terminal."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, TypeVar

import msgspec
import pyarrow as pa
from cyclopts import Parameter
from rich.markup import escape

from headrace.cli import epoch_live, records
from headrace.cli.epoch_shapes import AdvancedPublisher, EndedPublisher, PublishedRows
from headrace.cli.epoch_times import (
    USUAL_PUBLISHER,
    PublisherOption,
    StreamArgument,
    Typed,
    time_of,
    times_of,
    typed,
)
from headrace.cli.failures import CheckFailedError, StoppedError, UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, tell
from headrace.cli.publish import chunks, value_of
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.commits import Step
from headrace.epochs.core.ledger import PublisherState
from headrace.epochs.core.times import Time
from headrace.epochs.runtime.opening import LEASE_TTL_MS, Recover, find, standing_of
from headrace.epochs.runtime.publisher import EpochPublisher
from headrace.errors import (
    EpochStreamEndedError,
    HeadraceError,
    InvalidEventError,
    LateEventError,
    UnknownPublisherError,
)
from headrace.log import limits
from headrace.log.events import Event, batch_of, check_event, now_us
from headrace.subjects import check_name

if TYPE_CHECKING:
    from headrace.api.client import Headrace

RowParts = AsyncIterator[tuple[pa.RecordBatch, int]]
"""Batches of events, each with how many rows stand before it."""
T = TypeVar("T")

KeepOption = Annotated[
    bool,
    Parameter(
        negative="",
        help="If the last program of that name was killed, let what it left in unfinished epochs "
        "count; else it is taken back.",
    ),
]
ListenersOption = Annotated[
    int, Parameter(help="Wait for this many subscribers first (streams that store nothing).")
]
TtlOption = Annotated[int, Parameter(help="How soon another program takes over when this dies.")]


@Parameter(name="*")
@dataclass(frozen=True)
class EpochRowsFrom:
    """Where the rows of an epoch come from, and how those of a file become events."""

    lines: Annotated[bool, Parameter(negative="", help="One event for each line of the input.")] = (
        False
    )
    json_lines: Annotated[
        bool, Parameter(negative="", help="One event for each JSON line of the input.")
    ] = False
    file: Annotated[
        Path | None, Parameter(help="A .parquet, .csv or .tsv file; one event for each row.")
    ] = None
    subject: Annotated[
        str | None,
        Parameter(
            name="--subject",
            help="With --file: a column, or a template such as flights.{origin}; without it the "
            "columns are an event's own.",
        ),
    ] = None
    value: Annotated[
        str | None, Parameter(name="--value", help="With --file: a column; else the row as JSON.")
    ] = None

    def check_time(self, time: str | None) -> None:
        if time is None and self.file is None and not self.json_lines:
            raise UsageError("say which epoch: --time 17")

    def check(self, subject: str | None, value: str | None) -> None:
        if sum((self.lines, self.json_lines, self.file is not None)) > 1:
            raise UsageError("choose one of --lines, --json-lines and --file")
        if self.file is None and (self.subject is not None or self.value is not None):
            raise UsageError("--subject and --value go with --file")
        if (self.file is not None or self.json_lines) and subject is not None:
            raise UsageError("with --file or --json-lines each row has its own subject and value")
        if self.lines and value is not None:
            raise UsageError("with --lines the values come from the input; leave VALUE out")
        if self.file is None and not self.json_lines and subject is None:
            raise UsageError("give a SUBJECT and a VALUE, or --lines, --json-lines or --file")


ONE_EVENT = EpochRowsFrom()


def publish(
    stream: StreamArgument,
    subject: Annotated[str | None, Parameter(help="The subject of what is published.")] = None,
    value: Annotated[str | None, Parameter(help="The event's value; - for the input.")] = None,
    /,
    *,
    time: Annotated[
        str | None, Parameter(help="The epoch; may be left out where rows have an epoch.")
    ] = None,
    advance_to: Annotated[
        str | None, Parameter(help="Afterwards all before this time is complete.")
    ] = None,
    publisher: PublisherOption = USUAL_PUBLISHER,
    key: Annotated[
        str | None, Parameter(alias="-k", help="The key; with --file, a column or a template.")
    ] = None,
    source: EpochRowsFrom = ONE_EVENT,
    keep: KeepOption = False,
    lease_ttl_ms: TtlOption = LEASE_TTL_MS,
    listeners: ListenersOption = 0,
    options: Options = NONE,
) -> None:
    """Publish rows of an epoch; nobody is given any before all of it is complete.

    To a stream that stores nothing they go to whoever reads it; the end of the input closes it.

    * `headrace epoch publish orders orders.eu '{"total": 12}' --time 17`
    * `headrace epoch publish orders --time 17 --file day17.parquet --advance-to 18`
    * `tail -f app.log | headrace epoch publish logs logs.app --lines --time 3 --publisher app`
    """
    source.check(subject, value)
    source.check_time(time)
    at = None if time is None else typed(time, "--time")
    goal = None if advance_to is None else typed(advance_to, "--advance-to")
    event = _template(source, subject, value, key)

    async def work(hr: Headrace) -> tuple[int, Frontier]:
        parts = _parts(source, event, key)
        if await hr.host.in_thread(epoch_live.is_live, hr.host.log, stream):
            return await epoch_live.published(hr, stream, publisher, at, goal, parts, listeners)
        opening = await _checked(hr, stream, publisher, at, goal)
        opened = _as_it_was(hr, stream, publisher, keep=keep, lease_ttl_ms=lease_ttl_ms)
        return await _published(opened, opening, parts, source.file)

    rows, frontier = _run(options, work)
    options.show(
        PublishedRows(stream=stream, publisher=publisher, published_events=rows, frontier=frontier),
        f"{counted(rows, 'row')} in stream [bold]{escape(stream)}[/bold]; "
        f"{escape(publisher)} is at {ledger.shown(frontier)}",
    )


def _template(
    source: EpochRowsFrom, subject: str | None, value: str | None, key: str | None
) -> Event | None:
    if subject is None:
        return None
    given = b"" if source.lines else value_of(value)
    return check_event(Event(subject=subject, value=given, key=key))


def advance(
    stream: StreamArgument,
    to: Annotated[str, Parameter(help="All before this time is complete.")],
    /,
    *,
    publisher: PublisherOption = USUAL_PUBLISHER,
    keep: KeepOption = False,
    options: Options = NONE,
) -> None:
    """Say that all before a time is complete, as far as a publisher is concerned.

    Example: `headrace epoch advance orders 18 --publisher eu`
    """
    goal = typed(to, "TO")

    async def work(hr: Headrace) -> Frontier:
        opening = await _checked(hr, stream, publisher, None, goal, joins=False)
        async with _as_it_was(hr, stream, publisher, keep=keep) as pub:
            _refuse_recovered(pub)
            await pub.advance_to(opening.advance_to)
            return pub.frontiers

    frontier = _run(options, work)
    done = AdvancedPublisher(stream=stream, publisher=publisher, frontier=frontier)
    options.show(done, f"{escape(publisher)} is at {ledger.shown(frontier)}")


def close(
    stream: StreamArgument,
    /,
    *,
    publisher: PublisherOption = USUAL_PUBLISHER,
    keep: KeepOption = False,
    options: Options = NONE,
) -> None:
    """Say that nothing more comes from a publisher; after the last one the stream is closed.

    Example: `headrace epoch close orders --publisher eu`
    """

    async def work(hr: Headrace) -> None:
        await _checked(hr, stream, publisher, None, None, joins=False)
        async with _as_it_was(hr, stream, publisher, keep=keep) as pub:
            _refuse_recovered(pub)
            await pub.close()

    _run(options, work)
    options.show(
        EndedPublisher(stream=stream, publisher=publisher, ended="closed"),
        f"publisher [bold]{escape(publisher)}[/bold] of {escape(stream)} is closed",
    )


# --- opening ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Opening:
    """What is to be done, checked against what is there before anything joins."""

    time: Time | None
    advance_to: Frontier | None
    alone: bool
    """Whether no rows of this publisher lie in epochs that are not complete."""


async def _checked(
    hr: Headrace,
    stream: str,
    publisher: str,
    time: Typed | None,
    goal: Typed | None,
    *,
    joins: bool = True,
) -> _Opening:
    check_name(publisher, "publisher")
    log = hr.host.log
    where = await hr.host.in_thread(find, log, stream)
    shape = where.shape
    at = None if time is None else time_of(shape, time, "--time")
    to = None if goal is None else times_of(shape, goal, "--advance-to" if joins else "TO")
    state, known = await hr.host.in_thread(standing_of, log, where, publisher)
    if state.status != ledger.OPEN:
        raise EpochStreamEndedError(stream, state.status, state.reason)
    if known is None and not joins:
        raise UnknownPublisherError(stream, publisher)
    held = PublisherState(publisher, state.lower) if known is None else known
    times = () if at is None else (at,)
    ledger.check_steps(state, held, [Step(times=times, rows=len(times), advance_to=to)])
    return _Opening(at, to, alone=known is None or known.line < state.first_open)


def _as_it_was(
    hr: Headrace, stream: str, publisher: str, *, keep: bool, lease_ttl_ms: int = LEASE_TTL_MS
) -> EpochPublisher:
    recover: Recover = "keep" if keep else "rollback"
    return hr.epoch_publisher(stream, publisher, recover=recover, lease_ttl_ms=lease_ttl_ms)


def _run(options: Options, work: Callable[[Headrace], Awaitable[T]]) -> T:
    async def run() -> T:
        async with options.open_async() as hr:
            return await work(hr)

    return asyncio.run(run())


def _recovered(pub: EpochPublisher) -> str:
    epochs = ", ".join(str(time) for time in list(pub.recovered.rows)[:10])
    return (
        f"the last program under the name {pub.name!r} did not end cleanly; "
        f"{counted(pub.recovered.total, 'row')} of it in unfinished epochs ({epochs}) "
        f"{'was' if pub.recovered.total == 1 else 'were'} taken back"
    )


def _tell_recovered(pub: EpochPublisher) -> None:
    if pub.recovered.total:
        tell(f"headrace: {_recovered(pub)}")


def _refuse_recovered(pub: EpochPublisher) -> None:
    if pub.recovered.total:
        raise CheckFailedError(
            f"{_recovered(pub)}; publish them again, or repeat this command to go on without them"
        )


# --- rows ------------------------------------------------------------------------------------


async def _published(
    opened: EpochPublisher, opening: _Opening, parts: RowParts, file: Path | None
) -> tuple[int, Frontier]:
    async with opened as pub:
        _tell_recovered(pub)
        rows = await _append_all(pub, opening, parts, file)
        if opening.advance_to is not None:
            await pub.advance_to(opening.advance_to)
        return rows, pub.frontiers


async def _append_all(
    pub: EpochPublisher, opening: _Opening, parts: RowParts, file: Path | None
) -> int:
    """Append part by part; if one fails, those before it are taken back where that is possible."""
    rows = 0
    try:
        async for batch, first_row in parts:
            try:
                await pub.append(opening.time, batch)
            except InvalidEventError as error:
                if error.row is None:
                    raise
                told, row = str(error).removeprefix(f"row {error.row}: "), first_row + error.row + 1
                at = f"row {row}" if file is None else f"row {row} of {file.name}"
                raise InvalidEventError(f"{at}: {told}", row=row) from error
            except LateEventError as error:
                raise error.counted_from(first_row + 1) from error
            rows += batch.num_rows
    except HeadraceError as error:
        if not rows:
            raise
        if not opening.alone:
            raise StoppedError(error, rows) from error
        with suppress(HeadraceError):
            await pub.rollback()
            tell(f"headrace: {counted(rows, 'row')} before that taken back")
        raise
    return rows


async def _parts(source: EpochRowsFrom, event: Event | None, key: str | None) -> RowParts:
    if source.file is not None:
        from headrace.cli.files import Mapping, open_file

        mapping = Mapping(source.subject, key, source.value, None)
        with open_file(source.file, mapping, as_text=False) as opened:
            for part in opened.parts:
                yield part.events, part.first_row
    elif source.json_lines or source.lines:
        row = 0
        async for lines in _from_input(sys.stdin.buffer):
            made = [_event(line, row + at, event) for at, line in enumerate(lines, 1)]
            yield batch_of(made, now_us()), row
            row += len(lines)
    else:
        assert event is not None
        yield batch_of([event], now_us()), 0


def _event(line: bytes, number: int, template: Event | None) -> Event:
    if template is None:
        return records.parsed(line, number)
    if len(line) > limits.EVENT_BYTES_MAX:
        raise InvalidEventError(f"line {number} is longer than an event may be")
    return msgspec.structs.replace(template, value=line)


async def _from_input(source: IO[bytes]) -> AsyncIterator[list[bytes]]:
    """Lines as they come, read on a thread: leases are kept meanwhile, and Ctrl-C need not wait."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[list[bytes] | BaseException | None] = asyncio.Queue(1)

    def put(found: list[bytes] | BaseException | None) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(found), loop).result()

    def read(lines: Iterator[list[bytes]]) -> None:
        with suppress(RuntimeError, asyncio.CancelledError):  # nobody waits any more
            try:
                for found in lines:
                    put(found)
                put(None)
            except (HeadraceError, OSError) as error:
                put(error)

    threading.Thread(target=read, args=(chunks(source),), daemon=True).start()
    while (found := await queue.get()) is not None:
        if isinstance(found, BaseException):
            raise found
        yield found
