"""``headrace epoch read``: whole epochs on the screen, or as JSON lines."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli import epoch_live
from headrace.cli.epoch_shapes import CompleteEpoch
from headrace.cli.epoch_times import StreamArgument, times_of, typed
from headrace.cli.failures import EXIT_INTERRUPTED, UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, print_json, tell
from headrace.cli.read import RowScreen, show_json
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Antichain, Frontier, not_before
from headrace.epochs.core.times import TimeShape
from headrace.epochs.live.items import LiveEpoch
from headrace.epochs.runtime.given import WholeEpoch
from headrace.epochs.runtime.progress_log import load_state
from headrace.epochs.runtime.starting import WORDS, opened
from headrace.log.rows import rows_of_arrow

if TYPE_CHECKING:
    from headrace.epochs.runtime.subscription import EpochSubscription
    from headrace.log.log import Log

TOKEN_CHARS = 16
EARLIEST = "earliest"

Shown = WholeEpoch | LiveEpoch

Follow = Annotated[bool, Parameter(negative="", alias="-f", help="Go on as epochs are completed.")]
NameOption = Annotated[
    str | None,
    Parameter(help="Keep in the catalog how far this came, and go on from there next time."),
]


def read(
    stream: StreamArgument,
    /,
    *,
    start: Annotated[
        str,
        Parameter(name="--from", help="earliest, open, now, a time, or a token that was printed."),
    ] = EARLIEST,
    until: Annotated[str | None, Parameter(help="End before this time.")] = None,
    follow: Follow = False,
    name: NameOption = None,
    limit: Annotated[int | None, Parameter(help="At most this many epochs.")] = None,
    options: Options = NONE,
) -> int:
    """Read whole epochs; of one that is not complete nothing is shown.

    With --json each row is a line as in headrace read, and each epoch ends with a line
    {"complete": 17, "rows": …, "token": …}.  Ctrl-C ends between epochs; a second one at once.

    * `headrace epoch read orders --from earliest --until 18`
    * `headrace epoch read orders --follow --name report --json`
    """
    _check_limit(limit)
    first = None if start in WORDS or _is_token(start) else typed(start, "--from")
    last = None if until is None else typed(until, "--until")

    async def run() -> int:
        stopped = _stopped_by_ctrl_c()
        async with options.open_async() as hr:
            if await hr.host.in_thread(epoch_live.is_live, hr.host.log, stream):
                named = name is not None or start not in (EARLIEST, "now")
                heard = epoch_live.whole(hr, stream, last, named=named)
                await _show_each(heard, stopped, limit, acks=False, options=options)
                return EXIT_INTERRUPTED if stopped.is_set() else 0
            shape, lower = await hr.host.in_thread(_standing, hr.host.log, stream)
            begin = None if first is None else times_of(shape, first, "--from")
            end = None if last is None else times_of(shape, last, "--until")
            _check_order(shape, begin, end)
            if not follow and lower:
                # What is complete now; what lies at or after the frontier is still to come.
                end = Antichain.minimal(shape, (*lower, *(end or ()))).frontier
                if begin and not not_before(shape, end, begin):
                    return _nothing(stream, lower, options)
            found = hr.epochs(stream, start=begin or start, until=end, name=name)
            shown = await _show_all(found, stopped, limit, name is not None, options)
        if stopped.is_set():
            return EXIT_INTERRUPTED
        return 0 if shown else _nothing(stream, lower, options)

    return asyncio.run(run())


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: read at least one epoch")


def _check_order(shape: TimeShape, begin: Frontier | None, end: Frontier | None) -> None:
    if begin and end and not not_before(shape, end, begin):
        given = f"--until {ledger.shown(end)} is before --from {ledger.shown(begin)}"
        raise UsageError(given)


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


def _is_token(text: str) -> bool:
    return len(text) >= TOKEN_CHARS and not text.replace(",", "").replace(" ", "").isdecimal()


def _standing(log: Log, stream: str) -> tuple[TimeShape, Frontier]:
    """The shape of a stream's times, and what is to come; nothing after it was ended."""
    (found,), shape = opened(log, [stream])
    state = log.catalog.read(lambda tx: load_state(tx, found))
    return shape, state.lower if state.status == ledger.OPEN else ()


def _nothing(stream: str, lower: Frontier, options: Options) -> int:
    if not options.json:
        tell(
            f"headrace: no complete epoch there; stream {stream!r} is at {ledger.shown(lower)}, "
            f"and what holds it back is told by: headrace epoch explain {stream}"
        )
    return 0


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
