"""Live epochs of one open log: made when first needed, on the listener of the program's peer."""

from __future__ import annotations

import asyncio

from headrace.epochs.core.times import TimeShape
from headrace.epochs.live.serving import LiveServer
from headrace.epochs.runtime.progress_log import epochs_of
from headrace.errors import NoEpochsError
from headrace.groups.shared.runtime.program import SharedRuntime
from headrace.host import Host
from headrace.net import Secured, Target


class LiveRuntime:
    """What live publishers and subscriptions of this program share."""

    def __init__(self, host: Host, shared: SharedRuntime) -> None:
        self.host = host
        self._shared = shared
        self._server: LiveServer | None = None
        self._making = asyncio.Lock()

    @property
    def secured(self) -> Secured | None:
        """TLS, if the log was opened with it."""
        return self._shared.secured

    async def server(self) -> tuple[LiveServer, str]:
        """Where this program's publishers are served, and the name of its peer."""
        peer = await self._shared.peer()
        async with self._making:
            if self._server is None:
                self._server = LiveServer(self.host, peer.listener)
        return self._server, peer.name

    async def look_up(self, peer: str) -> Target | None:
        """Where another program listens."""
        return await (await self._shared.peer()).look_up(peer)

    async def stream(self, name: str) -> tuple[int, TimeShape]:
        """A stream's id, and the shape of its times; refused if it is not a live one."""
        found = await self.host.in_thread(self.host.log.stream, name)
        config = epochs_of(found)
        if config.stored:
            raise NoEpochsError(
                f"stream {name!r} stores its epochs; use hr.epoch_publisher and hr.epochs, or make "
                "a stream with epochs=Epochs(stored=False)"
            )
        return found.id, TimeShape(config.length)

    async def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.close()
