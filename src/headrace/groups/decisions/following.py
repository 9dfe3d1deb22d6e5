"""Following the record of a group: its decisions as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from functools import partial

from headrace.catalog import Catalog, Tx
from headrace.catalog import decisions as stored
from headrace.groups.decisions.core.record import Decision
from headrace.groups.decisions.store import LIMIT, after, channel
from headrace.host import Host


async def follow(
    host: Host, group: str, after_number: int | None = None
) -> AsyncGenerator[Decision, None]:
    """Yield decisions as they come: those after a number, or from now on."""
    news = asyncio.Event()
    stop = await host.listen(channel(group), news.set)
    catalog = host.log.catalog
    try:
        number = after_number
        if number is None:
            number = await host.in_thread(catalog.read, lambda tx: stored.count(tx, group))
        while True:
            news.clear()
            found = await host.in_thread(catalog.read, partial(_next, group, number))
            for each in found:
                number = each.number
                yield each
            if not found:
                await news.wait()
    finally:
        stop()


def _next(group: str, number: int, tx: Tx) -> list[Decision]:
    return after(tx, group, number, LIMIT)


def watch(
    catalog: Catalog, group: str, after_number: int | None = None, timeout_s: float | None = None
) -> Iterator[Decision]:
    """:func:`follow` for threads; ends when nothing came for ``timeout_s``."""
    with catalog.waiting(channel(group)) as wait:
        number = after_number
        if number is None:
            number = catalog.read(lambda tx: stored.count(tx, group))
        while True:
            found = catalog.read(partial(_next, group, number))
            for each in found:
                number = each.number
                yield each
            if not found and not wait(timeout_s):
                return
