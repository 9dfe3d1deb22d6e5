"""A clock that tests drive, and the event loop that runs by it.

Theory of operation
-------------------
:class:`DrivenLoop` is asyncio's own selector loop with two changes.  Its ``time()`` is a number
that only moves when it is told to, so sleeps, timeouts and timers of everything that runs on it
obey.  And its selector never waits for time: when nothing can run any more, the loop is *at rest*,
and then, in this order,

* an ``advance`` that is under way moves the clock to the next timer, or ends;
* whoever waits for rest (``settle``) goes on;
* with ``autojump`` the clock jumps to the next timer;
* otherwise the loop waits, by real time, for a socket or another thread.  If none has anything to
  say for ``patience_s``, the test waits for something that cannot come, and fails.

What a program hands to threads (``in_thread``, ``asyncio.to_thread``) runs on the loop instead, at
its next turn, and a catalog that is opened on the loop takes its time from it and commits on the
thread that asks.  So nothing that happens depends on a thread: the same test takes the same course
every time.  Randomness comes from ``seed``.

*Rejected.*  A clock that only parts of Headrace know: a single ``asyncio.timeout`` in an
application under test would run by another one.  Counting the threads at work instead of doing
their work on the loop: commits would group as chance has it.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from headrace.errors import ClockStoodStillError
from headrace.host import clock

P = ParamSpec("P")
T = TypeVar("T")

START_S = 1000
"""What the clock shows at first."""
WALL_START_US = 1_893_456_000_000_000
"""The calendar at that moment: the beginning of 2030."""
PATIENCE_S = 30.0
"""How long, in real time, a loop at rest waits for sockets and threads."""


class DrivenClock(clock.Clock):
    """The clock of a :class:`DrivenLoop`."""

    driven = True

    def __init__(self, loop: DrivenLoop, seed: int) -> None:
        super().__init__()
        self._loop = loop
        self._stepped_us = 0
        self.random = random.Random(seed)
        self.now_ms = self._now_ms
        self.now_s = loop.time
        self.spent_s = loop.time
        self.wall_us = self._wall_us

    def _now_ms(self) -> int:
        return self._loop.now_ns // 1_000_000

    def _wall_us(self) -> int:
        return WALL_START_US + self._loop.now_ns // 1000 - START_S * 1_000_000 + self._stepped_us

    def step_wall(self, seconds: float) -> None:
        """Set the calendar forward, or back; the monotonic clock goes on as before."""
        self._stepped_us += round(seconds * 1_000_000)

    def executor(self, threads: int, name: str) -> Executor:
        del threads, name
        return _OnLoop(self._loop)

    @property
    def process(self) -> str:
        return "0"

    def name(self) -> str:
        return f"driven-{self.local_name()}"

    @property
    def autojump(self) -> bool:
        """Whether time jumps to the next timer when nothing else can run."""
        return self._loop.autojump

    @autojump.setter
    def autojump(self, on: bool) -> None:
        self._loop.autojump = on

    def pause(self, seconds: float) -> None:
        """Let time pass while nothing runs, as for a process that is stopped and goes on later."""
        self._loop.now_ns += round(seconds * 1_000_000_000)

    async def advance(self, seconds: float) -> None:
        """Let time pass: whatever is due within it runs, in order, each at its own moment.

        When it returns, everything has been done that can be done by then.
        """
        await self._loop.advance(seconds)

    async def settle(self) -> None:
        """Wait until nothing can run before time moves on."""
        await self._loop.settle()


class _Selector(selectors.DefaultSelector):
    """Asks the loop what to do when nothing can run."""

    loop: DrivenLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        patience_s = self.loop.at_rest(timeout)
        if patience_s:
            found = super().select(patience_s)
            if not found:
                raise ClockStoodStillError(patience_s, timeout)
        return found


class DrivenLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is driven; see the module's text."""

    def __init__(
        self, *, autojump: bool = False, seed: int = 0, patience_s: float = PATIENCE_S
    ) -> None:
        selector = _Selector()
        selector.loop = self
        self.now_ns = START_S * 1_000_000_000
        super().__init__(selector)
        self.autojump = autojump
        self.due_ns: int | None = None
        """When the next timer is due, as it was seen when the loop last was at rest."""
        self.headrace_clock = DrivenClock(self, seed)
        self._patience_s = patience_s
        self._target_ns: int | None = None
        self._advanced: asyncio.Future[None] | None = None
        self._settling: list[asyncio.Future[None]] = []
        self._until_rest = False

    def time(self) -> float:
        return self.now_ns / 1_000_000_000

    # -- driving from within ------------------------------------------------------------

    async def advance(self, seconds: float) -> None:
        """See :meth:`DrivenClock.advance`."""
        if self._advanced is not None:
            raise RuntimeError("the clock is being advanced already")
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._target_ns = self.now_ns + round(seconds * 1_000_000_000)
        self._advanced = self.create_future()
        try:
            await self._advanced
        finally:
            self._advanced = self._target_ns = None

    async def settle(self) -> None:
        """See :meth:`DrivenClock.settle`."""
        waiting = self.create_future()
        self._settling.append(waiting)
        await waiting

    # -- driving from outside -----------------------------------------------------------

    def run_to_rest(self) -> int | None:
        """Run until nothing can run; returns when the next timer is due, in nanoseconds.

        For a driver of several loops, each of them a program, that share one time: it sets
        ``now_ns`` first.
        """
        self._until_rest = True
        try:
            self.run_forever()
        finally:
            self._until_rest = False
        return self.due_ns

    def kill(self) -> None:
        """End as a program that is killed does: whatever it was about to do is not done."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.close()

    # -- at rest ------------------------------------------------------------------------

    def at_rest(self, timer_s: float | None) -> float:
        """Nothing can run, and the next timer is due in ``timer_s``.  Returns how long to wait for
        sockets and threads: 0 if there is something to do now."""
        due_ns = None if timer_s is None else self.now_ns + max(1, round(timer_s * 1_000_000_000))
        self.due_ns = due_ns
        if self._until_rest:
            self.stop()
        elif self._target_ns is not None:
            self._move(due_ns, self._target_ns)
        elif self._settling:
            settling, self._settling = self._settling, []
            for waiting in settling:
                _wake(waiting)
        elif self.autojump and due_ns is not None:
            self.now_ns = due_ns
        else:
            return self._patience_s
        return 0.0

    def _move(self, due_ns: int | None, target_ns: int) -> None:
        if due_ns is not None and due_ns <= target_ns:
            self.now_ns = due_ns
            return
        self.now_ns = target_ns
        self._target_ns = None
        if self._advanced is not None:
            _wake(self._advanced)

    # -- threads ------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Do what is meant for a thread on the loop, at its next turn."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        self.call_soon(_run, future, partial(func, *args))
        return future


class _OnLoop(Executor):
    """Does what it is given on the loop."""

    def __init__(self, loop: DrivenLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._loop.call_soon(_run, future, partial(fn, *args, **kwargs))
        return future


def _run(future: asyncio.Future[T] | Future[T], work: Callable[[], T]) -> None:
    if future.cancelled():
        return
    try:
        result = work()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def run(
    work: Coroutine[Any, Any, T],
    *,
    autojump: bool = False,
    seed: int = 0,
    patience_s: float = PATIENCE_S,
) -> T:
    """Run a test by a driven clock, like ``asyncio.run``; ``driven_clock()`` gives the clock."""

    def make() -> DrivenLoop:
        return DrivenLoop(autojump=autojump, seed=seed, patience_s=patience_s)

    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(work)


def driven_clock() -> DrivenClock:
    """The clock of the test that is running."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, DrivenLoop):
        raise RuntimeError("the clock is not driven; run this with headrace.testing.run(…)")
    return loop.headrace_clock
