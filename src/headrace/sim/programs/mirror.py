"""A real stream that the scenario writes to and scales, with the oracle's model of it."""

from __future__ import annotations

from pathlib import Path

from headrace.catalog.streams import StreamConfig
from headrace.log.events import Event as LogEvent
from headrace.log.open import open_log
from headrace.sim.log import Event, ModelLog, Segment


class MirroredLog(ModelLog):
    """Applies every change to a real stream, and to the model alike."""

    def __init__(self, folder: Path, stream: str) -> None:
        super().__init__()
        self.real = open_log(folder)
        self._stream = stream

    def create(self, segments: int) -> None:
        self.real.create_stream(self._stream, StreamConfig((f"{self._stream}.>",)), segments)
        self._look()

    def append(self, key: str) -> Event:
        sequence = self.key_counts.get(key, 0)
        value = f"{key}/{sequence}".encode()
        event = LogEvent(subject=f"{self._stream}.{key}", value=value, key=key)
        (placed,) = self.real.append(self._stream, [event])
        segment = self.segments[placed.segment]
        assert placed.start == segment.head
        self.key_counts[key] = sequence + 1
        self.places[key, sequence] = (placed.segment, placed.start)
        segment.events.append(Event(placed.segment, placed.start, key, sequence))
        return segment.events[-1]

    def split(self, number: int) -> tuple[int, ...] | None:
        if self.segments[number].sealed:
            return None
        opened = self.real.split(self._stream, number).opened
        self._look()
        return opened

    def merge(self, left: int, right: int) -> int | None:
        first, second = self.segments[left], self.segments[right]
        if first.sealed or second.sealed or first.high != second.low:
            return None
        (opened,) = self.real.merge(self._stream, [left, right]).opened
        self._look()
        return opened

    def _look(self) -> None:
        for found in self.real.stream(self._stream).segments:
            known = self.segments.setdefault(
                found.number,
                Segment(found.number, found.range_lo, found.range_hi, found.predecessors),
            )
            known.sealed, known.successors = found.sealed, found.successors

    def close(self) -> None:
        """The end."""
        self.real.catalog.close()
