"""``headrace subscribe``: events of a shared group, or of one's own, at the terminal."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from headrace.cli.deliveries import shown
from headrace.cli.failures import UsageError
from headrace.cli.group_join import stop_on_terminate, tell_warnings
from headrace.cli.group_shared import matches, start_of
from headrace.cli.options import NO_TLS, NONE, Options, TLSOptions
from headrace.errors import Fenced
from headrace.subjects import parse_filter, parse_share

if TYPE_CHECKING:
    from headrace.groups.shared.runtime.session import Session

app = App(name="subscribe", help_epilogue="")


@app.default
def subscribe(
    subscription: str,
    /,
    *,
    session: str | None = None,
    start: str = "now",
    limit: int | None = None,
    idle: Annotated[float | None, Parameter(alias="--idle-s")] = None,
    tls: TLSOptions = NO_TLS,
    options: Options = NONE,
) -> None:
    """Consume events until Ctrl-C; each is acked once it is printed.

    * `headrace subscribe '$share/audit/orders.>'`
    * `headrace subscribe 'orders.eu.>' --session eu-log --start earliest --json`

    Parameters
    ----------
    subscription
        $share/GROUP/FILTER to take part in a group, or a filter of one's own.
    session
        A name under which to go on later; without one the session ends with the command.
    start
        Where a new subscription begins: earliest, now, a time, or 15m for 15 minutes ago.
    limit
        Stop after this many events.
    idle
        Stop when nothing came for this many seconds.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: take at least one event")
    if idle is not None and idle <= 0:
        raise UsageError(f"--idle {idle}: wait for longer than nothing")
    tell_warnings()
    begin = start_of(start, "--start")
    share = parse_share(subscription)
    filter = parse_filter(subscription) if share is None else share[1]

    async def run() -> None:
        stop_on_terminate()
        async with (
            options.open_async(tls.tls) as hr,
            hr.session(session) as worker,
        ):
            if subscription not in worker.subscriptions:
                await worker.subscribe(subscription, start=begin)
                told = f"subscribed to {subscription}"
            else:
                told = f"goes on with {subscription} where it was"
            if not matches(await hr.streams(), filter):
                told += "; no stream captures such subjects yet, those made later count"
            print(f"headrace: {worker.name}: {told}", file=sys.stderr, flush=True)
            await _consume(worker, options.json, limit, idle)

    with suppress(asyncio.CancelledError):  # asked to end, and all is handed over
        asyncio.run(run())


async def _consume(worker: Session, as_json: bool, limit: int | None, idle: float | None) -> None:
    seen = 0
    deliveries = aiter(worker)
    with suppress(TimeoutError, StopAsyncIteration):
        while limit is None or seen < limit:
            try:
                async with asyncio.timeout(idle):
                    delivery = await anext(deliveries)
                sys.stdout.write(shown(delivery, as_json) + "\n")
                sys.stdout.flush()
                await delivery.ack()
                seen += 1
            except Fenced as fenced:
                # Somebody else has the segment now, and will print the event again.
                print(f"headrace: {fenced}", file=sys.stderr, flush=True)
