"""Retain: what a stream's policy lets go, as a pure plan, and the queries that feed it.

A plan says, for each segment, the offset below which everything may go.  Only whole batches are
removed, so a little more may be kept than the policy asks for, and never less.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from headrace.catalog import Tx, batches, markers, progress, replicas
from headrace.catalog.batches import Place
from headrace.catalog.streams import Consumed, Groups, Limits, Segment, Stream

PAGE = 500

Cuts = dict[int, int]
"""Segment number -> the first offset to keep."""

Places = Callable[[Segment], Iterator[Place]]


def plan(stream: Stream, now_us: int, places: Places, floors: Mapping[int, int | None]) -> Cuts:
    """Where each segment may be cut.

    ``floors`` holds, per segment, the lowest floor of the subscribed groups; None when there are
    no groups.
    """
    match stream.config.retention:
        case Limits() as limits:
            return beyond(limits, stream, now_us, places)
        case Consumed():
            return {number: floor for number, floor in floors.items() if floor is not None}
        case Groups(keep=keep, cap=cap):
            free = _outside(keep, stream, now_us, places)
            over = beyond(cap, stream, now_us, places)
            return {
                segment.number: max(
                    min(
                        floors.get(segment.number) or 0,
                        free.get(segment.number, segment.tail),
                    ),
                    over.get(segment.number, segment.tail),
                )
                for segment in stream.segments
            }


def beyond(limits: Limits, stream: Stream, now_us: int, places: Places) -> Cuts:
    """Cuts that bring the stream within all limits, oldest batches first."""
    if limits == Limits():
        return {segment.number: segment.tail for segment in stream.segments}
    return _walk(
        stream,
        places,
        lambda kept_events, kept_bytes, place: (
            (limits.events is not None and kept_events >= limits.events)
            or (limits.bytes is not None and kept_bytes >= limits.bytes)
            or (limits.age_s is not None and place.created_us < now_us - limits.age_s * 1_000_000)
        ),
    )


def _outside(keep: Limits, stream: Stream, now_us: int, places: Places) -> Cuts:
    """Cuts that leave all that ``keep`` asks for; with no limit given, it asks for nothing."""
    if keep == Limits():
        return {segment.number: segment.head for segment in stream.segments}
    return _walk(
        stream,
        places,
        lambda kept_events, kept_bytes, place: (
            (keep.events is None or kept_events >= keep.events)
            and (keep.bytes is None or kept_bytes >= keep.bytes)
            and (keep.age_s is None or place.created_us < now_us - keep.age_s * 1_000_000)
        ),
    )


def _walk(stream: Stream, places: Places, may_go: Callable[[int, int, Place], bool]) -> Cuts:
    """Offer batches from the oldest on; in each segment stop at the first that must stay.

    ``may_go(events, bytes, place)`` gets what the stream would still hold without the batch.
    """
    events = sum(segment.events for segment in stream.segments)
    size = sum(segment.retained_bytes for segment in stream.segments)
    cuts = {segment.number: segment.tail for segment in stream.segments}
    # Sizes as appended, from the running totals: a compacted file is smaller than its batches.
    totals = {segment.number: segment.trimmed_bytes for segment in stream.segments}
    heap: list[tuple[int, int, int, Place, Iterator[Place]]] = []

    def offer(number: int, rest: Iterator[Place]) -> None:
        place = next(rest, None)
        if place is not None:
            heapq.heappush(heap, (place.created_us, number, place.start, place, rest))

    for segment in stream.segments:
        offer(segment.number, places(segment))
    while heap:
        _, number, _, place, rest = heapq.heappop(heap)
        left_events = events - place.events
        left_size = size - (place.total_bytes - totals[number])
        if not may_go(left_events, left_size, place):
            continue
        events, size = left_events, left_size
        totals[number] = place.total_bytes
        cuts[number] = place.end
        offer(number, rest)
    return cuts


def read_places(tx: Tx) -> Places:
    """Batches of a segment from the oldest on, a page at a time."""

    def places(segment: Segment) -> Iterator[Place]:
        after = -1
        while page := batches.places(tx, segment.id, after, PAGE):
            after = page[-1].start
            if segment.markers:
                page = [_counted(tx, segment, place) for place in page]
            yield from page

    return places


def _counted(tx: Tx, segment: Segment, place: Place) -> Place:
    found = markers.between(tx, segment.id, place.start, place.end)
    return msgspec.structs.replace(place, markers=found)


def over(tx: Tx, streams: Sequence[Stream]) -> dict[int, Cuts]:
    """Where those of some streams may be cut whose policies let something go, by their ids."""
    bound = [stream for stream in streams if stream.config.retention != Limits()]
    waiting = [stream for stream in bound if not isinstance(stream.config.retention, Limits)]
    floors = dict(zip([stream.id for stream in waiting], _floors(tx, waiting), strict=True))
    now_us, places = tx.now_us(), read_places(tx)
    found = {}
    for stream in bound:
        cuts = plan(stream, now_us, places, floors.get(stream.id, {}))
        if any(cuts.get(segment.number, 0) > segment.tail for segment in stream.segments):
            found[stream.id] = cuts
    return found


def read_floors(tx: Tx, stream: Stream) -> dict[int, int | None]:
    """The lowest floor of the subscribed groups in each segment, and of regions that copy it.

    Where there are no groups nothing goes, however far other regions have come.
    """
    return _floors(tx, [stream])[0]


def _floors(tx: Tx, streams: Sequence[Stream]) -> list[dict[int, int | None]]:
    """As :func:`read_floors`, of several streams."""
    groups = progress.subscribed_to(tx, [stream.id for stream in streams])
    segments = [segment for stream in streams for segment in stream.segments]
    floors = progress.floors(tx, [segment.id for segment in segments])
    linked = [segment.id for segment in segments if segment.lane is not None]
    taken = replicas.taken(tx, linked) if linked else {}

    def floor_of(stream: Stream, segment: Segment) -> int | None:
        reached = floors.get(segment.id, {})
        floor = min((reached.get(group, 0) for group in groups.get(stream.id, ())), default=None)
        return None if floor is None else min([floor, *taken.get(segment.id, {}).values()])

    return [
        {segment.number: floor_of(stream, segment) for segment in stream.segments}
        for stream in streams
    ]
