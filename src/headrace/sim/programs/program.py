"""A program of a simulated world, on an event loop of its own.

The world gives it the time, and lets it run until nothing can run any more; then it waits for the
next of its timers, or for something that arrives.  A program that is paused is not run, and finds
out afterwards how late it is.  One that crashes loses its connections and its catalog first, and
only then are its tasks cancelled, so that nothing their cleanup does reaches anybody.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from headrace.catalog import Catalog
from headrace.sim.programs.sockets import Internet, SimSockets
from headrace.sim.programs.store import FaultyCommitter, faulty_reads
from headrace.sim.world import InvariantViolation, Process, World
from headrace.testing import DrivenLoop
from headrace.testing.clock import START_S, WALL_START_US

MS_NS = 1_000_000
START_NS = START_S * 1_000_000_000
TAKE_DOWN_ROUNDS = 50
TURNS_MAX = 5000
"""Turns of its event loop that a program may take before it waits for something."""
NEWS_MS = 3
"""The most that news of a commit takes to arrive."""


def wall_us(world: World) -> int:
    """The wall clock of a world, in microseconds, as its database sees it."""
    return WALL_START_US + world.now_ms * 1000


class ProgramLoop(DrivenLoop):
    """Gives up when a program goes on and on without a moment passing."""

    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        if self.turns > TURNS_MAX:
            self.stop()
        super()._run_once()  # type: ignore[misc]


class Program(Process):
    """A process with an event loop; subclasses say what it does in :meth:`main`."""

    internet: Internet
    loop: ProgramLoop

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.violation: InvariantViolation | None = None
        """What a check within this program found; raised by the scenario, not by the loop."""
        self._catalog: Catalog | None = None
        self._wake_ms: int | None = None
        self.has_run = False
        """Whether it did anything since somebody last looked, who then sets it back."""
        self._running = False
        self._dying = False

    async def main(self) -> None:
        """What the program does until it ends."""
        raise NotImplementedError

    def others(self) -> Iterable[Program]:
        """Who hears of what this one commits."""
        return [
            p for p in self.world.processes.values() if isinstance(p, Program) and p is not self
        ]

    # --- its life ---

    def start(self) -> None:
        self.loop = ProgramLoop(seed=self.world.rng.getrandbits(32))
        self.loop.headrace_sockets = SimSockets(self.internet, self)  # type: ignore[attr-defined]
        self.loop.set_exception_handler(self._escaped)
        self._catalog, self._wake_ms, self._dying = None, None, False
        self.spawn(self.main())
        self.wake_in(0)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something on the program's loop."""
        return self.loop.create_task(work)

    def opened(self, catalog: Catalog) -> None:
        """The program has a catalog: from now on the world decides what comes of its writes."""
        self._catalog = catalog
        catalog.drive(lambda: wall_us(self.world))
        catalog._committer = FaultyCommitter(self, catalog._committer)  # type: ignore[assignment]
        catalog.read = faulty_reads(self, catalog.read)  # type: ignore[method-assign]

    def stopped(self) -> None:
        self._dying = True
        self.internet.died(self)
        if self._catalog is not None:
            self._catalog._committer._committer.close()  # type: ignore[attr-defined]
            self._catalog.close()
        for _ in range(TAKE_DOWN_ROUNDS):
            tasks = sorted(asyncio.all_tasks(self.loop), key=asyncio.Task.get_name)
            if not tasks:
                break
            for task in tasks:  # again, if its cleanup awaits something
                task.cancel()
            self.loop.run_to_rest()
        self.loop.kill()

    def resume(self) -> None:
        super().resume()
        self.wake_in(0)

    def _escaped(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._dying:
            error = context.get("exception")
            self.found(InvariantViolation("no error escapes", f"{context['message']}: {error!r}"))

    def found(self, violation: InvariantViolation) -> None:
        """A promise was broken in this program."""
        self.violation = self.violation or violation

    # --- its time ---

    def inject(self, call: Callable[[], None]) -> None:
        """Have the program do something, now or when it is run next."""
        if self.alive and not self._dying:
            self.loop.call_soon(call)
            self.wake_in(0)

    def wake_in(self, delay_ms: int) -> None:
        """Run it after ``delay_ms``, unless it will be run sooner anyway."""
        at_ms = self.world.now_ms + delay_ms
        if self._wake_ms is None or at_ms < self._wake_ms:
            self._wake_ms = at_ms
            life = self.incarnation

            def wake() -> None:
                if self.incarnation == life and self._wake_ms == at_ms:
                    self._wake_ms = None
                    self.run()

            self.world.call_in(delay_ms, wake)

    def run(self) -> None:
        """Run its event loop until nothing can run."""
        if not self.alive or self.paused or self._running:
            return
        local_ns = START_NS + int(self.world.now_ms * MS_NS * self.clock_rate)
        self.loop.now_ns = max(self.loop.now_ns, local_ns)
        self._running = self.has_run = True
        self.loop.turns = 0
        try:
            due_ns = self.loop.run_to_rest()
        finally:
            self._running = False
        if self.loop.turns > TURNS_MAX:
            self.found(InvariantViolation("a program comes to rest", f"{self.name} does not"))
        if due_ns is not None:
            due_ms = math.ceil((due_ns - START_NS) / MS_NS / self.clock_rate)
            self.wake_in(max(1, due_ms - self.world.now_ms))

    def committing(self) -> None:
        """This program commits something."""

    def committed(self) -> None:
        """This program has committed something; others hear of it."""
        for other in self.others():
            if other.alive:
                other.wake_in(self.world.rng.randint(1, NEWS_MS))
