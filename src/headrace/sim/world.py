"""Deterministic simulation: a world with virtual time, in which everything that may go wrong does.

Theory of operation.  A :class:`World` is a heap of scheduled events, ordered by virtual time and,
at the same instant, by the order of scheduling.  One step takes the first of them and runs it.
Nothing in a world looks at a real clock, and every choice comes from one random generator, so a
seed fixes the whole run: repeated, its history is the same to the byte.

A :class:`Process` is the runtime of one or more protocol cores.  It hears of messages, timers
and answers of the store, and acts by sending, setting timers and submitting transactions.  A
crash forgets everything the process made in :meth:`Process.start`; a pause keeps it, and lets
the world run on meanwhile.  Each process has a clock of its own that may run fast or slow:
``process.now_ms`` is what a core is told, ``world.now_ms`` is what really is.

The order of the random draws is part of what a seed means; containers that are walked while
drawing are lists or dicts, never sets of strings, whose order changes between interpreters.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from headrace.errors import HeadraceError
from headrace.sim.faults import ALL_FAULTS, Fault, FaultPlan
from headrace.sim.log import ModelLog
from headrace.sim.network import Network
from headrace.sim.store import ModelStore, Outcome, Transaction


class InvariantViolation(HeadraceError):
    """A promise was broken; `invariant` names it."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


class Dice(random.Random):
    """A generator whose whole numbers cost half; its draws are those of :class:`random.Random`."""

    def randint(self, a: int, b: int) -> int:
        """A number from `a` to `b`, both included; drawn as ``randrange`` draws it."""
        width = b - a + 1
        if width <= 0:
            return super().randint(a, b)  # which says what is wrong
        bits = width.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= width:
            drawn = self.getrandbits(bits)
        return a + drawn


