"""What a streaming query cannot read any more: trimmed events, and streams that are gone.

With ``failOnDataLoss`` either ends the query, with an error that says what is lost.  Without it the
query goes on, with its state, as if the lost events had never been, and each loss is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from headrace.catalog.streams import Segment, Stream
from headrace.errors import DataLossError, ForeignCheckpointError
from headrace.spark.offsets import Offset, Positions

_log = logging.getLogger(__name__)
_SAID_MAX = 10_000


class Losses:
    """The losses of one query; ``fatal`` ones are raised, others are passed over and logged."""

    def __init__(self, fatal: bool) -> None:
        self._fatal = fatal
        self._said: set[str] = set()

    def kept(self, place: Offset, catalog: str, known: Mapping[str, Stream]) -> Offset:
        """A place without the streams that are gone; of another catalog it is refused."""
        if place.catalog != catalog:
            raise ForeignCheckpointError(
                "the checkpoint belongs to another catalog; choose another checkpointLocation"
            )
        gone = [
            name
            for name, at in place.streams.items()
            if name not in known or known[name].id != at.id
        ]
        for name in gone:
            self._tell(_of_stream(name, anew=name in known), "going on without what it held")
        if not gone:
            return place
        left = {name: at for name, at in place.streams.items() if name not in gone}
        return msgspec.structs.replace(place, streams=left)

    def retained(self, stream: str, segment: Segment, position: int) -> int:
        """Where to go on in a segment: at ``position``, or behind what was trimmed."""
        if position >= segment.tail:
            return position
        self._tell(
            data_loss(stream, segment.number, position, segment.tail),
            f"going on at {segment.tail}",
        )
        return segment.tail

    def segment(self, stream: str, segment: int, position: int) -> None:
        """A segment is gone in which the query stands."""
        self._tell(_of_segment(stream, segment, position), "going on with what followed from it")

    def taken_back(self, stream: str, segment: int, position: int, head: int) -> None:
        """What the query has read from ``head`` on is not in the log any more, or is another's."""
        self._tell(_of_history(stream, segment, position, head), f"going on at {head}")

    def _tell(self, loss: DataLossError, further: str) -> None:
        if self._fatal:
            raise loss
        said = str(loss).partition(";")[0]
        if said not in self._said and len(self._said) < _SAID_MAX:
            self._said.add(said)
            _log.warning("%s; %s", said, further)


def data_loss(stream: str, segment: int, position: int, first: int) -> DataLossError:
    """Of events that were trimmed before they were read."""
    return DataLossError(
        f"stream {stream!r} segment {segment}: offsets {position} to {first - 1} were trimmed "
        "before the query read them; set failOnDataLoss to false to go on without them"
    )


def _of_history(stream: str, segment: int, position: int, head: int) -> DataLossError:
    return DataLossError(
        f"stream {stream!r} segment {segment}: the query has read up to offset {position}, and the "
        f"catalog went back since and had nothing from {head} on; set failOnDataLoss to false to "
        "read what is there now, with the query's state, or choose another checkpointLocation"
    )


def _of_segment(stream: str, segment: int, position: int) -> DataLossError:
    return DataLossError(
        f"stream {stream!r} segment {segment}: the query stands at offset {position}, and the "
        "segment was sealed, trimmed and removed since, so that what it held from there on is lost "
        "to the query; set failOnDataLoss to false to go on without it"
    )


def _of_stream(name: str, *, anew: bool) -> DataLossError:
    if anew:
        return DataLossError(
            f"stream {name!r} was deleted and made anew since the query read it; set "
            "failOnDataLoss to false to read the new one from its start, with the query's state"
        )
    return DataLossError(
        f"stream {name!r} is gone: the query has read it, and it was deleted or taken out of what "
        "is read; set failOnDataLoss to false to go on without it, with the query's state, or "
        "choose another checkpointLocation if this one is another query's"
    )


def without(segments: tuple[Segment, ...], at: Positions) -> dict[int, int]:
    """How many offsets from a place on were trimmed, where any were."""
    return {
        segment.number: segment.tail - at[segment.number]
        for segment in segments
        if segment.number in at and at[segment.number] < segment.tail
    }
