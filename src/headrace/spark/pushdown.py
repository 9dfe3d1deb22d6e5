"""Filter push-down: what follows from a query's filters for the places and events to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from headrace.log.picking import TEXTS, Pick, Text
from headrace.log.times import to_us
from headrace.spark.columns import SEGMENT_NAMES, STREAM_NAMES
from headrace.spark.planning import Span

OFFSET_MAX = 1 << 62


class Narrowing(msgspec.Struct, frozen=True):
    """Bounds on every row of a query; ends are exclusive, None means unbounded."""

    start: int = 0
    end: int = OFFSET_MAX
    segments: frozenset[int] | None = None
    streams: frozenset[str] | None = None
    since_us: int | None = None
    until_us: int | None = None
    texts: tuple[Text, ...] = ()

    def pick(self, columns: Iterable[str]) -> Pick:
        """What is read of the events, for the columns of a schema."""
        return Pick(frozenset(columns), self.since_us, self.until_us, self.texts)

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Narrowing:
        """The bounds of all filters together; those that say nothing of use are ignored."""
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
            case GreaterThanOrEqual(attribute=("timestamp",), value=datetime() as value):
                return self._times(value, None)
            case GreaterThan(attribute=("timestamp",), value=datetime() as value):
                return self._times(value, None, after=1)
            case LessThanOrEqual(attribute=("timestamp",), value=datetime() as value):
                return self._times(None, value, after=1)
            case LessThan(attribute=("timestamp",), value=datetime() as value):
                return self._times(None, value)
            case StringStartsWith(attribute=(name,), value=str(value)) if name in TEXTS:
                return self._text(Text(name, prefix=value))
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
        if name in TEXTS:
            return self._text(Text(name, one_of=names))
        if name == "timestamp":
            times = [value for value in values if isinstance(value, datetime)]
            if times:
                return self._times(min(times), None)._times(None, max(times), after=1)
        return self

    def _text(self, text: Text) -> Narrowing:
        return msgspec.structs.replace(self, texts=(*self.texts, text))

    def _times(
        self, since: datetime | None, until: datetime | None, *, after: int = 0
    ) -> Narrowing:
        """Events from a time on, or before one; ``after`` moves it by microseconds."""
        first_us, end_us = self.since_us, self.until_us
        if since is not None:
            given_us = to_us(since) + after
            first_us = given_us if first_us is None else max(first_us, given_us)
        if until is not None:
            given_us = to_us(until) + after
            end_us = given_us if end_us is None else min(end_us, given_us)
        return msgspec.structs.replace(self, since_us=first_us, until_us=end_us)

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


EVERYTHING = Narrowing()
