"""The publishing side of live epochs in one process: links of subscribers, pumps and heartbeats."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

from headrace.epochs.core.heartbeat import QuietLinks
from headrace.epochs.core.messages import Aborted
from headrace.epochs.live import frames
from headrace.epochs.live.frames import Alive, Bye, Hello, Said, Wish
from headrace.host import Host
from headrace.net import Listener, Outbox

if TYPE_CHECKING:
    from headrace.epochs.live.publisher import LivePublishing

HEARTBEAT_MS = 1000
SILENCE_MS = 5000
"""A link that was silent for this long is lost."""
LINKS_MAX = 4096
"""Links of one connection."""


class ServedLink:
    """One partition on its way to one subscription."""

    def __init__(
        self, server: LiveServer, publisher: LivePublishing, name: str, hello: Hello,
        outbox: Outbox[Said],
    ) -> None:  # fmt: skip
        self.publisher = publisher
        self.name = name
        """By which the publisher's core knows the subscriber."""
        self.outbox = outbox
        self.link = hello.link
        self._server = server
        self._wake = asyncio.Event()
        self._wake.set()
        self._task = server.host.spawn(self._pump())

    def wake(self) -> None:
        """There is something to send: it goes at once if the network takes it."""
        if not self.outbox.paused:
            while not self.outbox.full and self._move():
                pass
            self.outbox.send()
        self._wake.set()

    async def _pump(self) -> None:
        """Move messages from the core's queue to the outbox, as there is room."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.outbox.room()
            while self._move():
                self.publisher.drained()
                await self.outbox.room()
            if self.outbox.closed:
                return

    def _move(self) -> bool:
        """The next message to the outbox; False if there is none, or nobody to send it to."""
        core = self.publisher.core
        if self.outbox.closed or self.name not in core.subscribers:
            return False
        taken = core.take(self.name, 1)
        for message in taken:
            self._server.spoke(self)
            self.outbox.put(Said(self.link, message))
        return bool(taken)

    def beat(self) -> None:
        """Say that the publisher is alive, if nothing else is to be said."""
        if self.name in self.publisher.core.subscribers and self.outbox.empty:
            message = self.publisher.core.heartbeat(self.name)
            if message is not None:
                self.outbox.put(Said(self.link, message))

    @property
    def sent(self) -> bool:
        """Whether everything is handed to the network, or nobody is there any more."""
        core = self.publisher.core
        if self.outbox.closed or self.name not in core.subscribers:
            return True
        return self.outbox.empty and not len(core.queue(self.name))

    def cut(self, reason: str) -> None:
        """The publisher has cut this subscriber off, which is told when there is room for it."""
        self.end()
        self._server.host.spawn(self._last_word(Aborted(reason)))

    async def _last_word(self, message: Aborted) -> None:
        await self.outbox.room()
        self.outbox.put(Said(self.link, message))
        self._server.forget(self)

    def end(self) -> None:
        """Nobody listens any more."""
        self._task.cancel()
        if self.name in self.publisher.core.subscribers:
            self.publisher.core.disconnect(self.name)
        self.publisher.gone(self)


class LiveServer:
    """All live publishers of this process, on one path of its listener."""

    def __init__(self, host: Host, listener: Listener) -> None:
        self.host = host
        self.publishers: dict[tuple[int, str], LivePublishing] = {}
        self._links: dict[Outbox[Said], dict[int, ServedLink]] = {}
        self._heard: dict[Outbox[Said], int] = {}
        self._quiet = QuietLinks(HEARTBEAT_MS)
        self._by_name: dict[str, ServedLink] = {}
        self._numbers = count(1)
        self._timer = host.timer(self._tick)
        self._timer.after(HEARTBEAT_MS / 2000)
        listener.serve(frames.to_subscribers(), self._received, self._ended)

    def _received(self, wishes: list[Wish], outbox: Outbox[Said]) -> None:
        self._heard[outbox] = self.host.now_ms()
        links = self._links.setdefault(outbox, {})
        for wish in wishes:
            match wish:
                case Hello():
                    self._connect(wish, outbox, links)
                case Bye(link=number):
                    if (link := links.get(number)) is not None:
                        self.forget(link)
                case Alive():
                    pass

    def _connect(self, hello: Hello, outbox: Outbox[Said], links: dict[int, ServedLink]) -> None:
        publisher = self.publishers.get((hello.stream, hello.publisher))
        if publisher is None or hello.link in links or len(links) >= LINKS_MAX:
            reason = (
                f"{hello.publisher!r} does not publish here" if publisher is None else "refused"
            )
            outbox.put(Said(hello.link, Aborted(reason)))
            return
        name = f"{next(self._numbers)}"
        publisher.core.connect(name, hello.settings)
        link = ServedLink(self, publisher, name, hello, outbox)
        links[hello.link] = self._by_name[name] = link
        publisher.came(name, link)
        self._quiet.heard(name, self.host.now_ms())

    def spoke(self, link: ServedLink) -> None:
        """Something was said on a link."""
        self._quiet.heard(link.name, self.host.now_ms())

    def forget(self, link: ServedLink) -> None:
        """A link is over."""
        self._links.get(link.outbox, {}).pop(link.link, None)
        self._by_name.pop(link.name, None)
        self._quiet.forget(link.name)
        link.end()

    def _ended(self, outbox: Outbox[Said]) -> None:
        self._heard.pop(outbox, None)
        for link in list(self._links.pop(outbox, {}).values()):
            self.forget(link)

    def _tick(self) -> None:
        now_ms = self.host.now_ms()
        for name in self._quiet.quiet(now_ms):
            self._by_name[name].beat()
            self._quiet.heard(name, now_ms)
        # A frozen subscriber must not hold its publishers up for ever.
        for outbox, heard_ms in list(self._heard.items()):
            if now_ms - heard_ms > SILENCE_MS:
                self._ended(outbox)
                outbox.close()
        self._timer.after(HEARTBEAT_MS / 2000)

    def close(self) -> None:
        """Serve no more."""
        self._timer.clear()
        for outbox in list(self._links):
            self._ended(outbox)
