"""Where a read begins and ends: what the options say of places, as offsets of segments."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from headrace.catalog.streams import Segment, Stream
from headrace.errors import InvalidOptionError, InvalidPositionError, UnknownSegmentError
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.spark import planning
from headrace.spark.offsets import Offset, StreamAt
from headrace.spark.options import KAFKA_EARLIEST, KAFKA_LATEST, SourceOptions, Spot, Times


class Places:
    """Places of one query's options."""

    def __init__(self, log: Log, options: SourceOptions) -> None:
        self._log = log
        self._options = options

    def segments(self, stream: Stream) -> tuple[Segment, ...]:
        """Those that the query may read."""
        wanted = self._options.assign.get(stream.name)
        if wanted is None:
            return stream.segments
        return tuple(segment for segment in stream.segments if segment.number in wanted)

    def offset(
        self, found: Mapping[str, Stream], spot: Spot, what: str, *, initial: bool = False
    ) -> Offset:
        named = spot.at_us if isinstance(spot, Times) else spot
        if isinstance(named, dict):
            for name in named:
                if name not in found:
                    raise InvalidOptionError(
                        f"{what} names stream {name!r}, which is not among those that are read"
                    )
            for name in found:
                if name not in named:
                    raise InvalidOptionError(f"{what} says nothing about stream {name!r}")
        return Offset(
            catalog=self._log.prefix,
            streams={
                name: StreamAt(stream.id, self._positions(stream, spot, what))
                for name, stream in found.items()
            },
            initial=initial,
        )

    def _positions(self, stream: Stream, spot: Spot, what: str) -> dict[int, int]:
        segments = self.segments(stream)
        match spot:
            case "earliest":
                return planning.earliest(segments)
            case "latest" if what == "endingOffsets":
                return {segment.number: segment.head for segment in segments}
            case "latest":
                return planning.latest(segments)
            case int():
                found = self._at_time(stream, spot)
                if what == "endingOffsets":
                    return {s.number: found.get(s.number, s.head) for s in segments}
                return found
            case dict():
                return self._given(stream, segments, spot[stream.name], what)
            case Times():
                return self._given(stream, segments, self._at_times(stream, spot), what)
        raise InvalidOptionError(f"{what}={spot!r} is not a place")

    def _given(
        self, stream: Stream, segments: tuple[Segment, ...], given: Mapping[int, int], what: str
    ) -> dict[int, int]:
        by_number = {segment.number: segment for segment in segments}
        found = {}
        for number, offset in given.items():
            segment = by_number.get(number)
            if segment is None:
                raise UnknownSegmentError(
                    f"{what}: stream {stream.name!r} has no segment {number} that is read"
                )
            offset = {KAFKA_EARLIEST: segment.tail, KAFKA_LATEST: segment.head}.get(offset, offset)
            if what == "startingOffsets" and not self._options.fail_on_data_loss:
                offset = max(offset, segment.tail)
            if not segment.tail <= offset <= segment.head:
                raise InvalidPositionError(
                    f"{what}: offset {offset} is outside segment {number} of stream "
                    f"{stream.name!r}, which has {segment.tail} to {segment.head}"
                )
            found[number] = offset
        if what == "endingOffsets":
            # What is not named is read to its head, as a read without an end would.
            return {segment.number: segment.head for segment in segments} | found
        left_out = planning.uncovered(segments, found)
        if left_out:
            raise InvalidOptionError(
                f"{what} leaves out segment {left_out[0]} of stream {stream.name!r}, which would "
                "never be read; name it too (-2 is earliest, -1 latest)"
            )
        return found

    def _at_time(self, stream: Stream, ts_us: int) -> dict[int, int]:
        """The first event at or after a time, for every segment that has or may get one."""
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ts_us)
        query = Query(start=moment, follow=True, segments=self._options.assign.get(stream.name))
        return self._log.reader(stream.name, query).positions

    def _at_times(self, stream: Stream, times: Times) -> dict[int, int]:
        """The first event of each segment at or after its own time, or its end."""
        wanted = times.at_us[stream.name]
        found = {ts_us: self._at_time(stream, ts_us) for ts_us in set(wanted.values())}
        heads = {segment.number: segment.head for segment in stream.segments}
        return {
            number: found[ts_us].get(number, heads.get(number, 0))
            for number, ts_us in wanted.items()
        }
