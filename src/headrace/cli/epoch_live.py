"""``headrace epoch publish`` and ``read`` of streams that store nothing.

A publisher is there as long as its command runs, and closes at the end of its input; a reader hears
who publishes now, until they close or Ctrl-C.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.cli.epoch_times import Typed, time_of, times_of
from headrace.cli.failures import UsageError
from headrace.cli.output import tell
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.live.items import LiveEpoch
from headrace.log import events
from headrace.log.log import Log

if TYPE_CHECKING:
    from headrace.api.client import Headrace
    from headrace.epochs.live import LivePublisher


def is_live(log: Log, stream: str) -> bool:
    """Whether a stream has epochs and stores nothing."""
    epochs = log.stream(stream).config.epochs
    return epochs is not None and not epochs.stored


async def published(
    hr: Headrace,
    stream: str,
    publisher: str,
    time: Typed | None,
    goal: Typed | None,
    parts: AsyncIterator[tuple[pa.RecordBatch, int]],
    listeners: int,
) -> tuple[int, Frontier]:
    """Send rows to whoever listens; at the end all is complete."""
    if time is None:
        raise UsageError("say which epoch: --time 17")
    rows = 0
    async with hr.live_publisher(stream, publisher) as pub:
        at = time_of(pub.shape, time, "--time")
        to = None if goal is None else times_of(pub.shape, goal, "--advance-to")
        await _heard(pub, listeners)
        async for batch, _ in parts:
            rows += await pub.append(at, batch)
        if to is not None:
            await pub.advance_to(to)
        frontier = pub.frontier
        await pub.close()
    return rows, frontier


async def _heard(pub: LivePublisher, listeners: int) -> None:
    """Wait for subscriptions: what is sent before they come is not for them."""
    if pub.subscribers < listeners:
        tell(f"headrace: {pub.name} serves {pub.stream}; waiting for {listeners} to listen")
        await pub.wait_for_subscribers(listeners)


async def whole(
    hr: Headrace, stream: str, until: Typed | None, *, named: bool
) -> AsyncIterator[LiveEpoch]:
    """Epochs that begin from now on, each when it is complete; there is no other start."""
    if named:
        raise UsageError(
            f"stream {stream!r} stores nothing: it is read from now on, without --from and --name"
        )
    config = (await hr.host.in_thread(hr.host.log.stream, stream)).config.epochs
    assert config is not None
    end = None if until is None else times_of(TimeShape(config.length), until, "--until")
    async with hr.live_epochs(stream, until=end) as epochs:
        async for item in epochs:
            if isinstance(item, LiveEpoch):
                yield item


def placeless(batch: pa.RecordBatch, time: Time) -> pa.RecordBatch:
    """Rows as they were sent, with the columns of a read: what is not stored has no place."""
    epoch = [time] if isinstance(time, int) else list(time)
    names, count = batch.schema.names, batch.num_rows
    arrays = []
    for field in events.READ_SCHEMA:
        if field.name == "epoch":
            arrays.append(pa.array([epoch] * count, field.type))
        elif field.name in names:
            arrays.append(batch.column(field.name))
        else:
            arrays.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=events.READ_SCHEMA)
