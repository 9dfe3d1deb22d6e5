"""``headrace serve``: a node with the web console, the API and metrics."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Group, Parameter

from headrace.cli.done_shapes import Serving
from headrace.cli.failures import EXIT_INTERRUPTED, UsageError, shown_place
from headrace.cli.options import NONE, Options
from headrace.cli.output import print_json, tell
from headrace.cli.token import link_command
from headrace.cli.values import duration_s

if TYPE_CHECKING:
    from headrace.api.client import Headrace
    from headrace.node.accepting import BoundedSocket
    from headrace.node.node import NodeSettings
    from headrace.node.serving import Served

app = App(name="serve", help_epilogue="")

PORT = 8470


def _flag(text: str) -> Parameter:
    return Parameter(negative="", help=text)


@Parameter(name="*", group=Group("Node", sort_key=40))
@dataclass(frozen=True)
class NodeOptions:
    """How a node serves; ``serve`` and ``up`` take them."""

    host: Annotated[str, Parameter(help="Where to listen; beyond this machine with TLS.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Parameter(help="Where to listen; 0 for any that is free.")] = PORT
    tls_cert: Annotated[str | None, Parameter(help="The certificate, as PEM.")] = None
    tls_key: Annotated[str | None, Parameter(help="The key that belongs to it.")] = None
    read_only: Annotated[bool, _flag("Nothing can be changed.")] = False
    no_auth: Annotated[bool, _flag("Ask for no token; on this machine alone.")] = False
    insecure: Annotated[bool, _flag("Serve other machines without TLS.")] = False
    allow_host: Annotated[
        tuple[str, ...], _flag("A name by which the node is called as well, behind a proxy.")
    ] = ()
    metrics_per_unit: Annotated[bool, _flag("Metrics of units too, up to 10,000.")] = False
    history: Annotated[str, Parameter(help="How long lag and rates are kept.")] = "24h"

    @property
    def settings(self) -> NodeSettings:
        """What the node takes; bad ones are refused."""
        from headrace.node.node import NodeSettings
        from headrace.node.serving import check

        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls-cert and --tls-key go together")
        made = NodeSettings(
            host=self.host,
            port=self.port,
            read_only=self.read_only,
            metrics_per_unit=self.metrics_per_unit,
            history_s=int(duration_s(self.history, "--history")),
            no_auth=self.no_auth,
            tls=self.tls_cert is not None,
            allow_hosts=self.allow_host,
        )
        check(made, insecure=self.insecure)
        return made

    def listening(self) -> BoundedSocket:
        """What the node listens on: before a catalog is opened, so that none is made in vain."""
        from headrace.node.accepting import listen
        from headrace.node.serving import check_pair

        settings = self.settings
        check_pair(self.tls_cert, self.tls_key)
        return listen(settings.host, settings.port, tls=settings.tls)

    def serving(self, hr: Headrace, listening: BoundedSocket) -> Served:
        """A node over an open log."""
        from headrace.node.serving import Served

        return Served(
            hr,
            self.settings,
            folder=getattr(hr.log.catalog, "folder", None),
            listening=listening,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
        )


NODE = NodeOptions()


@app.default
def serve(*, node: NodeOptions = NODE, options: Options = NONE) -> int:
    """Serve the web console, the HTTP API and metrics of a catalog.

    It prints a link that lets a browser in once, within a minute; programs send a token. It runs
    until Ctrl-C. Any number of nodes may serve one catalog.

    * `headrace serve`
    * `headrace serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem`
    * `headrace serve --read-only --port 8480`
    """
    settings = node.settings
    return asyncio.run(_serve(options, node, read_only=settings.read_only))


async def _serve(options: Options, node: NodeOptions, *, read_only: bool) -> int:
    from headrace.node.serving import until_signal

    with node.listening() as listening:
        async with options.open_async(housekeeping=not read_only) as hr:
            served = node.serving(hr, listening)
            await served.start()
            say(served, options)
            number = await until_signal()
            await served.stop()
    return EXIT_INTERRUPTED if number == signal.SIGINT else 0


def say(served: Served, options: Options) -> None:
    """Where it is, and how to get in."""
    if options.json:
        print_json(Serving(address=served.address, link=served.link()))
        return
    tell(f"serving {shown_place(options.place)} at {served.address}")
    if served.settings.no_auth:
        tell("everybody on this machine gets in, without a token")
        return
    tell(f"open    {served.link()}   (once, within a minute)")
    again = link_command(served.address)
    tell(f"later   {again} prints another link; programs: headrace token create")