class Process:
    """A process of the world.  Subclass it, and make all volatile state in :meth:`start`."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = False
        self.paused = False
        self.incarnation = 0
        self.clock_rate = 1.0
        self._backlog: list[Callable[[], None]] = []

    # --- what a process hears; override these ---

    def start(self) -> None:
        """The process begins, for the first time or after a crash: make its memory."""

    def receive(self, source: str, message: Any) -> None:
        """A message has arrived."""

    def timer(self, tag: Any) -> None:
        """A timer set by :meth:`after` has run out."""

    def stored(self, tag: Any, outcome: Outcome) -> None:
        """The store has answered a transaction submitted under `tag`."""

    def stopped(self) -> None:
        """The process has crashed; its memory is about to go."""

    # --- what a process does ---

    @property
    def now_ms(self) -> int:
        """What this process's own clock says."""
        return int(self.world.now_ms * self.clock_rate)

    def send(self, target: str, message: Any) -> None:
        """Send a message; it may be lost, repeated, late, or out of order."""
        self.world.network.send(self.name, target, message)

    def after(self, delay_ms: int, tag: Any) -> None:
        """Call :meth:`timer` when `delay_ms` of this process's clock have passed."""
        real_ms = max(1, int(delay_ms / self.clock_rate))
        self.world.call_in(real_ms, self._guarded(partial(self.timer, tag)))

    def submit(self, tag: Any, transaction: Transaction) -> None:
        """Ask the store to run a transaction; the answer comes to :meth:`stored`, or never."""
        answer = self._guarded_with(partial(self.stored, tag))
        self.world.store.submit(self.name, transaction, answer)

    def note(self, text: str, *args: Any) -> None:
        """Write a line of history."""
        self.world.note(self.name, text, *args)

    # --- what the world does to it ---

    def crash(self) -> None:
        """Forget everything and stop."""
        if self.alive:
            self.stopped()
        self.alive = False
        self.paused = False
        self.incarnation += 1
        self._backlog.clear()
        self.note("crashes")

    def restart(self) -> None:
        """Begin again with an empty memory."""
        if not self.alive:
            self.alive = True
            self.paused = False
            self.incarnation += 1
            self.note("starts")
            self.start()

    def pause(self) -> None:
        """Stand still; what arrives meanwhile waits."""
        if self.alive and not self.paused:
            self.paused = True
            self.note("pauses")

    def resume(self) -> None:
        """Go on; everything that waited happens now, in its order."""
        if self.alive and self.paused:
            self.paused = False
            self.note("resumes")
            backlog, self._backlog = self._backlog, []
            for action in backlog:
                self.world.call_in(0, action)

    def deliver(self, source: str, message: Any) -> None:
        """Hand over a message that has crossed the network."""
        if not self.alive:
            self.note("was down: %s from %s", message, source)
        elif self.paused:
            self._backlog.append(self._guarded(partial(self._receive, source, message)))
        else:
            self._receive(source, message)

    def _receive(self, source: str, message: Any) -> None:
        self.note("<- %s %s", source, message)
        self.receive(source, message)

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """Run `action` only in this life of the process, and not while it stands still."""
        incarnation = self.incarnation

        def run() -> None:
            if self.incarnation != incarnation or not self.alive:
                return
            if self.paused:
                self._backlog.append(run)
            else:
                action()

        return run

    def _guarded_with(self, action: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        incarnation = self.incarnation

        def run(outcome: Outcome) -> None:
            if self.incarnation != incarnation or not self.alive:
                return
            if self.paused:
                self._backlog.append(partial(run, outcome))
            else:
                action(outcome)

        return run


class World:
    """Virtual time, one random source, and everything that lives in it."""

    def __init__(
        self,
        seed: int,
        faults: Iterable[Fault] = ALL_FAULTS,
        *,
        muted: frozenset[int] = frozenset(),
    ) -> None:
        self.seed = seed
        self.rng: random.Random = Dice(seed)
        self.now_ms = 0
        self.steps = 0
        self.faults = FaultPlan(self.rng, faults, muted=muted)
        self.processes: dict[str, Process] = {}
        self.reached: Counter[str] = Counter()
        self.network = Network(self)
        self.store = ModelStore(self)
        self.log = ModelLog()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._asked = 0
        self._history: list[tuple[int, int, str, str, tuple[Any, ...]]] = []

    # --- time ---

    def call_in(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run `action` after `delay_ms` of the world's time."""
        self._asked += 1
        heapq.heappush(self._heap, (self.now_ms + max(0, delay_ms), self._asked, action))

    def step(self) -> bool:
        """Run the next scheduled event; False when nothing is left."""
        if not self._heap:
            return False
        at_ms, _, action = heapq.heappop(self._heap)
        self.now_ms = max(self.now_ms, at_ms)
        self.steps += 1
        action()
        return True

    # --- processes ---

    def spawn(self, process: Process) -> None:
        """Add a process and start it.  Its clock drifts by up to 2 % where clocks drift."""
        self.processes[process.name] = process
        skew = self.rng.uniform(-0.02, 0.02)
        if self.faults.strikes(Fault.DRIFT, 0.7):
            process.clock_rate = 1.0 + skew
        process.alive = True
        process.note("starts")
        process.start()

    def crash(self, process: Process, down_ms: int) -> None:
        """Crash a process and bring it back after `down_ms`."""
        process.crash()
        self.call_in(down_ms, process.restart)

    def pause(self, process: Process, pause_ms: int) -> None:
        """Stop a process for `pause_ms`."""
        process.pause()
        self.call_in(pause_ms, process.resume)

    def heal(self) -> None:
        """No more faults: links up, store willing, everyone awake, clocks as they are."""
        self.faults.active = False
        self.network.heal()
        self.note("world", "heals")
        for process in list(self.processes.values()):
            if not process.alive:
                process.restart()
            elif process.paused:
                process.resume()

    # --- telling ---

    def note(self, who: str, text: str, *args: Any) -> None:
        """Write a line of history.  It is formatted only when somebody reads it."""
        self._history.append((self.steps, self.now_ms, who, text, args))

    def history(self) -> list[str]:
        """The story so far, one line each: step, virtual milliseconds, who, what."""
        return [
            f"{step:>6} {at_ms:>8} {who:<10} {text % args if args else text}"
            for step, at_ms, who, text, args in self._history
        ]

    @property
    def history_length(self) -> int:
        """How many lines the story has."""
        return len(self._history)

    def reach(self, state: str) -> None:
        """Count that an interesting state was reached."""
        self.reached[state] += 1

    def fail(self, invariant: str, detail: str) -> None:
        """A promise is broken: stop the world."""
        self.note("world", "VIOLATION %s: %s", invariant, detail)
        raise InvariantViolation(invariant, detail)

    def require(self, holds: bool, invariant: str, detail: str) -> None:
        """Fail unless `holds`."""
        if not holds:
            self.fail(invariant, detail)
