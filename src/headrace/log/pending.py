"""One append within a write: its events, and what the segments get of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.catalog import Tx
from headrace.catalog.lanes import LaneStep
from headrace.catalog.producers import Placed
from headrace.log import arrays, events, limits
from headrace.log.message import Single, with_column
from headrace.log.routing import Route
from headrace.log.shares import Share


class EpochProgress(Protocol):
    """What an append to an epoch stream records about its epochs, in the same transaction."""

    @property
    def publisher(self) -> object:
        """Only appends of one publisher are joined."""

    @property
    def joins(self) -> bool:
        """Whether it may be joined with its neighbours: if one fails, all do."""

    @property
    def locks(self) -> Iterable[str]: ...

    @property
    def content(self) -> bytes:
        """What it says beside its rows, for telling a repeat from something else."""

    @property
    def different_times(self) -> int:
        """How many different times its rows have."""

    def times(self) -> tuple[int, ...] | npt.NDArray[np.int64]:
        """The time of all rows, or the parts of the time of each."""

    def joined(self, others: Sequence[EpochProgress]) -> EpochProgress:
        """This and those behind it as one."""

    def prepare(self, shares: Sequence[Share]) -> None:
        """Count the rows of each time that the segments get; before the transaction."""

    def record(self, tx: Tx, placed: Sequence[Placed]) -> None:
        """Write the line; the rows are placed."""


class Pending:
    """The events of one stream within a write; ``captured`` says that their subjects chose it."""

    def __init__(
        self,
        stream: str,
        given: pa.RecordBatch | Single,
        expected: Mapping[int, int] | None = None,
        pinned: int | None = None,
        captured: bool = True,
        progress: EpochProgress | None = None,
        step: LaneStep | None = None,
    ) -> None:
        self.stream = stream
        self.step = step
        self.captured = captured
        self.expected = expected
        self.pinned = pinned
        self.progress = progress
        self.route: Route | None = None
        self.shares: tuple[Share, ...] = ()
        self.single = given if isinstance(given, Single) else None
        if isinstance(given, Single):
            self.rows, self.size_bytes, self.is_small = 1, len(given.blob), False
            return
        self.given = given
        """The events; the epoch column may be missing that ``batch`` and ``layout`` have."""
        self.rows = given.num_rows
        # The size of the buffers is cheap to ask, and an upper bound: a slice counts as the whole.
        whole = given.get_total_buffer_size()
        self.size_bytes = whole if whole <= limits.INLINE_BYTES else given.nbytes
        self.layout = events.layout_of(given.schema)
        if progress is not None and not self.layout & events.EPOCH_BIT:
            self.layout |= events.EPOCH_BIT
            times = progress.times()
            parts = len(times) if isinstance(times, tuple) else times.shape[1]
            self.size_bytes += self.rows * (8 * parts + 4)
        self.is_small = self.size_bytes <= limits.INLINE_BYTES

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """The events with all their columns."""
        if self.layout == events.layout_of(self.given.schema):
            return self.given
        assert self.progress is not None
        return with_column(self.given, self.progress.times())

    @property
    def subjects(self) -> pa.Array:
        """The subject of each row."""
        if self.single is not None:
            return arrays.texts([self.single.subject], events.STRING)
        return self.batch.column("subject")

    @property
    def joins(self) -> bool:
        """Whether it may become one batch with others."""
        if self.progress is not None and not self.progress.joins:
            return False
        if self.step is not None:
            return False
        return self.is_small and self.expected is None and self.pinned is None
