"""Programs with live epochs, over real sockets, on one catalog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace
from headrace.epochs.live import LivePublisher, LiveSubscription

PATIENCE_S = 30


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test, which must come to an end."""
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def rows(*values: str) -> pa.Table:
    """Events with these values."""
    return pa.table({"subject": ["days.x"] * len(values), "value": [v.encode() for v in values]})


async def values(epoch: Any) -> list[str]:
    """The values of an epoch, sorted."""
    table = await epoch.table()
    return sorted(v.decode() for v in table.column("value").to_pylist())


class Live:
    """One program."""

    def __init__(self, hr: headrace.Headrace) -> None:
        self.hr = hr

    def publisher(self, name: str, start: Any = None) -> LivePublisher:
        return self.hr.live_publisher("days", name, start=start)

    def subscription(self, **options: Any) -> LiveSubscription:
        return self.hr.live_epochs("days", **options)


@asynccontextmanager
async def programs(folder: Path, count: int, **epochs: Any) -> AsyncIterator[list[Live]]:
    """So many programs on one catalog with a live stream ``days``."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(Live(await stack.enter_async_context(headrace.open(folder / "data"))))
        config = headrace.Epochs(stored=False, **epochs)
        await found[0].hr.create_stream("days", ["days.>"], epochs=config)
        yield found
