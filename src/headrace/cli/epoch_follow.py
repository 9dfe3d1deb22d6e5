"""``headrace epoch read`` that goes on, is known by a name, or reads much."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.cli import epoch_live
from headrace.cli.epoch_read import EARLIEST, Wanted, bounds_of, nothing
from headrace.cli.epoch_shapes import CompleteEpoch
from headrace.cli.failures import EXIT_INTERRUPTED
from headrace.cli.options import Options
from headrace.cli.output import counted, print_json
from headrace.cli.read import RowScreen, show_json
from headrace.epochs.live.items import LiveEpoch
from headrace.epochs.runtime.given import WholeEpoch
from headrace.log.rows import rows_of_arrow

if TYPE_CHECKING:
    from headrace.epochs.runtime.subscription import EpochSubscription

Shown = WholeEpoch | LiveEpoch


def run(wanted: Wanted, options: Options) -> int:
    """Show epochs as they come; Ctrl-C ends between two of them, a second one at once."""
    return asyncio.run(_run(wanted, options))


async def _run(wanted: Wanted, options: Options) -> int:
    stopped = _stopped_by_ctrl_c()
    stream, name, limit = wanted.stream, wanted.name, wanted.limit
    async with options.open_async() as hr:
        if await hr.host.in_thread(epoch_live.is_live, hr.host.log, stream):
            named = name is not None or wanted.start not in (EARLIEST, "now")
            heard = epoch_live.whole(hr, stream, wanted.last, named=named)
            await _show_each(heard, stopped, limit, acks=False, options=options)
            return EXIT_INTERRUPTED if stopped.is_set() else 0
        bounds = await hr.host.in_thread(bounds_of, hr.host.log, wanted)
        if bounds.empty:
            return nothing(stream, bounds.lower, options)
        start = bounds.begin or wanted.start
        found = hr.epochs(stream, start=start, until=bounds.end, name=name)
        shown = await _show_all(found, stopped, limit, name is not None, options)
    if stopped.is_set():
        return EXIT_INTERRUPTED
    return 0 if shown else nothing(stream, bounds.lower, options)


async def _show_all(
    found: EpochSubscription,
    stopped: asyncio.Event,
    limit: int | None,
    acks: bool,
    options: Options,
) -> int:
    async with found as epochs:
        return await _show_each(aiter(epochs), stopped, limit, acks=acks, options=options)


async def _show_each(
    epochs: AsyncIterator[Shown],
    stopped: asyncio.Event,
    limit: int | None,
    *,
    acks: bool,
    options: Options,
) -> int:
    shown = 0
    async for epoch in _until(epochs, stopped):
        await _show(epoch, options)
        if acks:
            assert isinstance(epoch, WholeEpoch)
            await epoch.ack()
        shown += 1
        if shown == limit or stopped.is_set():
            break
    return shown


def _stopped_by_ctrl_c() -> asyncio.Event:
    """Is set by the first Ctrl-C (or SIGTERM); a second one ends the command where it is."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with suppress(NotImplementedError, RuntimeError, ValueError):  # not on every loop or thread
        loop.add_signal_handler(signal.SIGINT, stop)
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
    return stopped


async def _until(epochs: AsyncIterator[Shown], stopped: asyncio.Event) -> AsyncIterator[Shown]:
    """Epochs until there are no more, or somebody wants to stop while waiting for one."""
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        while not stopped.is_set():
            following = asyncio.ensure_future(_following(epochs))
            await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
                return
            if (epoch := following.result()) is None:
                return
            yield epoch
    finally:
        stopping.cancel()


async def _following(epochs: AsyncIterator[Shown]) -> Shown | None:
    return await anext(epochs, None)


async def _show(epoch: Shown, options: Options) -> None:
    screen = RowScreen()
    if not options.json:
        print(f"epoch {epoch.time}: {counted(epoch.rows, 'row')}")
    async for found in epoch:
        batch = found if isinstance(epoch, WholeEpoch) else epoch_live.placeless(found, epoch.time)
        if batch.num_rows and options.json:
            show_json(rows_of_arrow(batch))
        elif batch.num_rows:
            screen.show(rows_of_arrow(batch))
    if options.json:
        token = epoch.token if isinstance(epoch, WholeEpoch) else None
        print_json(CompleteEpoch(complete=epoch.time, epoch_events=epoch.rows, token=token))
    sys.stdout.flush()
