"""The place of a query of whole epochs: a frontier, and of which streams.

What lies before the frontier was read; what lies at or after it is still to come.  Complete epochs
never change, so two frontiers say for ever which rows a batch has.  As for plain streams, the start
is resolved once: the end of the first batch carries it in ``first``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.epochs.core.times import TimeShape
from headrace.errors import ForeignCheckpointError

_MEND = "choose another checkpointLocation"


class EpochsAt(msgspec.Struct, frozen=True):
    """A frontier over streams, {name: id}; ``length`` is of its times."""

    frontier: str
    length: int
    streams: dict[str, int]


class EpochBehind(msgspec.Struct, frozen=True):
    """Epochs and rows that are complete and not read; a lower bound where there are many."""

    epochs: int
    rows: int
    at_least: bool = False


class EpochOffset(msgspec.Struct, frozen=True, kw_only=True):
    """A place of a query."""

    catalog: str
    epochs: EpochsAt
    initial: bool = False
    first: str | None = None
    behind: EpochBehind | None = None
    """Of a query's latest place: what lies between."""

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps; equal places give equal text."""
        at = self.epochs
        shown: dict[str, Any] = {"catalog": self.catalog}
        if self.behind is not None:
            shown["behind"] = msgspec.to_builtins(self.behind)
        shown["epochs"] = {
            "frontier": at.frontier,
            "length": at.length,
            "streams": {name: at.streams[name] for name in sorted(at.streams)},
        }
        if self.first is not None:
            shown["first"] = self.first
        if self.initial:
            shown["initial"] = True
        return shown


# Used here, since the first use of a type by msgspec is not safe in several threads at once.
msgspec.convert(
    {"catalog": "", "epochs": {"frontier": "", "length": 0, "streams": {}}}, EpochOffset
)


def parse_epochs(data: Mapping[str, Any]) -> EpochOffset:
    """The place that Spark kept, or an error when it is of another kind of query."""
    if "streams" in data and "epochs" not in data:
        raise ForeignCheckpointError(
            f"the checkpoint is of a query without epochs=whole, which counts offsets; {_MEND}"
        )
    try:
        return msgspec.convert(data, EpochOffset, strict=False)
    except msgspec.ValidationError as error:
        raise ForeignCheckpointError(
            f"the checkpoint does not hold a frontier of a Headrace stream ({error}); {_MEND}"
        ) from error


def check_place(place: EpochOffset, catalog: str, streams: Mapping[str, int], length: int) -> None:
    """Refuse a place of another catalog, of other streams, or of one that was made anew."""
    if place.catalog != catalog:
        raise ForeignCheckpointError(f"the checkpoint belongs to another catalog; {_MEND}")
    known = place.epochs.streams
    if set(known) != set(streams):
        raise ForeignCheckpointError(
            f"the checkpoint is of epochs of {', '.join(sorted(known))}, and the query reads "
            f"{', '.join(sorted(streams))}; {_MEND}"
        )
    for name, number in known.items():
        if streams[name] != number:
            raise ForeignCheckpointError(
                f"stream {name!r} was deleted and made anew since the checkpoint; {_MEND}"
            )
    if place.epochs.length != length:
        raise ForeignCheckpointError(f"the checkpoint's times have another shape; {_MEND}")


def shape_of(place: EpochOffset) -> TimeShape:
    """The shape of a place's times."""
    return TimeShape(place.epochs.length)
