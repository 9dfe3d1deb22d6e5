"""Reading ahead: one unit's events from the log, filtered.

A reader holds a cursor in the segment and nothing else; how much may be read ahead is for the
consumer to say.  What it returns is Arrow: rows become Python objects only when they are about to
be handed out, if at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from headrace.catalog import Tx, replicas
from headrace.catalog.batches import Batch
from headrace.catalog.streams import Segment
from headrace.errors import TrimmedError
from headrace.groups.consumer.filters import UnitFilter
from headrace.groups.consumer.types import OwnedUnit
from headrace.groups.progress import Progress, store
from headrace.groups.progress.arrays import Int64s
from headrace.log.cursor import Cursor, FileAhead
from headrace.log.log import Log
from headrace.subjects import route_hash_array


class Fetched(msgspec.Struct, frozen=True, eq=False):
    """Events up to ``end``; ``keys`` are their key hashes, when they were asked for."""

    data: pa.RecordBatch
    end: int
    keys: Int64s | None
    size_bytes: int
    sifted: bool = False
    """What is not in it is acked, and nothing that is."""

    @property
    def rows(self) -> int:
        """How many events there are."""
        return int(self.data.num_rows)


class Gap(msgspec.Struct, frozen=True):
    """There is nothing for the group up to ``end``; ``trimmed`` when it was removed unread."""

    end: int
    trimmed: bool = False


class UnitReader:
    """Reads one segment forward for a group; used by one thread at a time."""

    def __init__(
        self,
        log: Log,
        unit: OwnedUnit,
        segment: Segment,
        key_tokens: tuple[int, ...],
        start: int,
        *,
        with_keys: bool,
    ) -> None:
        self._cursor = Cursor(
            log.catalog,
            log.store,
            unit.stream,
            segment,
            start,
            origins=segment.lane is not None,
        )
        self._log = log
        self._unit = unit
        self._linked = segment.lane is not None
        self._filter = None if unit.filter is None else UnitFilter(unit.filter)
        self._order_by = unit.order_by
        self._key_tokens = key_tokens
        self._with_keys = with_keys

    @property
    def position(self) -> int:
        """The next offset to read."""
        return self._cursor.position

    @property
    def in_file(self) -> bool:
        """Whether what comes next is in a file that is open."""
        return self._cursor.in_file

    @property
    def segment_id(self) -> int:
        """The segment that is read."""
        return self._cursor.segment_id

    def load(self, found: Sequence[Batch], turn: int) -> None:
        """Take what was read along with news, in the catalog's history of ``turn``."""
        self._cursor.load(found, turn)

    def next(self, end: int, *, brief: bool = False) -> Fetched | Gap:
        """What comes next, below ``end``.

        If ``brief``, it raises ``FileAhead`` instead of opening a file.
        """
        cursor = self._cursor
        try:
            batch = cursor.next(end, brief=brief)
        except TrimmedError as error:
            first = max(cursor.position, error.first)
            if self._linked:
                if brief:
                    raise FileAhead from None  # it is written down, and that takes a thread
                self._log.catalog.write(partial(self._passed, lo=cursor.position, hi=first))
            cursor.position = first
            return Gap(first, trimmed=True)
        if batch is None:
            return Gap(cursor.position)
        if "marker" in batch.schema.names:
            batch = batch.filter(batch.column("marker").is_null())
        if self._filter is not None:
            batch = batch.filter(self._filter.mask(batch.column("subject")))
        if not batch.num_rows:
            return Gap(cursor.position)
        keys = self._keys(batch) if self._with_keys else None
        return Fetched(batch, cursor.position, keys, batch.nbytes)

    def _passed(self, tx: Tx, lo: int, hi: int) -> None:
        """What is trimmed is passed over unread: it must not count as consumed elsewhere."""
        unit = self._unit
        found = store.load(tx, unit.group, unit.segment_id) or Progress()
        ranges = [(max(at, lo), end) for at, end in found.acked().missing(hi) if end > lo]
        replicas.pass_unread(tx, unit.group, unit.segment_id, ranges)

    def _keys(self, batch: pa.RecordBatch) -> Int64s:
        subjects = batch.column("subject")
        if self._order_by is not None:
            return route_hash_array(None, subjects, self._order_by).astype(np.int64)
        keys = batch.column("key") if "key" in batch.schema.names else None
        return route_hash_array(keys, subjects, self._key_tokens).astype(np.int64)
