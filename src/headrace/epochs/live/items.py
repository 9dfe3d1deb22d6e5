"""What a live subscription gives: whole epochs, or batches and progress as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeAlias

import msgspec
import pyarrow as pa

from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.messages import Data
from headrace.epochs.core.queues import size_of
from headrace.epochs.core.times import Time
from headrace.epochs.live.frames import Payload
from headrace.errors import FrameError


def decoded(data: Data) -> pa.RecordBatch:
    """The rows of a batch that was kept."""
    if not isinstance(data.payload, Payload):
        raise FrameError("a batch without a payload")
    return data.payload.rows(data.rows)


class LiveEpoch:
    """A whole epoch."""

    def __init__(self, time: Time, batches: tuple[Data, ...]) -> None:
        self.time = time
        self._batches = batches

    def __repr__(self) -> str:
        return f"<LiveEpoch {self.time}: {self.rows} rows>"

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(data.rows for data in self._batches)

    @property
    def nbytes(self) -> int:
        """How much memory its rows take, as they came."""
        return sum(size_of(data.payload) for data in self._batches)

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        """Its rows as they were published, publisher by publisher in order."""
        for data in self._batches:
            yield decoded(data)

    async def table(self) -> pa.Table:
        """All rows at once; columns that are all null may be missing."""
        batches = [batch async for batch in self]
        tables = [pa.Table.from_batches([batch]) for batch in batches]
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


class LiveBatch(msgspec.Struct, frozen=True):
    """Rows of an epoch, as they come; mode ``streaming`` and ``unfiltered``."""

    time: Time
    publisher: str
    batch: pa.RecordBatch


class LiveFrontier(msgspec.Struct, frozen=True):
    """What lies before it is complete; what lies at or after it is still to come."""

    frontier: Frontier


class LiveSkipped(msgspec.Struct, frozen=True):
    """Epochs at or before `upper` that were not complete have lost rows of a publisher: void."""

    publisher: str
    upper: Frontier


class LiveTakenBack(msgspec.Struct, frozen=True):
    """What a publisher put into epochs at or after `held` does not count."""

    publisher: str
    held: Frontier


class StartedOver(msgspec.Struct, frozen=True):
    """The subscription began anew: epochs that were open are not seen whole, and left out."""

    reason: str


LiveItem: TypeAlias = (
    LiveEpoch | LiveBatch | LiveFrontier | LiveSkipped | LiveTakenBack | StartedOver
)


class LiveStatistics(msgspec.Struct):
    """Counts since a subscription was opened."""

    batches: int = 0
    dropped_batches: int = 0
    """Those whose payload was never looked into; what publishers left out never came."""
    decoded_bytes: int = 0
    dropped_bytes: int = 0
    restarts: int = 0
    given_up_epochs: int = 0
