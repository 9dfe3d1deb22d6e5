"""A real stream that the scenario writes to and scales, with the oracle's model of it."""

from __future__ import annotations

from pathlib import Path

from headrace.catalog.streams import StreamConfig
from headrace.log.events import Event as LogEvent
from headrace.log.open import open_log
from headrace.sim.log import Event, ModelLog, Segment
from headrace.subjects.hashes import key_hash


def content(event: Event) -> bytes:
    """What an event says."""
    return f"{event.key}/{event.key_sequence}".encode()


class MirroredLog(ModelLog):
    """Applies every change to a real stream, and to the model alike."""

    def __init__(self, folder: Path, stream: str) -> None:
        super().__init__()
        self.real = open_log(folder)
        self.numbers: dict[int, int] = {}
        """Segments' numbers by their ids."""
        self._stream = stream

    @staticmethod
    def slot(key: str) -> int:
        return key_hash(key)

    def create(self, segments: int) -> None:
        self.real.create_stream(self._stream, StreamConfig((f"{self._stream}.>",)), segments)
        self._look()

    def publish(self, keys: list[str]) -> None:
        """Append events, in one commit."""
        heads = {segment.number: segment.head for segment in self.open_segments}
        events = [self.append(key) for key in keys]
        placed = self.real.append(
            self._stream,
            [
                LogEvent(subject=f"{self._stream}.{event.key}", value=content(event), key=event.key)
                for event in events
            ],
        )
        for part in placed:
            segment = self.segments[part.segment]
            assert (part.start, part.start + part.count) == (heads[part.segment], segment.head)

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
            self.numbers[found.id] = found.number
            known.sealed, known.successors = found.sealed, found.successors
        self.scaled()

    def close(self) -> None:
        """The end."""
        self.real.catalog.close()
