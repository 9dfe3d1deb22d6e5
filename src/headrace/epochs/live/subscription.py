"""What runs of a live subscription: every publisher of a stream, heard directly."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Literal

from headrace.catalog import entries
from headrace.epochs.core.antichains import Frontier, not_before
from headrace.epochs.core.effects import (
    Advanced,
    Deliver,
    Dropped,
    Effect,
    End,
    Ended,
    Epoch,
    GaveUp,
    Mode,
    Ready,
    Skipped,
    TakenBack,
    WhenFull,
)
from headrace.epochs.core.messages import Aborted, Data, Message
from headrace.epochs.core.queues import QueuePolicy, size_of
from headrace.epochs.core.subscriber import OVER, Subscriber
from headrace.epochs.core.times import INTEGERS
from headrace.epochs.live import addresses, frames
from headrace.epochs.live.addresses import Serving
from headrace.epochs.live.frames import Alive, Hello, Payload, Said, Wish
from headrace.epochs.live.items import (
    LiveBatch,
    LiveEpoch,
    LiveFrontier,
    LiveItem,
    LiveSkipped,
    LiveStatistics,
    LiveTakenBack,
    StartedOver,
    decoded,
)
from headrace.epochs.live.serving import HEARTBEAT_MS, SILENCE_MS
from headrace.epochs.runtime.starting import FrontierLike, frontier_of
from headrace.errors import EpochError, EpochsAbortedError, FrameError, InvalidConfigError
from headrace.host.timers import Timer
from headrace.net import Links, Outbox
from headrace.subjects.arguments import check_value

if TYPE_CHECKING:
    from headrace.epochs.live.runtime import LiveRuntime

BUFFER_ITEMS = 1024
BUFFER_BYTES = 16 * 1024 * 1024
"""What was received and not handed out; beyond it the sockets are not read."""
ITEM_BYTES = 64
"""What an item without rows counts for."""
WHOLE_BATCHES = 65_536
"""Batches of epochs that are not complete; an epoch beyond them is given up, or ends it."""

OnLoss = Literal["raise", "restart"]

_log = logging.getLogger(__name__)


class _Heard:
    """One publisher as this subscription hears it."""

    def __init__(self, name: str, serving: Serving, link: int) -> None:
        self.name, self.serving, self.link = name, serving, link


class LiveHearing:
    """Epochs as they are published."""

    def __init__(
        self,
        runtime: LiveRuntime,
        stream: str,
        *,
        mode: Mode | str = Mode.WHOLE,
        until: FrontierLike | None = None,
        policy: QueuePolicy | str = QueuePolicy.BLOCK,
        batches_max: int = 1024,
        on_loss: OnLoss = "raise",
        when_full: WhenFull | str = WhenFull.GIVE_UP,
        filtered: bool | None = None,
    ) -> None:
        check_value("batches_max", batches_max, int)
        check_value("filtered", filtered, bool | None)
        _choose("mode", mode, Mode)
        _choose("policy", policy, QueuePolicy)
        _choose("when_full", when_full, WhenFull)
        if on_loss not in ("raise", "restart"):
            raise InvalidConfigError(f"on_loss={on_loss!r}: choose raise or restart")
        self.stream, self.mode = stream, Mode(mode)
        self.statistics = LiveStatistics()
        if filtered and self.mode is Mode.UNFILTERED:
            raise InvalidConfigError("filtered=True with mode='unfiltered': choose one of them")
        filtered = filtered is not False and self.mode is not Mode.UNFILTERED
        self._settings = frames.queued(QueuePolicy(policy), batches_max, filtered)
        self._until, self._when_full = until, WhenFull(when_full)
        self._restarts = on_loss == "restart"
        self._runtime, self.host = runtime, runtime.host
        self._stream_id, self._shape = 0, INTEGERS
        self._bound: Frontier = ()
        self._core: Subscriber | None = None
        self._links: Links[Wish, Said] | None = None
        self._heard: dict[int, _Heard] = {}
        self._last_ms: dict[str, int] = {}
        self._numbers = count(1)
        self._items: deque[tuple[LiveItem, int]] = deque()
        self._bytes = 0
        self._ended: Ended | None = None
        self._news = asyncio.Event()
        self._looking, self._again, self._paused, self._closed = False, False, False, True
        self._timer: Timer | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    # --- beginning and end ---

    async def open(self) -> None:
        """Begin to listen."""
        self._stream_id, self._shape = await self._runtime.stream(self.stream)
        if self._until is not None:
            self._bound = frontier_of(self._shape, self._until, "until")
        self._closed = False
        self._begin()
        channel = entries.channel(addresses.bucket(self._stream_id))
        try:
            self._unsubscribe = await self.host.listen(channel, self._look)
        except BaseException:
            await self.close()
            raise
        self._timer = self.host.timer(self._tick)
        self._timer.after(HEARTBEAT_MS / 2000)
        self._look()

    @property
    def is_open(self) -> bool:
        """Whether it listens."""
        return not self._closed

    async def close(self) -> None:
        """Hear no more."""
        if self._closed or self.host.is_forked:
            return
        self._closed = True
        self._unsubscribe()
        if self._timer is not None:
            self._timer.clear()
        self._news.set()
        if self._links is not None:
            await self._links.close()

    def _begin(self) -> None:
        """Take part from now on, with whoever publishes now."""
        self._core = None
        self._heard.clear()
        self._last_ms.clear()
        old = self._links
        self._links = Links(
            frames.to_publishers(self._shape),
            self._runtime.look_up,
            self._received,
            cut=lambda _: None,
            secured=self._runtime.secured,
            over=self._over,
        )
        if old is not None:
            self.host.spawn(old.close())

    def _start_over(self, reason: str) -> None:
        _log.warning("epochs of %s: started over, since %s", self.stream, reason)
        self.statistics.restarts += 1
        self._begin()
        self._give(StartedOver(reason))
        self._look()

    # --- publishers ---

    def _look(self) -> None:
        if self._looking:
            self._again = True
        elif not self._closed:
            self._looking = True
            self.host.spawn(self._see())

    async def _see(self) -> None:
        try:
            self._again = True
            while self._again and not self._closed:
                self._again = False
                found = await self.host.in_thread(
                    self.host.log.catalog.read,
                    lambda tx: addresses.all_of(tx, self._stream_id),
                    snapshot=True,
                )
                if not self._closed and self._ended is None:
                    self._found(found)
        finally:
            self._looking = False

    def _found(self, publishers: dict[str, Serving]) -> None:
        if self._core is None:
            if not publishers:
                return  # heard of when they come
            self._core = Subscriber(
                sorted(publishers),
                self._shape,
                mode=self.mode,
                until=self._bound or None,
                batches_max=WHOLE_BATCHES,
                when_full=self._when_full,
            )
            for name in sorted(publishers):
                self._dial(name, publishers[name])
            return
        known = {heard.name: heard for heard in self._heard.values()}
        for name, serving in publishers.items():
            heard = known.get(name)
            if heard is None and name not in self._core.partitions:
                self._add(name, serving)
            elif heard is not None and heard.serving.life != serving.life:
                self._lost(heard, f"publisher {name} was started anew")
                return

    def _add(self, name: str, serving: Serving) -> None:
        assert self._core is not None
        try:
            self._took(self._core.add_partition(name, serving.start))
        except EpochError as error:
            self._start_over(f"publisher {name} came too late to be added ({error})")
            return
        self._dial(name, serving)

    def _dial(self, name: str, serving: Serving) -> None:
        assert self._links is not None
        heard = _Heard(name, serving, next(self._numbers))
        self._heard[heard.link] = heard
        self._last_ms[serving.peer] = self.host.now_ms()
        self._links.send(serving.peer, Hello(heard.link, self._stream_id, name, self._settings))

    def _lost(self, heard: _Heard, reason: str) -> None:
        self._heard.pop(heard.link, None)
        if self._core is None or self._ended is not None:
            return
        if self._restarts and self._core.end is End.OPEN:
            self._start_over(reason)
        else:
            self._took(self._core.lost(heard.name, reason))

    def _over(self, peer: str, reason: str) -> None:
        """The connection to a process has ended."""
        for heard in [one for one in self._heard.values() if one.serving.peer == peer]:
            self._lost(heard, f"the connection has ended: {reason}")

    # --- messages ---

    def _received(self, messages: list[Said], outbox: Outbox[Wish]) -> None:
        self._last_ms[outbox.peer] = self.host.now_ms()
        for said in messages:
            heard = self._heard.get(said.link)
            if heard is not None and self._core is not None:
                self._hear(heard, said.message)

    def _hear(self, heard: _Heard, message: Message) -> None:
        core = self._core
        assert core is not None
        if type(message) is Aborted and (self._restarts or heard.name in core.waiting_for()):
            self._lost(heard, message.reason)
            return
        try:
            effects = core.receive(heard.name, message)
        except EpochError as error:
            raise FrameError(f"publisher {heard.name}: {error}") from error
        if type(message) is Data and isinstance(message.payload, Payload):
            self.statistics.batches += 1
            first = effects[0] if effects else None
            dropped = type(first) is Dropped and first.data is message
            if dropped or core.standing in OVER:
                self.statistics.dropped_batches += 1
                self.statistics.dropped_bytes += message.payload.nbytes
                message.payload.drop()
            else:
                message.payload.keep()
        self._took(effects)

    def _took(self, effects: list[Effect]) -> None:
        streaming = self.mode is not Mode.WHOLE
        for effect in effects:
            match effect:
                case Epoch(time=time, batches=batches):
                    whole = LiveEpoch(time, tuple(one.data for one in batches))
                    self._give(whole, whole.nbytes)
                case Deliver(partition=partition, data=data):
                    batch = LiveBatch(data.time, partition, decoded(data))
                    self._give(batch, size_of(data.payload))
                case Ready(lower=frontier) | Advanced(frontier=frontier) if streaming:
                    self._give(LiveFrontier(frontier))
                case Skipped(partition=partition, upper=upper) if streaming:
                    self._give(LiveSkipped(partition, upper))
                case TakenBack(partition=partition, held=held) if streaming:
                    self._give(LiveTakenBack(partition, held))
                case GaveUp():
                    self.statistics.given_up_epochs += 1
                    _log.warning("epochs of %s: epoch %s did not fit", self.stream, effect.time)
                case Ended():
                    self._ended = effect
                case _:
                    pass
        self._news.set()

    # --- handing out ---

    def _give(self, item: LiveItem, size: int = ITEM_BYTES) -> None:
        self._items.append((item, size))
        self._bytes += size
        self._news.set()
        self._press()

    def _press(self) -> None:
        """Stop reading the sockets while too much waits here, and go on when half is gone."""
        full = len(self._items) >= BUFFER_ITEMS or self._bytes >= BUFFER_BYTES
        half = len(self._items) <= BUFFER_ITEMS // 2 and self._bytes <= BUFFER_BYTES // 2
        if self._links is not None and (full if not self._paused else half):
            self._paused = not self._paused
            self._last_ms = dict.fromkeys(self._last_ms, self.host.now_ms())
            self._links.pause(self._paused)

    @property
    def frontier(self) -> Frontier:
        """What is still to come; empty when everything is complete."""
        return (self._shape.bottom,) if self._core is None else self._core.frontier

    @property
    def end(self) -> str | None:
        """How it ended: ``closed``, ``reached``, ``aborted``, ``full``; None while it has not."""
        return None if self._ended is None else str(self._ended.end)

    @property
    def publishers(self) -> tuple[str, ...]:
        """Who is heard now."""
        return tuple(sorted(heard.name for heard in self._heard.values()))

    async def wait_for(self, frontier: FrontierLike) -> None:
        """Wait until everything before a frontier is complete, or the stream has ended.

        Nothing is known before all publishers have sent their snapshots, so that is awaited too.
        """
        wanted = frontier_of(self._shape, frontier, "frontier")
        while self._ended is None and not self._closed:
            ready = self._core is not None and self._core.ready
            if ready and not_before(self._shape, self.frontier, wanted):
                return
            self._news.clear()
            await self._news.wait()

    async def items(self) -> AsyncIterator[LiveItem]:
        """Whole epochs, or whatever comes; the end is the end of the stream, or raises."""
        while True:
            while self._items:
                item, size = self._items.popleft()
                self._bytes -= size
                self.statistics.decoded_bytes += size
                self._press()
                yield item
            if self._closed:
                return
            if self._ended is not None:
                if self._ended.end in (End.ABORTED, End.FULL):
                    raise EpochsAbortedError(self.stream, self._ended.reason, list(self.frontier))
                return
            self.host.check()
            self._news.clear()
            await self._news.wait()

    # --- time ---

    def _tick(self) -> None:
        if self._closed or self._links is None or self._timer is None:
            return
        now_ms = self.host.now_ms()
        for peer in {heard.serving.peer for heard in self._heard.values()}:
            silent_ms = now_ms - self._last_ms.get(peer, now_ms)
            if silent_ms > SILENCE_MS and not self._paused:
                self._over(peer, f"nothing was heard for {silent_ms / 1000:.1f} s")
            else:
                self._links.send(peer, Alive())
        self._timer.after(HEARTBEAT_MS / 1000)


def _choose(name: str, value: object, kind: type[StrEnum]) -> None:
    if value not in list(kind):
        raise InvalidConfigError(f"{name}={value!r}: choose {', '.join(kind)}")
