"""What runs of a live publisher: one partition of a stream that stores nothing.

Its links and the server refer to it, and never to the handle that the application has
(:class:`headrace.epochs.live.handles.LivePublisher`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.catalog import entries
from headrace.epochs.core.antichains import Change, Frontier, not_before
from headrace.epochs.core.publisher import Published, Publisher
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.live import addresses, frames
from headrace.epochs.live.addresses import Serving
from headrace.epochs.runtime.starting import FrontierLike, frontier_of
from headrace.errors import FrontierError, HeadraceError, LivePublisherError, PublisherBlockedError
from headrace.log.events import Events
from headrace.subjects import check_name

if TYPE_CHECKING:
    from headrace.epochs.live.runtime import LiveRuntime
    from headrace.epochs.live.serving import LiveServer, ServedLink

CLOSE_S = 5.0
"""How long a closing publisher waits for its subscribers to be sent the rest."""

_log = logging.getLogger(__name__)


class LivePublishing:
    """Publishes epochs to whoever listens now."""

    def __init__(
        self, runtime: LiveRuntime, stream: str, name: str, start: FrontierLike | None
    ) -> None:
        check_name(name, "publisher")
        self.stream, self.name = stream, name
        self.links: dict[str, ServedLink] = {}
        self.core = Publisher()
        self._runtime = runtime
        self.host = runtime.host
        self._start = start
        self._stream_id = 0
        self._server: LiveServer | None = None
        self._life = ""
        self._room = asyncio.Event()
        self._heard = asyncio.Event()
        self.leaving: object = None
        self._replaced = False
        self._looking = False
        self._unsubscribe: Callable[[], None] = lambda: None

    # --- beginning and end ---

    async def open(self) -> None:
        """Serve whoever comes."""
        stream_id, shape = await self._runtime.stream(self.stream)
        self._stream_id = stream_id
        lower = None if self._start is None else frontier_of(shape, self._start, "start")
        self.core = Publisher(shape, lower=lower)
        server, peer = await self._runtime.server()
        self._life = self.host.clock.name()
        serving = Serving(peer, self._life, self.core.lower)
        key = (stream_id, self.name)
        if key in server.publishers:
            raise LivePublisherError(
                f"publisher {self.name!r} of stream {self.stream!r} is open in this program"
            )
        server.publishers[key] = self
        self._server = server
        try:
            await self.host.in_transaction(
                lambda tx: addresses.put(tx, stream_id, self.name, serving),
                (entries.lock(addresses.bucket(stream_id)),),
            )
            channel = entries.channel(addresses.bucket(stream_id))
            self._unsubscribe = await self.host.listen(channel, self._look)
        except BaseException:
            await self.leave()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it serves."""
        return self._server is not None

    async def leave(self) -> None:
        """Stop serving; with times still held subscribers are told that the rest never comes."""
        server = self._server
        if server is None or self.host.is_forked:
            return
        if self.core.aborted is None and not self.core.closed:
            self._tell(self.core.abort(f"publisher {self.name} has left with times still held"))
        self._server = None
        self._unsubscribe()
        await self._sent()
        server.publishers.pop((self._stream_id, self.name), None)
        for link in list(self.links.values()):
            server.forget(link)
        try:
            await self.host.in_transaction(
                lambda tx: addresses.remove(tx, self._stream_id, self.name, self._life),
                (entries.lock(addresses.bucket(self._stream_id)),),
                sync=False,
            )
        except HeadraceError as error:
            _log.warning("the address of publisher %s stays: %s", self.name, error)

    async def _sent(self) -> None:
        """Until all is handed to the network, but not for long."""
        pause_s, until_s = 0.001, self.host.now_s() + CLOSE_S
        while any(not link.sent for link in self.links.values()) and self.host.now_s() < until_s:
            await self.host.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)

    def _look(self) -> None:
        if not self._looking and self._server is not None:
            self._looking = True
            self.host.spawn(self._see())

    async def _see(self) -> None:
        try:
            found = await self.host.in_thread(
                self.host.log.catalog.read,
                lambda tx: addresses.find(tx, self._stream_id, self.name),
            )
        finally:
            self._looking = False
        if found is None or found.life != self._life:
            self._replaced = True
            self._room.set()

    # --- publishing ---

    @property
    def shape(self) -> TimeShape:
        """The shape of this stream's times."""
        return self.core.shape

    @property
    def frontier(self) -> Frontier:
        """What this publisher may still publish at or after; empty when it has closed."""
        return self.core.lower

    @property
    def subscribers(self) -> int:
        """How many subscriptions are connected now."""
        return len(self.links)

    async def wait_for_subscribers(self, least: int) -> None:
        """Wait until ``least`` subscriptions are connected; they do not get what is sent before."""
        while self.subscribers < least:
            self._check()
            self._heard.clear()
            await self._heard.wait()

    async def append(
        self, time: Time, data: Events, *, advance_to: FrontierLike | None = None
    ) -> int:
        """Publish data of one epoch to whoever listens; returns the number of rows.

        It waits while a subscriber that must not miss anything has no room.
        """
        self._check()
        batch = await self.host.writes.checked(data)
        wanted = None if advance_to is None else self._wanted(advance_to)
        for rows, payload in frames.payloads(batch) if batch.num_rows else ():
            await self._offer(time, payload, rows)
        if wanted is not None:
            self._advance(wanted)
        if any(link.outbox.paused for link in self.links.values()):
            # The network has to catch up; on a busy loop it would not get its turn.
            await asyncio.sleep(0)
        return int(batch.num_rows)

    async def advance_to(self, frontier: FrontierLike) -> None:
        """All before this frontier is complete; what lies at or after it is still to come."""
        self._check()
        self._advance(self._wanted(frontier))

    async def close(self) -> None:
        """All is complete: who has heard all publishers close has come to the end."""
        self._check()
        self._tell(self.core.close())
        await self.leave()

    async def abort(self, reason: str) -> None:
        """Give up: what is not complete never will be, and subscribers are told why."""
        self._check()
        self._tell(self.core.abort(reason))
        await self.leave()

    async def _offer(self, time: Time, payload: frames.Packed, rows: int) -> None:
        while True:
            try:
                published = self.core.data(time, payload, rows)
            except PublisherBlockedError:
                self._room.clear()
                await self._room.wait()
                self._check()
                continue
            self._tell(published)
            return

    def _wanted(self, frontier: FrontierLike) -> Frontier:
        wanted = frontier_of(self.shape, frontier, "frontier")
        what = f"advance to {list(wanted)}"
        if not wanted:
            raise FrontierError(
                "that gives up every time; call close()", update=what, state=self.core
            )
        if not not_before(self.shape, wanted, self.core.lower):
            raise FrontierError("it would go back", update=what, state=self.core)
        return wanted

    def _advance(self, wanted: Frontier) -> None:
        changes: list[Change] = [(time, 1) for time in wanted]
        changes += [(time, -count) for time, count in self.core.capabilities.items()]
        self._tell(self.core.progress(changes))

    def _tell(self, published: Published) -> None:
        for cut in published.cut:
            if (link := self.links.get(cut.subscriber)) is not None:
                link.cut(f"this subscription was too slow: {cut.reason}")
        if published.message is not None:
            for link in self.links.values():
                link.wake()

    def _check(self) -> None:
        self.host.check()
        if self._replaced:
            raise LivePublisherError(
                f"another program publishes as {self.name!r} to stream {self.stream!r}; "
                "what is published here reaches nobody"
            )
        if self._server is None:
            raise LivePublisherError(
                f"publisher {self.name!r} of stream {self.stream!r} is not open"
            )

    # --- called by links ---

    def drained(self) -> None:
        """A subscriber has room again."""
        self._room.set()

    def came(self, name: str, link: ServedLink) -> None:
        """A subscriber is connected."""
        self.links[name] = link
        self._heard.set()

    def gone(self, link: ServedLink) -> None:
        """A subscriber has left."""
        self.links.pop(link.name, None)
        self._room.set()
