"""Where a seek goes: a place in words, and the offset that it means in every segment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from headrace.catalog.streams import Segment, Stream
from headrace.errors import InvalidPositionError, SeekOutsideError, UnknownUnitNameError
from headrace.groups.operations.targets import GroupReader, Spot, Target
from headrace.log import order
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.log.times import TIME_MAX_US, TIME_MIN_US, to_us

Positions = Mapping[str | int, int]
"""{unit: offset}; a unit is a segment's number, or ``orders/3`` where a group reads several."""
To = str | datetime | Positions
"""``"earliest"``, ``"latest"``, a time, or positions."""


def described(to: To) -> str:
    """A place in words."""
    match to:
        case str():
            return to
        case datetime():
            return (
                datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=to_us(to))
            ).isoformat()
        case _:
            shown = ", ".join(f"{unit}:{offset}" for unit, offset in list(to.items())[:8])
            return shown + (f" and {len(to) - 8} more" if len(to) > 8 else "")


def check_place(to: object) -> None:
    match to:
        case "earliest" | "latest":
            return
        case datetime():
            if TIME_MIN_US <= to_us(to) <= TIME_MAX_US:
                return
        case Mapping() if to:
            if all(type(offset) is int and offset >= 0 for offset in to.values()):
                return
    raise InvalidPositionError(
        f"to={to!r} is not a place for a group: give 'earliest', 'latest', a datetime or "
        "{segment: offset}"
    )


def look_up(log: Log, target: Target, here: Sequence[Spot], to: To) -> dict[str, dict[int, int]]:
    """{stream: {segment: offset}} of what has to be looked up; blocks.

    A time that is still to come is refused, unless there are events of then.
    """
    if not isinstance(to, datetime):
        return {}
    found = {}
    beyond = to_us(to) > log.catalog.read(lambda tx: tx.now_us())
    for stream in {spot.stream.name for spot in here if is_sought(target, spot.reader)}:
        reader = log.reader(stream, Query(start=to, follow=True))
        places = reader.positions
        segments = reader.stream.segments
        found[stream] = {s.number: places.get(s.number, s.head) for s in segments}
        beyond = beyond and all(found[stream][s.number] >= s.head for s in segments)
    if beyond:
        raise InvalidPositionError(
            f"group {target.name}: {described(to)} lies in the future, and there is no event of "
            "then; to skip all there is, seek to latest"
        )
    return found


def is_sought(target: Target, reader: GroupReader) -> bool:
    """Whether a place is one of this reader's: of an elastic group, those in its source."""
    return reader.fills or target.kind != "elastic"


def wanted_offsets(
    target: Target,
    stream: Stream,
    resolved: Mapping[str, Mapping[int, int]],
    to: To,
    chosen: Collection[int] | None,
) -> dict[int, int]:
    """Where one stream's segments are sought to, with those that follow."""
    found: dict[int, int] = {}
    for segment in stream.segments:
        if chosen is not None and segment.number not in chosen:
            continue
        match to:
            case "earliest":
                found[segment.number] = segment.tail
            case "latest":
                found[segment.number] = segment.head
            case datetime():
                at = resolved.get(stream.name, {}).get(segment.number)
                if at is not None:
                    found[segment.number] = max(at, segment.tail)
            case Mapping():
                given = _given(target, stream, segment, to)
                if given is not None:
                    if not segment.tail <= given <= segment.head:
                        raise SeekOutsideError(target.name, stream.name, _kept(stream))
                    found[segment.number] = given
    graph = {segment.number: segment.predecessors for segment in stream.segments}
    by_number = {segment.number: segment for segment in stream.segments}
    unfinished = [n for n, offset in found.items() if offset < by_number[n].head]
    for number in order.following(unfinished, graph):
        found.setdefault(number, by_number[number].tail)
    return found


def _given(target: Target, stream: Stream, segment: Segment, to: Positions) -> int | None:
    for name in (segment.number, str(segment.number), f"{stream.name}/{segment.number}"):
        if name in to and ("/" in str(name) or _one_stream(target)):
            return to[name]
    return None


def _one_stream(target: Target) -> bool:
    sought = {reader.stream for reader in target.readers if is_sought(target, reader)}
    return len(sought) == 1


def _kept(stream: Stream) -> list[tuple[int, int, int]]:
    return [(segment.number, segment.tail, segment.head) for segment in stream.segments]


def check_units(target: Target, here: Sequence[Spot], asked: Collection[str | int]) -> None:
    """Refuse units that the group does not have."""
    known = set()
    for spot in here:
        if is_sought(target, spot.reader):
            known.add(f"{spot.stream.name}/{spot.segment.number}")
            if _one_stream(target):
                known |= {str(spot.segment.number)}
    unknown = sorted({str(unit) for unit in asked} - known)
    if unknown or not asked:
        has = sorted(unit for unit in known if "/" in unit) or ["none"]
        raise UnknownUnitNameError(target.name, unknown, has)


def chosen_segments(stream: Stream, asked: Collection[str | int] | None) -> set[int] | None:
    if asked is None:
        return None
    names = {str(unit) for unit in asked}
    return {
        s.number
        for s in stream.segments
        if str(s.number) in names or f"{stream.name}/{s.number}" in names
    }
