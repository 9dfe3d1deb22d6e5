"""Rows of many small epochs, put apart by their time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.epochs.core.arrays import Times
from headrace.epochs.core.times import Time, TimeShape
from headrace.errors import HeadraceError
from headrace.log import events


class TooLarge(HeadraceError):
    """Internal: rows that were to be read at once are too large for that."""


class ByTime:
    """Rows apart by time, load by load."""

    def __init__(self, shape: TimeShape, times: Sequence[Time], *, bytes_max: int) -> None:
        self.found: dict[Time, list[pa.RecordBatch]] = {time: [] for time in times}
        self.size = 0
        """The bytes of all rows."""
        self._shape = shape
        self._bytes_max = bytes_max

    def add(self, batch: pa.RecordBatch, stamps: Times) -> None:
        """Take in a load; raises :class:`TooLarge` if that is too much in all."""
        self.size += batch.nbytes
        if self.size > self._bytes_max:
            raise TooLarge
        for time, part in split(self._shape, batch, stamps):
            self.found[time].append(part)


def split(
    shape: TimeShape, batch: pa.RecordBatch, stamps: Times
) -> Iterator[tuple[Time, pa.RecordBatch]]:
    """A batch apart by time, rows in their order."""
    keys = stamps if stamps.ndim == 1 else np.unique(stamps, axis=0, return_inverse=True)[1]
    keys = keys.reshape(-1)
    starts = _changes(keys)
    found = keys[starts]
    if (found[1:] < found[:-1]).any():
        sequence = np.argsort(keys, kind="stable")
        batch = events.reordered(batch, sequence)
        stamps, keys = stamps[sequence], keys[sequence]
        starts = _changes(keys)
    times = stamps[starts].tolist()
    bounds = [*starts.tolist(), len(keys)]
    for time, (start, end) in zip(times, pairwise(bounds), strict=True):
        yield time if shape.length == 0 else tuple(time), batch.slice(start, end - start)


def _changes(keys: Times) -> npt.NDArray[np.intp]:
    """Where other keys begin than the ones before."""
    return np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1))
