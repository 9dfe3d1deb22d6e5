"""Filter push-down: bounds on offsets and segments that follow from a query's filters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from headrace.spark.columns import SEGMENT_NAMES, STREAM_NAMES
from headrace.spark.planning import Span

OFFSET_MAX = 1 << 62


class Narrowing(msgspec.Struct, frozen=True):
    """Bounds on every row of a query; ``end`` is exclusive, None means unbounded."""

    start: int = 0
    end: int = OFFSET_MAX
    segments: frozenset[int] | None = None
    streams: frozenset[str] | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Narrowing:
        """The bounds of all filters together; those that say nothing about places are ignored."""
        found = cls()
        for each in filters:
            found = found._and(each)
        return found

    def _and(self, each: Filter) -> Narrowing:
        match each:
            case EqualTo(attribute=(name,), value=value):
                return self._one_of(name, (value,))
            case In(attribute=(name,), value=values):
                return self._one_of(name, values)
            case GreaterThanOrEqual(attribute=("offset",), value=int(value)):
                return self._between(value, OFFSET_MAX)
            case GreaterThan(attribute=("offset",), value=int(value)):
                return self._between(value + 1, OFFSET_MAX)
            case LessThanOrEqual(attribute=("offset",), value=int(value)):
                return self._between(0, value + 1)
            case LessThan(attribute=("offset",), value=int(value)):
                return self._between(0, value)
        return self

    def _one_of(self, name: str, values: Sequence[object]) -> Narrowing:
        numbers = frozenset(value for value in values if isinstance(value, int))
        names = frozenset(value for value in values if isinstance(value, str))
        if name == "offset" and numbers:
            return self._between(min(numbers), max(numbers) + 1)
        if name in SEGMENT_NAMES:
            both = numbers if self.segments is None else numbers & self.segments
            return msgspec.structs.replace(self, segments=both)
        if name in STREAM_NAMES:
            kept = names if self.streams is None else names & self.streams
            return msgspec.structs.replace(self, streams=kept)
        return self

    def _between(self, start: int, end: int) -> Narrowing:
        return msgspec.structs.replace(self, start=max(self.start, start), end=min(self.end, end))

    def apply(self, spans: Iterable[Span]) -> list[Span]:
        """What is left of spans."""
        kept = []
        for span in spans:
            if self.segments is not None and span.segment not in self.segments:
                continue
            if self.streams is not None and span.stream not in self.streams:
                continue
            start, end = max(span.start, self.start), min(span.end, self.end)
            if start < end:
                kept.append(Span(span.stream, span.segment, start, end))
        return kept
