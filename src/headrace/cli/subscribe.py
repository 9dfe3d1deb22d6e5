"""``headrace subscribe``: events of a shared group, or of one's own, at the terminal."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from headrace.cli import deliveries
from headrace.cli.deliveries import FOR_EVER, Until
from headrace.cli.group_shared import matches, start_of
from headrace.cli.options import NO_TLS, NONE, Options, TLSOptions
from headrace.cli.output import tell
from headrace.groups.shared.runtime.options import (
    ADVERTISE_VARIABLE,
    LISTEN_VARIABLE,
    SharedOptions,
)
from headrace.subjects import parse_filter, parse_share

app = App(name="subscribe", help_epilogue="")
LISTEN = Parameter(env_var=LISTEN_VARIABLE, help="The address to listen on for other processes.")
ADVERTISE = Parameter(env_var=ADVERTISE_VARIABLE, help="What they dial, if that is another.")


@app.default
def subscribe(
    subscription: str,
    /,
    *,
    session: str | None = None,
    start: str = "now",
    until: Until = FOR_EVER,
    listen: Annotated[str | None, LISTEN] = None,
    advertise: Annotated[str | None, ADVERTISE] = None,
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
    """
    until.check()
    begin = start_of(start, "--start")
    share = parse_share(subscription)
    filter = parse_filter(subscription) if share is None else share[1]

    shared = SharedOptions(host=listen, advertise=advertise)

    async def run() -> None:
        opened = options.open_async(tls=tls.tls, shared=shared, housekeeping=True)
        async with opened as hr, hr.session(session) as worker:
            if subscription not in worker.subscriptions:
                await worker.subscribe(subscription, start=begin)
                told = f"subscribed to {subscription}"
            else:
                told = f"goes on with {subscription} where it was"
            if not matches(await hr.streams(), filter):
                told += "; no stream captures such subjects yet, those made later count"
            tell(f"headrace: {worker.name}: {told}")
            await deliveries.consume(
                worker, lambda each: deliveries.print_and_ack(each, options.json), until
            )

    deliveries.run(run)
