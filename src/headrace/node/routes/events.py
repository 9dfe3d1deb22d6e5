"""Events: browse, filter, follow, download."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from headrace.errors import HeadraceError, InvalidInputError
from headrace.log.fetch import fetch_event
from headrace.log.position import Position
from headrace.log.query import Query
from headrace.node.access.roles import READ
from headrace.node.live import event_bytes
from headrace.node.places import is_place, place_of
from headrace.node.problems import not_there, problem_of
from headrace.node.routes.streams import stream_of
from headrace.node.routes.table import Call, Route
from headrace.node.scan import (
    EventConditions,
    EventView,
    Filter,
    ScanBudget,
    Scanned,
    place_text,
    scan,
    shown,
    views,
)
from headrace.node.tailing import Ration, TailedEvents
from headrace.subjects import matches

DOWNLOAD_MAX = 10_000


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events."""

    start: str = "last:50"
    until: str = ""
    subject: str = ""
    segments: str = ""
    """Numbers, with commas."""
    key: str | None = None
    header: str = ""
    text: str = ""
    where: str = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50


class DownloadQuery(EventsQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events, and in which form."""

    form: str = "jsonl"
    limit: Annotated[int, Meta(ge=1, le=DOWNLOAD_MAX)] = 1_000


class EventQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which event."""

    segment: Annotated[int, Meta(ge=0, le=2**31)]
    offset: Annotated[int, Meta(ge=0, le=2**62)]


def _conditions(query: EventsQuery) -> EventConditions:
    return EventConditions(key=query.key, header=query.header, text=query.text, where=query.where)


async def _query_of(call: Call, *, follow: bool = False) -> tuple[str, Query]:
    _, stream = await stream_of(call)
    wanted: EventsQuery = call.query
    segments = None
    if wanted.segments:
        parts = wanted.segments.split(",")
        if not all(part.isdigit() and len(part) < 10 for part in parts):
            raise InvalidInputError(f"segments={wanted.segments[:80]!r}: give numbers: 0,3")
        segments = [int(part) for part in parts]
    start = place_of(wanted.start, stream)
    if isinstance(start, dict) and segments is None and wanted.start.startswith("last:"):
        segments = None if follow else sorted(start)
    if isinstance(start, dict) and segments is not None:
        start = {number: at for number, at in start.items() if number in segments}
    return stream.name, Query(
        start=start,
        until=place_of(wanted.until, stream, "until") if wanted.until else None,
        subject=wanted.subject or None,
        segments=segments,
        follow=follow,
    )


async def listed(call: Call) -> Scanned:
    name, query = await _query_of(call)
    gone = [False]

    def is_gone() -> bool:
        return gone[0] or call.node.live.closing

    work = call.node.host.in_thread(
        scan,
        call.node.hr.log,
        name,
        query,
        _conditions(call.query),
        call.query.limit,
        ScanBudget(),
        scope=call.who.subjects,
        gone=is_gone,
    )
    try:
        return await work
    finally:
        gone[0] = True


async def one(call: Call) -> EventView:
    _, stream = await stream_of(call)
    place = Position(stream.name, call.query.segment, call.query.offset)
    event = await call.node.host.in_thread(fetch_event, call.node.hr.log, place)
    seen = not call.who.scoped or any(matches(own, event.subject) for own in call.who.subjects)
    if not seen:
        raise not_there("such event")
    form, text, cut = shown(event.value, 1024 * 1024)
    assert event.timestamp is not None
    return EventView(
        segment=place.segment,
        offset=place.offset,
        at=event.timestamp,
        subject=event.subject,
        key=event.key,
        size_bytes=len(event.value),
        form=form,
        value=text,
        cut=cut,
        headers=tuple((name, shown(value, 4_096)[1]) for name, value in _pairs(event.headers)),
        epoch=event.epoch,
    )


def _pairs(headers: Any) -> list[tuple[str, bytes]]:
    if not headers:
        return []
    found = headers.items() if hasattr(headers, "items") else headers
    return [(str(name), bytes(value)) for name, value in found]


async def tail(call: Call) -> StreamingResponse:
    last = call.request.headers.get("last-event-id", "")
    if is_place(last):  # a browser that comes back after a cut
        call.query = msgspec.structs.replace(call.query, start=last)
    name, query = await _query_of(call, follow=True)
    chosen = Filter(_conditions(call.query), call.who.subjects)
    return StreamingResponse(_tailed(call, name, query, chosen), media_type="text/event-stream")


async def _tailed(call: Call, name: str, query: Query, chosen: Filter) -> AsyncIterator[bytes]:
    """Events as they come, up to a rate limit, and how many were left out."""
    node = call.node
    reading = node.hr.read(
        name, start=query.start, follow=True, subject=query.subject, segments=query.segments
    )
    ration = Ration(node.host.now_s)
    yield b"retry: 1000\n\n"
    try:
        async for batch in reading:
            if node.live.closing:
                break
            rows = await node.host.in_thread(chosen.rows, batch)
            sent = ration.take(rows.num_rows)
            if rows.num_rows:
                found = TailedEvents(
                    stream=name,
                    events=tuple(views(rows.slice(rows.num_rows - sent), payload=True)),
                    left_out=rows.num_rows - sent,
                    next=place_text(reading.positions),
                )
                yield event_bytes("event", found.next, found)
        yield event_bytes("bye", "", {"reason": "the node ends"})
    except HeadraceError as error:
        yield event_bytes("problem", "", {"detail": problem_of(error).detail})
    finally:
        await reading.close()


async def download(call: Call) -> Response:
    form = call.query.form
    if form not in ("jsonl", "parquet"):
        raise InvalidInputError(f"form={form[:40]!r}: give jsonl or parquet")
    name, query = await _query_of(call)
    batches = await call.node.host.in_thread(_taken, call, name, query)
    if form == "jsonl":
        events = [each for batch in batches for each in views(batch, payload=True)]
        body = b"".join(msgspec.json.encode(each) + b"\n" for each in events)
        media = "application/x-ndjson"
    else:
        sink = pa.BufferOutputStream()
        schema = batches[0].schema if batches else pa.schema([])
        pq.write_table(pa.Table.from_batches(batches, schema), sink, compression="zstd")
        body, media = sink.getvalue().to_pybytes(), "application/vnd.apache.parquet"
    return Response(
        body,
        media_type=media,
        headers={"content-disposition": f'attachment; filename="{name}.{form}"'},
    )


def _taken(call: Call, name: str, query: Query) -> list[pa.RecordBatch]:
    chosen = Filter(_conditions(call.query), call.who.subjects)
    reader = call.node.hr.log.reader(name, query)
    found: list[pa.RecordBatch] = []
    left, looked = call.query.limit, 0
    while left > 0 and looked < ScanBudget().rows and not reader.done:
        batch = reader.next()
        if batch is None:
            break
        looked += batch.num_rows
        rows = chosen.rows(batch).slice(0, left)
        left -= rows.num_rows
        if rows.num_rows:
            found.append(rows)
    return found


ROUTES = (
    Route(
        method="GET",
        path="/streams/{stream}/events",
        summary="Events from a place, filtered; a scan with a budget that can go on",
        handler=listed,
        answer=Scanned,
        role=READ,
        query=EventsQuery,
        cli="headrace read STREAM",
    ),
    Route(
        method="GET",
        path="/streams/{stream}/event",
        summary="One event, by its position",
        handler=one,
        answer=EventView,
        role=READ,
        query=EventQuery,
    ),
    Route(
        method="GET",
        path="/streams/{stream}/tail",
        summary="Events as they come (server-sent events), at most 200 a second; resumes after "
        "Last-Event-ID",
        handler=tail,
        answer=None,
        role=READ,
        query=EventsQuery,
        media="text/event-stream",
        cli="headrace read STREAM --follow",
    ),
    Route(
        method="GET",
        path="/streams/{stream}/download",
        summary="Events as JSON lines or Parquet, up to 10,000",
        handler=download,
        answer=None,
        role=READ,
        query=DownloadQuery,
        media="application/octet-stream",
    ),
)
