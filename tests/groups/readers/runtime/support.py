"""Readers for tests: a driven clock, and what they read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import headrace
from headrace import testing
from headrace.groups.readers.runtime.segment_reader import SegmentReader
from headrace.log.events import Event
from tests.support import until as until

PATIENCE_S = 120


def run(catalog_url: str, work: Callable[[headrace.Headrace], Awaitable[None]]) -> None:
    async def main() -> None:
        async with headrace.open(catalog_url, housekeeping=False) as hr:
            await work(hr)

    testing.run(asyncio.wait_for(main(), PATIENCE_S), autojump=True)


async def send(
    hr: headrace.Headrace, *numbers: int, stream: str = "orders", keys: int = 20
) -> None:
    events = [
        Event(subject=f"{stream}.{n % keys}", key=str(n % keys), value=str(n).encode())
        for n in numbers
    ]
    await hr.append(stream, events)


def freeze(reader: SegmentReader) -> None:
    """Let a reader do nothing more, as if its process were stopped."""
    life = reader.running._life
    assert life is not None
    life.core.over = True
    life._ticking.clear()


def stop_detecting(reader: SegmentReader) -> None:
    """Let the reader's program look for nobody any more: frozen as well, it is as good as dead."""
    life = reader.running._life
    assert life is not None
    life._hub._detector.forget(life._following)


class Taken:
    """What readers got, each acked at once."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, *readers: SegmentReader) -> None:
        self.tasks += [asyncio.create_task(self._read(reader)) for reader in readers]

    async def _read(self, reader: SegmentReader) -> None:
        async for delivery in reader:
            try:
                await delivery.ack()
            except headrace.Fenced:
                continue
            self.got.append((reader.reader, int(delivery.value)))

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.got]

    def in_order(self, keys: int = 20) -> bool:
        for key in range(keys):
            mine = [n for n in self.numbers if n % keys == key]
            if mine != sorted(mine):
                return False
        return True
