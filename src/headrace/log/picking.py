"""What a read wants of the events that it passes: some columns, and conditions on them.

A Parquet file says in its footer what the smallest and the largest time, subject and key of each
of its row groups are.  So a row group in which no event fits is never decoded, and of the others
only the columns that are wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from headrace.log import arrays, events
from headrace.subjects.columns import mask_array, mask_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

TEXTS = ("subject", "key")
"""The columns with text, on which there can be conditions."""
_ALWAYS = ("origin", "marker")
"""Columns that say what an event is; few batches have them."""


class Text(msgspec.Struct, frozen=True):
    """A condition on a column: one of some texts, or one that begins with ``prefix``."""

    column: str
    one_of: frozenset[str] | None = None
    prefix: str = ""

    def of(self, column: pa.Array) -> pa.Array:
        """Which rows fit; false or null for those that do not."""
        import pyarrow.compute as pc  # takes long to load, and most reads have no conditions

        if self.one_of is not None:
            return pc.is_in(column, value_set=arrays.texts(sorted(self.one_of), events.STRING))
        return pc.starts_with(column, self.prefix)

    def may_fit(self, least: bytes, most: bytes) -> bool:
        """Whether a text between two others can fit."""
        if self.one_of is not None:
            return any(least <= text.encode() <= most for text in self.one_of)
        prefix = self.prefix.encode()
        return least[: len(prefix)] <= prefix <= most


class Pick(msgspec.Struct, frozen=True):
    """The columns that are read, all if None; times from ``since_us`` to before ``until_us``."""

    columns: frozenset[str] | None = None
    since_us: int | None = None
    until_us: int | None = None
    texts: tuple[Text, ...] = ()

    @property
    def has_conditions(self) -> bool:
        return self.since_us is not None or self.until_us is not None or bool(self.texts)

    def with_subject(self, pattern: str) -> Pick:
        """The same for subjects that match a filter, as far as texts can say it."""
        literal = pattern.split("*", 1)[0].split(">", 1)[0]
        whole = literal == pattern
        text = Text("subject", frozenset([literal]) if whole else None, literal)
        return msgspec.structs.replace(self, texts=(*self.texts, text))

    def columns_of(self, stored: list[str]) -> list[str]:
        """Which of a file's columns are read, in their order; one at least."""
        if self.columns is None:
            return stored
        needed = {*self.columns, *_ALWAYS, *(text.column for text in self.texts)}
        if self.has_conditions:
            needed.add("timestamp")
        return [name for name in stored if name in needed] or ["timestamp"]

    def may_fit(self, group: pq.RowGroupMetaData) -> bool:
        """Whether a row group may hold an event that fits."""
        if not self.has_conditions:
            return True
        found = _bounds(group)
        if not self._may_fit_times(found.get("timestamp")):
            return False
        return all(
            text.column not in found or text.may_fit(*found[text.column]) for text in self.texts
        )

    def _may_fit_times(self, bounds: tuple[int, int] | None) -> bool:
        if bounds is None:
            return True
        least_us, most_us = bounds
        if self.since_us is not None and most_us < self.since_us:
            return False
        return self.until_us is None or least_us < self.until_us

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The events of a batch that fit, in its wanted columns and those beside them."""
        if not self.has_conditions or not batch.num_rows:
            return batch
        names = batch.schema.names
        stamps = events.stamps_of(batch)
        fits = np.ones(batch.num_rows, bool)
        if self.since_us is not None:
            fits &= stamps >= self.since_us
        if self.until_us is not None:
            fits &= stamps < self.until_us
        for text in self.texts:
            if text.column not in names:
                return batch.slice(0, 0)  # all null, and null fits no condition
            found = text.of(batch.column(text.column)).fill_null(False)
            fits &= mask_of(found)
        if fits.all():
            return batch
        if self.columns is not None:
            kept = {*self.columns, "offset", *_ALWAYS}
            batch = batch.select([name for name in names if name in kept])
        return batch.filter(mask_array(fits))


def _bounds(group: pq.RowGroupMetaData) -> dict[str, tuple]:  # type: ignore[type-arg]
    """The smallest and largest stored values of columns with conditions, where they are known."""
    found = {}
    for at in range(group.num_columns):
        column = group.column(at)
        name = column.path_in_schema
        if name == "timestamp" or name in TEXTS:
            told = column.statistics
            if told is not None and told.has_min_max:
                found[name] = (told.min_raw, told.max_raw)
    return found
