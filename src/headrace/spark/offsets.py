"""A streaming query's place: for every stream, the offset that comes next in each segment.

Spark keeps these as JSON in the checkpoint and compares them as text, so keys are sorted.  A
place names the catalog and the streams it belongs to by their ids, and is refused by any other.

A stream's map holds all segments that the query has still to finish, also those that wait for a
predecessor; see :mod:`headrace.spark.planning`.

The start of a query must be resolved only once: ``latest`` is another place a moment later.  Spark
does not store it, and asks for it again whenever the first batch is repeated.  So the end of the
first batch, which Spark does store, carries the start in ``first``, and a reader of that batch
takes it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.errors import ForeignCheckpointError

Positions = Mapping[int, int]


class StreamAt(msgspec.Struct, frozen=True):
    """The places in one stream, which is the one with this id."""

    id: int
    segments: dict[int, int]


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """A place in all streams of a query."""

    catalog: str
    streams: dict[str, StreamAt]
    history: str | None = None
    """The last time that the catalog had gone back, as :mod:`headrace.catalog.histories` has it."""
    initial: bool = False
    first: dict[str, dict[int, int]] | None = None
    markers: dict[str, dict[int, int]] = {}
    """Of a query's latest place: how many offsets ahead of it hold no event to read, since they are
    markers' or were trimmed."""

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps; equal places give equal text."""
        shown: dict[str, Any] = {"catalog": self.catalog}
        if self.first is not None:
            shown["first"] = {name: _sorted(self.first[name]) for name in sorted(self.first)}
        if self.history is not None:
            shown["history"] = self.history
        if self.initial:
            shown["initial"] = True
        if self.markers:
            shown["markers"] = {name: _sorted(self.markers[name]) for name in sorted(self.markers)}
        shown["streams"] = {
            name: {"id": at.id, "segments": _sorted(at.segments)}
            for name, at in sorted(self.streams.items())
        }
        return shown

    def at(self, stream: str) -> Positions:
        found = self.streams.get(stream)
        return {} if found is None else found.segments

    def beginning(self, stream: str) -> Positions:
        """Where the first batch begins, for a batch that ends here."""
        return self.at(stream) if self.first is None else self.first.get(stream, {})


# Used here, since the first use of a type by msgspec is not safe in several threads at once.
msgspec.convert({"catalog": "", "streams": {}}, Offset)


def parse(data: Mapping[str, Any]) -> Offset:
    """The place that Spark kept, or an error when it was not written by this source."""
    if "epochs" in data:
        raise ForeignCheckpointError(
            "the checkpoint is of a query with epochs=whole; set that option, or choose another "
            "checkpointLocation"
        )
    try:
        return msgspec.convert(data, Offset, strict=False)
    except msgspec.ValidationError as error:
        raise ForeignCheckpointError(
            f"the checkpoint does not hold places of a Headrace stream ({error}); choose another "
            "checkpointLocation"
        ) from error


def lag_events(latest: Offset, behind: Offset) -> dict[tuple[str, int], int]:
    """How many events lie between two places, for every segment of the later one."""
    found = {}
    for stream, at in latest.streams.items():
        none = latest.markers.get(stream, {})
        for segment, head in at.segments.items():
            offsets = head - behind.at(stream).get(segment, 0)
            found[stream, segment] = max(0, offsets - none.get(segment, 0))
    return found


def _sorted(segments: Positions) -> dict[str, int]:
    return {str(number): segments[number] for number in sorted(segments)}
