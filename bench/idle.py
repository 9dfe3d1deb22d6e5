"""What programs cost that have joined much and have nothing to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import headrace
from bench.harness import Result, at_most, folder

IDLE_MAX = 2.0
"""Percent of a core."""


async def _share(seconds: float) -> float:
    """Percent of a core that this process takes while it idles."""
    before, began = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    return (time.process_time() - before) / (time.monotonic() - began) * 100


async def _static(hr: headrace.Headrace, count: int) -> list[Any]:
    await hr.create_stream("p", ["p.>"], partitions=1)
    members = []
    for number in range(count):
        await hr.groups.create_static("p", f"g{number}", max_members=1, members=["m"])
        members.append(await hr.join("p", f"g{number}", "m").__aenter__())
    return members


async def _shared(hr: headrace.Headrace, count: int) -> list[Any]:
    await hr.create_stream("s", ["s.>"])
    session = await hr.session("all").__aenter__()
    for number in range(count):
        await session.subscribe(f"$share/g{number}/s.>")
    return [session]


async def _private(hr: headrace.Headrace, count: int) -> list[Any]:
    await hr.create_stream("s", ["s.>"])
    session = await hr.session("all").__aenter__()
    for number in range(count):
        await session.subscribe(f"s.{number}.>")
    return [session]


async def _readers(hr: headrace.Headrace, count: int) -> list[Any]:
    await hr.create_stream("s", ["s.>"])
    readers = []
    for number in range(count):
        group = await hr.reader_groups.create(f"r{number}", streams=["s"])
        readers.append(await group.reader("a").__aenter__())
    return readers


async def _epochs(hr: headrace.Headrace, count: int) -> list[Any]:
    await hr.create_stream("d", ["d.>"], epochs=headrace.Epochs())
    publisher = await hr.epoch_publisher("d", "eu").__aenter__()
    waiting: list[Any] = [publisher]
    for number in range(count):
        epochs = await hr.epochs("d", name=f"n{number}", start="now").__aenter__()
        waiting += [epochs, asyncio.ensure_future(anext(aiter(epochs)))]
    await asyncio.sleep(0)
    return waiting


KINDS: dict[str, Callable[[headrace.Headrace, int], Awaitable[list[Any]]]] = {
    "static groups": _static,
    "shared groups": _shared,
    "private subscriptions": _private,
    "reader groups": _readers,
    "named subscriptions to epochs": _epochs,
}


async def idle(scale: float) -> list[Result]:
    """Groups and subscriptions that have nothing to do, in one program."""
    count = int(500 * scale)
    found = []
    for name, begin in KINDS.items():
        async with headrace.open(folder()) as hr:
            kept = await begin(hr, count)
            await asyncio.sleep(2)
            share = await _share(5)
            for task in kept:
                if isinstance(task, asyncio.Future):
                    task.cancel()
        found.append(at_most(f"{count} idle {name}", share, IDLE_MAX, "% of a core"))
    return found
