"""What a query is told of events that are gone before it has read them."""

from __future__ import annotations

from headrace.errors import DataLossError


def data_loss(stream: str, segment: int, position: int, first: int) -> DataLossError:
    """Events before ``first`` were trimmed."""
    return DataLossError(
        f"stream {stream!r} segment {segment}: offsets {position} to {first - 1} were trimmed "
        "before the query read them; set failOnDataLoss to false to go on without them"
    )


def segment_loss(stream: str, segment: int, position: int) -> DataLossError:
    """A segment is gone in which the query stands."""
    return DataLossError(
        f"stream {stream!r} segment {segment}: the query stands at offset {position}, and the "
        "segment was sealed, trimmed and removed since; what it held from there on is lost to the "
        "query; set failOnDataLoss to false to go on without it"
    )
