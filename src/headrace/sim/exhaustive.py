"""Model checking: visits every reachable state of a small group, breadth first.

The simulator samples a few runs out of very many; here, with two sessions, one or two leaders and
two segments of one event each, all runs are tried up to a given number of events.  An event is one
of: any message under way arrives, whatever was sent before it; a message is lost; a
message arrives and stays under way to arrive again; a commit reaches the store; a timer fires; a
consumer acks; somebody leaves; a leader crashes, or is replaced while it still believes to lead.
A partitioned group of two members is searched as well (``small_members``).

Time stands still: every core is told ``now = 0``, and timers fire as events of their own, at any
moment.  So whatever times are configured, no outcome of a race is left out.  What would make
the number of states infinite has a budget (losses, repeats, timeouts, elections).

States are told apart by a 64-bit hash of everything in them.  Two states among a million share
one by accident with a probability of about 1 in 40 million.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

import msgspec

from headrace.errors import HeadraceError
from headrace.sim.small_members import MembersBudget, MembersSetup
from headrace.sim.small_world import Budget, EventLabel, Setup
from headrace.sim.world import InvariantViolation


class Searched(Protocol):
    """A small world, whose states are visited."""

    seen: set[str]
    """Interesting things that have happened on the way here."""

    def key(self) -> int: ...
    def events(self) -> Iterable[EventLabel]: ...
    def happen(self, event: EventLabel) -> None: ...
    def check(self) -> None: ...


class Searchable(Protocol):
    """How a small world begins, and how deep it is searched."""

    @property
    def name(self) -> str: ...
    @property
    def depth(self) -> int: ...
    def model(self) -> Searched: ...


SETUPS: tuple[Searchable, ...] = (
    Setup("two join", Budget(losses=1, resends=1), connected=0, depth=11),
    Setup("hand-over, losses", Budget(losses=1, resends=1), connected=1, prologue=3, depth=12),
    Setup("hand-over, repeats", Budget(repeats=2), connected=1, prologue=3, depth=12),
    Setup("hand-over, timeouts", Budget(timeouts=2), connected=1, prologue=3, depth=9),
    Setup("two leaders", Budget(elections=1, timeouts=1), connected=1, prologue=3, depth=9),
    Setup("leader crash", Budget(elections=1, crashes=1, timeouts=1), prologue=3, depth=9),
    Setup("overtaken grant", Budget(repeats=1), connected=0, overtaking=True, depth=9),
    Setup("unsubscribe", Budget(unsubscribes=2, losses=1), prologue=3, depth=9),
    Setup("gathering", Budget(gathers=2, losses=1, resends=1), prologue=3, depth=8),
    Setup("gathering, leaders", Budget(gathers=1, elections=1, timeouts=1), prologue=3, depth=7),
    Setup("settings", Budget(configures=1, elections=1, resends=1), prologue=3, depth=8),
    Setup("successor", Budget(losses=1, resends=1, repeats=1), chained=True, depth=9),
    MembersSetup("a partition moves", MembersBudget(ticks=2, losses=2), depth=12),
    MembersSetup("it moves back", MembersBudget(configures=2, closes=1), depth=12),
    MembersSetup("a pin runs out", MembersBudget(expiries=1, ticks=2), depth=10),
)


class Explored(msgspec.Struct, frozen=True):
    """What came of exploring one small world."""

    model: str
    depth: int
    states: int
    transitions: int
    violation: str | None = None
    path: tuple[str, ...] = ()


ExploredClaim: TypeAlias = Callable[[Searched], bool]
"""A statement about states that is supposed to hold in all of them."""


class _Visited:
    """A state to go on from: every event that can happen begins with a copy of it."""

    __slots__ = ("events", "key", "saved")

    def __init__(self, key: int, model: Searched) -> None:
        self.key = key
        self.saved = pickle.dumps(model, pickle.HIGHEST_PROTOCOL)
        self.events = tuple(model.events())


class Explorer:
    """Breadth-first search through one small world."""

    def __init__(self, setup: Searchable, claim: ExploredClaim | None = None) -> None:
        self._setup = setup
        self._claim = claim
        self._parents: dict[int, tuple[int, EventLabel] | None] = {}
        self._transitions = 0
        self.seen: set[str] = set()

    def run(
        self, depth: int | None = None, progress: Callable[[int, int], None] | None = None
    ) -> Explored:
        """Visit every state up to a depth, or the first that breaks a promise."""
        limit = self._setup.depth if depth is None else depth
        try:
            model = self._setup.model()
        except InvariantViolation as violation:
            return self._result(0, str(violation), None)
        self._parents[model.key()] = None
        frontier = [_Visited(model.key(), model)]
        level = 0
        while frontier and level < limit:
            level += 1
            following: list[_Visited] = []
            for state in frontier:
                for event in state.events:
                    broken = self._visit(state, event, following if level < limit else None)
                    if broken is not None:
                        return self._result(level, broken, (state.key, event))
            frontier = following
            if progress is not None:
                progress(level, len(self._parents))
        return self._result(level, None, None)

    def _visit(
        self, before: _Visited, event: EventLabel, following: list[_Visited] | None
    ) -> str | None:
        """What an event leads to; the states of the last level are checked and not kept."""
        model: Searched = pickle.loads(before.saved)
        self._transitions += 1
        try:
            model.happen(event)
            model.check()
        except InvariantViolation as violation:
            return str(violation)
        except (HeadraceError, AssertionError, LookupError, TypeError, ValueError) as error:
            return f"no error escapes: {error!r}"
        key = model.key()
        self.seen |= model.seen
        if self._claim is not None and not self._claim(model):
            return "the claim does not hold"
        if key not in self._parents:
            self._parents[key] = (before.key, event)
            if following is not None:
                following.append(_Visited(key, model))
        return None

    def _result(
        self, depth: int, violation: str | None, last: tuple[int, EventLabel] | None
    ) -> Explored:
        path: list[str] = []
        if last is not None:
            at: tuple[int, EventLabel] | None = last
            while at is not None:
                path.append(" ".join(str(part) for part in at[1]))
                at = self._parents[at[0]]
        return Explored(
            self._setup.name,
            depth,
            len(self._parents),
            self._transitions,
            violation,
            tuple(reversed(path)),
        )


def explore(
    *,
    depth: int | None = None,
    setups: Iterable[Searchable] = SETUPS,
    progress: Callable[[int, int], None] | None = None,
) -> list[Explored]:
    """Explore the small worlds one after the other; stop at the first broken promise."""
    results = []
    for setup in setups:
        results.append(Explorer(setup).run(depth, progress))
        if results[-1].violation is not None:
            break
    return results
