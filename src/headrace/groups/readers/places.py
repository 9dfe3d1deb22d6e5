"""Where a group is to begin, end or go: what people say, as cuts of the streams' segments.

A place is "earliest", "latest", a time, a cut (:class:`StreamCut`, a checkpoint, or ``{"orders/3":
offset}``), or one of these for each stream: ``{"orders": "latest", "clicks": …}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from headrace.catalog.streams import Stream
from headrace.errors import ForeignCutError, InvalidPositionError
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.names import GroupStream
from headrace.groups.readers.positions import GroupCheckpoint, StreamCut
from headrace.groups.shared import starts
from headrace.log import order
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.log.times import now_us, to_us

GroupPlace: TypeAlias = str | datetime | StreamCut | GroupCheckpoint | Mapping[str, object]

_FORMS = "give 'earliest', 'latest', a time with its zone, a cut, or one of these for each stream"


def cut_at(log: Log, streams: Sequence[Stream], place: object) -> dict[SegmentId, int]:
    """The cut that a place is in streams; those that a mapping leaves out begin at the earliest."""
    match place:
        case StreamCut() | GroupCheckpoint():
            check_fits(log, place, streams)
            names = {stream.name for stream in streams}
            return {s: offset for s, offset in place.cut.items() if s.stream in names}
        case Mapping():
            return _each(log, streams, place)
        case str() | datetime():
            found: dict[SegmentId, int] = {}
            for stream in streams:
                found |= _in_stream(log, stream, place)
            return found
    raise InvalidPositionError(f"{place!r} is not a place for a reader group: {_FORMS}")


def _each(
    log: Log, streams: Sequence[Stream], place: Mapping[object, object]
) -> dict[SegmentId, int]:
    if any("/" in key for key in place if isinstance(key, str)):
        cut = {}
        for key, offset in place.items():
            if not isinstance(key, str) or type(offset) is not int or offset < -1:
                raise InvalidPositionError(
                    f"{key!r}: {offset!r} is not a position; write 'stream/segment': offset"
                )
            cut[SegmentId.parse(key)] = offset
        return cut
    known = {stream.name: stream for stream in streams}
    found: dict[SegmentId, int] = {}
    for key in place:
        if key not in known:
            raise InvalidPositionError(
                f"the place names {key!r}, which is none of the streams: {', '.join(known)}"
            )
    for stream in streams:
        inner = place.get(stream.name, "earliest")
        if isinstance(inner, Mapping) and all(type(number) is int for number in inner):
            numbers: Mapping[int, int] = inner
            found |= {SegmentId(stream.name, number): at for number, at in numbers.items()}
        else:
            found |= cut_at(log, [stream], inner)
    return found


def _in_stream(log: Log, stream: Stream, place: str | datetime) -> dict[SegmentId, int]:
    if isinstance(place, str) and place not in ("earliest", "latest"):
        raise InvalidPositionError(f"{place!r} is not a place for a reader group: {_FORMS}")
    if isinstance(place, datetime):
        starts.check_start(place)
        starts.check_history(log, stream, place)
        starts.check_made(log, stream, place)
    reader = log.reader(stream.name, Query(start=place, follow=True))
    offsets = reader.positions
    if isinstance(place, datetime):
        _check_come(log, reader.stream, place, offsets)
    graph = {s.number: s.predecessors for s in reader.stream.segments}
    ahead = order.following(offsets, graph)
    return {SegmentId(stream.name, n): at for n, at in offsets.items() if n not in ahead}


def _check_come(log: Log, stream: Stream, time: datetime, found: Mapping[int, int]) -> None:
    """Refuse a time that is still to come, unless there are events of then.

    Events bear the time of this clock, which may be ahead of the catalog's.
    """
    at_us = to_us(time)
    if at_us <= now_us() or at_us <= log.catalog.read(lambda tx: tx.now_us()):
        return
    if all(found.get(each.number, each.head) >= each.head for each in stream.segments):
        raise InvalidPositionError(
            f"{starts.describe(time)} lies in the future, and there is no event of then in stream "
            f"{stream.name!r}; to skip all there is, give 'latest'"
        )


def check_fits(log: Log, place: StreamCut | GroupCheckpoint, streams: Sequence[Stream]) -> None:
    """Refuse a cut or checkpoint of another catalog, or of streams that were made anew."""
    what = "cut" if isinstance(place, StreamCut) else "checkpoint"
    if place.catalog != log.prefix:
        raise ForeignCutError(what, "it was taken in another catalog")
    known = {stream.name: stream.id for stream in streams}
    for stream in place.streams:
        if stream.name in known and known[stream.name] != stream.id:
            raise ForeignCutError(what, f"stream {stream.name!r} was made anew since")
    missing = sorted(known.keys() - {stream.name for stream in place.streams})
    if missing:
        raise ForeignCutError(what, f"it says nothing of stream {missing[0]!r}")


def ids_of(streams: Sequence[Stream]) -> tuple[GroupStream, ...]:
    """Streams as a group's record names them."""
    return tuple(GroupStream(stream.name, stream.id) for stream in streams)


def described(place: object) -> str:
    """A place in a few words, as a group's record keeps it."""
    match place:
        case datetime():
            return starts.describe(place)
        case GroupCheckpoint():
            return f"checkpoint {place.name}"
        case StreamCut():
            return f"a cut of {len(place.offsets)} segments"
        case Mapping():
            return ", ".join(f"{key}: {described(value)}" for key, value in place.items())[:500]
    return str(place)
