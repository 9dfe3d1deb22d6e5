"""The host: what a running program gives its parts, in one place.

``headrace.open()`` makes one, opens it, and closes it at the end.  The runtimes of groups, the
publisher, reads and housekeeping get everything from it that has to do with time, tasks, threads,
transactions and news, and nothing of it from elsewhere.  So a host whose clock is driven
(``headrace.testing``) drives all of them.

Everything but :meth:`Host.on_news` is called on the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import warnings
import weakref
from asyncio import events
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from headrace.catalog import Tx, forks
from headrace.catalog.calls import Saying
from headrace.errors import CatalogClosedError, ForkedError, WrongLoopError
from headrace.host.clock import Clock, clock_of
from headrace.host.loads import Loads
from headrace.host.news import News
from headrace.host.packages import Told
from headrace.host.services import Service, Services, Stage
from headrace.host.tasks import Tasks
from headrace.host.timers import Timer, Timers
from headrace.host.writes import Writes
from headrace.log.append import Outcome, Write
from headrace.log.log import Log

P = ParamSpec("P")
T = TypeVar("T")

HEARTBEATS_APART = 10
"""Heartbeats come at this many moments in the time between two of them, and not at others."""
THREADS = 8


class Host:
    """A log, a clock, timers, tasks, threads, transactions and news; open from ``open`` on."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    now_ms: Callable[[], int]
    """The monotonic clock in milliseconds, as cores are told the time."""
    now_s: Callable[[], float]
    """The monotonic clock in seconds, by which timers are set."""

    def __init__(self, *, loop_io: bool = True) -> None:
        self._loop_io = loop_io
        self.clock = Clock()
        self._numbers = itertools.count()
        self._groups: weakref.WeakValueDictionary[int, Tasks] = weakref.WeakValueDictionary()
        self._log: Log | None = None
        self._loads: Loads | None = None
        self._writes: Writes | None = None
        self._pool: Executor | None = None
        self._closing: asyncio.Task[None] | None = None
        self.is_forked = False
        """Whether it was opened before this process was forked off."""
        self.services = Services()
        self.parts: dict[object, Any] = {}
        """Singletons of this program, made when first needed."""

    # -- beginning and end --------------------------------------------------------------

    def start(self) -> None:
        """Begin on the event loop that this runs on, without a log: clock, timers and tasks."""
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise WrongLoopError(
                "there is no event loop of asyncio here; use asyncio, or headrace.sync"
            ) from error
        self._closing = None
        self.clock = clock_of(self.loop)
        self.now_ms, self.now_s = self.clock.now_ms, self.clock.now_s
        self._timers = Timers(self.loop, exact=self.clock.driven)
        self._tasks = self.tasks("headrace")
        self._news = News(self.loop)

    async def open(self, opener: Callable[[], Log]) -> None:
        """Begin, and open the log."""
        self.start()
        self._pool = self.clock.executor(THREADS, "headrace")
        forks.watch(self)
        opening = self._pool.submit(opener)
        try:
            log = await asyncio.wrap_future(opening)
        except BaseException:
            # Given up, perhaps: what the thread opens all the same is closed by it.
            opening.add_done_callback(_close_unwanted)
            self._pool.shutdown(wait=False)
            self._pool = None
            raise
        if self.clock.driven:
            log.catalog.drive(self.clock.wall_us)
        log.catalog.serve_on(self.loop)
        self._log = log
        self._loads = Loads(log.catalog, loop_io=self._loop_io, driven=self.clock.driven)
        self._writes = Writes(log, self._loads, self.in_thread)
        self.serve(Stage.WRITES, self._writes)

    async def close(self) -> None:
        """Take no more calls, close the services in their order, and then what they ran on.

        It goes on if whoever waits for it is cancelled; closing again waits for its end.
        """
        if self._log is None:
            return
        if self.loop.is_closed():
            self._release(self._log)
            return
        self._check_loop()
        if self._closing is None:
            self._closing = self.loop.create_task(self._close(self._log))
        await asyncio.shield(self._closing)

    async def _close(self, log: Log) -> None:
        try:
            await self.services.close()
        finally:
            for tasks in list(self._groups.values()):
                await tasks.close()
            self._timers.close()
            self.parts.clear()
            log.catalog.leave_loop()
            await self.in_thread(log.catalog.close)
            self._release(log)

    def _release(self, log: Log) -> None:
        """Give back threads and files; on any thread."""
        self._log = None
        log.catalog.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        forks.unwatch(self)

    def drop(self, then: Callable[[], None] | None = None) -> None:
        """Close what nobody else will, on whatever thread the garbage is collected."""
        log = self._log
        if log is None or self._closing is not None or sys.is_finalizing():
            return
        # Not here: this thread may hold any lock.
        if self.loop.is_running():
            self.loop.call_soon_threadsafe(self._drop, then)
        else:
            threading.Thread(target=self._release, args=(log,), daemon=True).start()

    def _drop(self, then: Callable[[], None] | None) -> None:
        closing = self._closing = self.loop.create_task(self._close(self.log))
        if then is not None:
            closing.add_done_callback(lambda _: then())

    def dropped(self, what: object, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Something of an application was dropped unclosed, on whatever thread: close it, warn."""
        if self.is_forked:
            return
        if self.is_open and self.loop.is_running():
            self.loop.call_soon_threadsafe(lambda: self.spawn(close()))
        text = f"{what} was never closed; use `async with`"
        warnings.warn(text, ResourceWarning, source=what, stacklevel=3)

    def forked(self) -> None:
        """In a forked child: refuse every call; what was open is the parent's to close."""
        self.is_forked = True
        self._log = self._loads = self._writes = self._pool = None
        self.services = Services()
        self.parts = {}

    def check_fork(self) -> None:
        """Raise if this was opened before this process was forked off."""
        if self.is_forked:
            raise ForkedError

    def check(self) -> None:
        """Raise unless an application may call, here and now."""
        # For every event, so without a call in between.
        if self._log is None or self._closing is not None:
            raise self.not_open()
        if events._get_running_loop() is not self.loop:
            self._check_loop()

    def check_thread(self) -> None:
        """Raise unless an application may call, on a thread without an event loop."""
        if not self.is_open:
            raise self.not_open()

    def _check_loop(self) -> None:
        if self.is_forked:
            raise ForkedError
        if events._get_running_loop() is not self.loop:
            raise WrongLoopError(
                "this log was opened on another event loop"
                f"{' that is closed' if self.loop.is_closed() else ''}; use it there, or open it "
                "again here"
            )

    def not_open(self) -> CatalogClosedError:
        """Why there is no log, or none that takes calls."""
        if self.is_forked:
            return ForkedError()
        if self._closing is not None:
            return CatalogClosedError("this log is not open any more, it is closed; open it again")
        return CatalogClosedError(
            "this log is not open; use `async with headrace.open(…)`, "
            "or `with headrace.sync.open(…)`"
        )

    @property
    def is_open(self) -> bool:
        """Whether there is a log that nobody closes yet."""
        return self._log is not None and self._closing is None

    @property
    def log(self) -> Log:
        """The synchronous log underneath, for threads and Spark tasks."""
        if self._log is None:
            raise self.not_open()
        return self._log

    @property
    def turns(self) -> int:
        """How often the catalog's history turned out to be another one."""
        return 0 if self._log is None else self._log.catalog.turns

    @property
    def loads(self) -> Loads:
        """What the event loop may do by itself."""
        if self._loads is None:
            raise self.not_open()
        return self._loads

    @property
    def writes(self) -> Writes:
        """The queue in front of the committer."""
        if self._writes is None:
            raise self.not_open()
        return self._writes

    def serve(self, stage: Stage, service: Service) -> None:
        """Register a service, to be closed at this stage of the shutdown."""
        self.services.add(stage, service)

    # -- time ---------------------------------------------------------------------------

    def timer(self, call: Callable[[], None]) -> Timer:
        """A timer that is not set yet, to be set as often as one likes."""
        return self._timers.timer(call)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call ``call`` once, ``delay_s`` from now; clear the timer to cancel it."""
        timer = self._timers.timer(call)
        timer.after(delay_s)
        return timer

    def beat_s(self, every_ms: int) -> float:
        """How long to wait for the next heartbeat: a little less than ``every_ms``, until a moment
        that heartbeats of this time have in common, so that many of them share a commit."""
        grid_ms = max(1, every_ms // HEARTBEATS_APART)
        now_ms = self.now_ms()
        due_ms = now_ms + every_ms
        return (due_ms - due_ms % grid_ms - now_ms) / 1000

    async def sleep(self, seconds: float) -> None:
        """Wait by this program's clock."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """A context that ends its block with ``TimeoutError`` after ``seconds``."""
        return asyncio.timeout(seconds)

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Wait for an event, but at most ``timeout_s``; whether it came."""
        try:
            async with self.timeout(timeout_s):
                return await event.wait()
        except TimeoutError:
            return event.is_set()

    # -- tasks and threads --------------------------------------------------------------

    def tasks(self, part: str) -> Tasks:
        """The tasks of one part, which ends them when it ends."""
        made = self._groups[next(self._numbers)] = Tasks(self.loop, part)
        return made

    def spawn(self, work: Coroutine[Any, Any, T], *, awaited: bool = False) -> asyncio.Task[T]:
        """Run a background task, until the program ends; see :meth:`Tasks.spawn`."""
        return self._tasks.spawn(work, awaited=awaited)

    async def in_thread(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function on one of this program's threads."""
        return await self._on_thread(partial(fn, *args, **kwargs))

    def _on_thread(self, fn: Callable[[], T]) -> asyncio.Future[T]:
        self._check_loop()
        if self._pool is None:
            raise self.not_open()
        return self.loop.run_in_executor(self._pool, fn)

    async def or_undo(self, work: asyncio.Future[T], undo: Callable[[T], object]) -> T:
        """Wait for what cancelling does not stop; whoever is cancelled has its result undone."""
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(partial(_undo, undo))
            raise

    # -- news ---------------------------------------------------------------------------

    def on_news(self, channel: str, call: Callable[[], None]) -> Callable[[], None]:
        """Have the event loop call ``call`` after commits, in any process, that notified a channel;
        returns the function that unsubscribes.

        News that comes while a call is pending is coalesced into that call.  To miss nothing,
        subscribe first and look second.  A program's first subscription may block for a while, so
        make it on a thread.
        """
        return self._news.subscribe(self.log.catalog, channel, call)

    async def listen(self, channel: str, call: Callable[[], None]) -> Callable[[], None]:
        """Subscribe as :meth:`on_news`, on a thread; a caller that is cancelled is unsubscribed."""
        subscribing = self._on_thread(partial(self.on_news, channel, call))
        return await self.or_undo(subscribing, lambda stop: stop())

    # -- transactions -------------------------------------------------------------------

    def in_transaction(
        self,
        fn: Callable[[Tx], T],
        locks: Iterable[str] = (),
        *,
        sync: bool = True,
        small: bool = False,
    ) -> asyncio.Future[T]:
        """Run ``fn`` in a write transaction, in one group commit with others.

        A ``small`` one may be committed by the event loop itself, where that is quick.
        """
        return self.writes.transact(fn, locks, sync=sync, small=small)

    async def taking(
        self, fn: Callable[[Tx], T], locks: Sequence[str], give_back: Callable[[Tx, T], object]
    ) -> T:
        """Take something in a write transaction; if that is cancelled, it is given back."""

        def undo(taken: T) -> None:
            if self._writes is not None:
                self.submit(lambda tx: give_back(tx, taken), locks, lambda *_: None)

        return await self.or_undo(self.in_transaction(fn, locks), undo)

    def submit(
        self,
        fn: Callable[[Tx], object],
        locks: Iterable[str],
        told: Told,
        *,
        sync: bool = True,
        small: bool = False,
        saying: Saying | None = None,
    ) -> None:
        """Run ``fn`` in a write transaction; calls back later, on the event loop."""
        self.writes.submit(fn, locks, told, sync=sync, small=small, saying=saying)

    async def commit(self, write: Write) -> Outcome:
        """Append what a write holds, in line with all other events of this program."""
        return await self.writes.commit(write)


def _undo(undo: Callable[[T], object], work: asyncio.Future[T]) -> None:
    if not work.cancelled() and work.exception() is None:
        undo(work.result())


def _close_unwanted(opening: Future[Log]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().catalog.close()
