"""Looking at streams."""

from __future__ import annotations

from datetime import datetime

import msgspec

from headrace.catalog.streams import Stream, StreamConfig
from headrace.groups.findings import moment
from headrace.groups.status import consumers
from headrace.node.history import STREAM_FIGURES
from headrace.node.lines import consumers_of, group_line, seen_streams, stream_line
from headrace.node.problems import not_there
from headrace.node.routes.groups import HistoryQuery, SeriesPoint
from headrace.node.routes.table import Call, Paged, Route, page_of
from headrace.node.shapes import GroupLine, Look, SegmentTile, StreamLine, revision, tiles


class StreamPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the list of streams."""

    streams: tuple[StreamLine, ...]
    count: int
    look_age_s: float


class SegmentOwner(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is in a segment, and who owns it."""

    segment: int
    member: str | None
    state: str
    floor: int
    head: int
    lag_events: int


class StreamGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that consumes a stream, on its map."""

    line: GroupLine
    segments: tuple[SegmentOwner, ...]


class StreamView(msgspec.Struct, frozen=True, kw_only=True):
    """A stream with its map, its settings and its groups."""

    line: StreamLine
    config: StreamConfig
    revision: str
    """A change of the settings names it, and is refused when they have moved."""
    created_at: datetime
    segments: tuple[SegmentTile, ...]
    groups: tuple[StreamGroup, ...]
    seen_at: datetime
    look_age_s: float


class SegmentPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the list of a stream's segments."""

    segments: tuple[SegmentTile, ...]
    count: int
    look_age_s: float


async def stream_of(call: Call) -> tuple[Look, Stream]:
    """The stream in the path, if whoever asks sees it."""
    look = await call.node.look()
    name = call.params["stream"]
    found = look.streams.get(name)
    if found is None:  # made since the last look?
        await call.node.observer.next(0.5)
        look = await call.node.look()
        found = look.streams.get(name)
    if found is None or not call.who.sees_stream(found):
        raise not_there(f"stream {name[:100]!r}")
    return look, found


async def listed(call: Call) -> StreamPage:
    look = await call.node.look()
    history = call.node.observer.history
    rows = [stream_line(look, history, each, call.who) for each in seen_streams(look, call.who)]
    part, count = page_of(rows, call.query, lambda row: row.stream)
    age_s = round(call.node.observer.age_s, 3)
    return StreamPage(streams=tuple(part), count=count, look_age_s=age_s)


async def one(call: Call) -> StreamView:
    look, stream = await stream_of(call)
    history = call.node.observer.history
    groups = consumers(consumers_of(look, stream.name, call.who), stream.name)
    return StreamView(
        line=stream_line(look, history, stream, call.who),
        config=stream.config,
        revision=revision(stream.config),
        created_at=moment(stream.created_us),
        segments=tiles(stream),
        groups=tuple(
            StreamGroup(
                line=group_line(look, history, look.groups[each.group]),
                segments=tuple(
                    SegmentOwner(
                        segment=int(number),
                        member=unit.member,
                        state=unit.state,
                        floor=unit.floor,
                        head=unit.head,
                        lag_events=unit.events,
                    )
                    for unit in each.units
                    if (number := unit.unit.rpartition("/")[2]).isdigit()
                ),
            )
            for each in groups
        ),
        seen_at=moment(look.seen_us),
        look_age_s=round(call.node.observer.age_s, 3),
    )


async def segments(call: Call) -> SegmentPage:
    _, stream = await stream_of(call)
    part, count = page_of(list(tiles(stream)), call.query, lambda row: str(row.segment))
    age_s = round(call.node.observer.age_s, 3)
    return SegmentPage(segments=tuple(part), count=count, look_age_s=age_s)


async def history(call: Call) -> tuple[SeriesPoint, ...]:
    look, stream = await stream_of(call)
    now_s = look.seen_us / 1e6
    found = call.node.observer.history.points(
        STREAM_FIGURES, stream.name, now_s - call.query.seconds, now_s
    )
    return tuple(SeriesPoint(at_s=at_s, figures=figures) for at_s, figures in found)


ROUTES = (
    Route(
        method="GET",
        path="/streams",
        summary="Streams, by pages",
        handler=listed,
        answer=StreamPage,
        query=Paged,
        cli="headrace stream ls",
    ),
    Route(
        method="GET",
        path="/streams/{stream}",
        summary="A stream: its segments over time, its settings, its groups",
        handler=one,
        answer=StreamView,
        cli="headrace stream info STREAM",
    ),
    Route(
        method="GET",
        path="/streams/{stream}/segments",
        summary="The segments of a stream, as they lie on its map, by pages",
        handler=segments,
        answer=SegmentPage,
        query=Paged,
        cli="headrace stream info STREAM",
    ),
    Route(
        method="GET",
        path="/streams/{stream}/history",
        summary="Appended events and bytes a second, and retained events, over time",
        handler=history,
        answer=tuple[SeriesPoint, ...],
        query=HistoryQuery,
    ),
)
