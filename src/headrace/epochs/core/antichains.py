"""Antichains: sets of times of which no two are comparable, and counted ones.

Theory of operation
-------------------
A *minimal* antichain stands for everything at or after one of its times; that is how a lower
frontier is written.  A time is *completed* when the frontier does not cover it.  The empty
frontier covers nothing: it is the greatest one, and everything is complete.  A *maximal* antichain
stands for everything at or before one of its times; that is how an upper frontier and a filter are
written.  The empty filter covers nothing and lets everything pass.

In a total order both hold one time at most, so that every operation on integers takes constant
time.  Tuples are scanned, which costs as many comparisons as there are times in the antichain.

A *counted* antichain is a multiset of times of which only the minimal ones show.  It says which
times came into view and which left it, and those changes are all that is worth telling others.
Under integers the next time to show comes from a heap whose dead entries are dropped when they
reach the top (and all at once when they are the majority): O(log n) per change over time.  Under
tuples a time that leaves the view makes the held times be looked through once per update.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from headrace.epochs.core.times import Time, TimeShape
from headrace.errors import FrontierError, IllegalTimeError

Frontier = tuple[Time, ...]
"""The times of an antichain, in a fixed sequence."""

Change = tuple[Time, int]
"""A time and by how much its count changes."""

_DEAD_MIN = 64  # fewer dead entries than this are not worth a sweep


class Antichain:
    """Mutually incomparable times, the minimal or the maximal ones of all that were inserted.

    >>> lower = Antichain.minimal(TimeShape(2), [(1, 0), (0, 2), (1, 1)])
    >>> lower.frontier, lower.covers((1, 5)), lower.covers((0, 1))
    (((0, 2), (1, 0)), True, False)
    """

    __slots__ = ("_leq", "_times", "shape")

    def __init__(self, shape: TimeShape, leq: Callable[[Any, Any], bool]) -> None:
        self.shape = shape
        self._leq = leq
        self._times: list[Time] = []

    @classmethod
    def minimal(cls, shape: TimeShape, times: Iterable[Time] = ()) -> Antichain:
        """The minimal ones of `times`; covers what is at or after one of them."""
        if shape.length == 0:
            antichain = cls(shape, operator.le)
            antichain._times = _one(min(times, default=None))
        else:
            antichain = cls(shape, shape.leq)
            antichain.insert_all(times)
        return antichain

    @classmethod
    def maximal(cls, shape: TimeShape, times: Iterable[Time] = ()) -> Antichain:
        """The maximal ones of `times`; covers what is at or before one of them."""
        if shape.length == 0:
            antichain = cls(shape, operator.ge)
            antichain._times = _one(max(times, default=None))
        else:
            antichain = cls(shape, _reversed(shape))
            antichain.insert_all(times)
        return antichain

    @property
    def frontier(self) -> Frontier:
        """The times, in a fixed sequence."""
        return tuple(sorted(self._times))

    def __iter__(self) -> Iterator[Time]:
        return iter(self._times)

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, time: Time) -> bool:
        return time in self._times

    def __repr__(self) -> str:
        return f"{{{', '.join(map(str, self.frontier))}}}"

    def covers(self, time: Time) -> bool:
        """Whether `time` is at or after one of the times; if maximal, at or before one."""
        leq = self._leq
        for held in self._times:  # noqa: SIM110 - a loop takes half the time of any()
            if leq(held, time):
                return True
        return False

    def insert(self, time: Time) -> bool:
        """Take a time in, and put out those it covers; False if it is covered already."""
        if self.covers(time):
            return False
        leq = self._leq
        self._times = [held for held in self._times if not leq(time, held)]
        self._times.append(time)
        return True

    def insert_all(self, times: Iterable[Time]) -> None:
        """Take many times in."""
        for time in times:
            self.insert(time)

    def remove(self, time: Time) -> None:
        """Take one of the times out."""
        self._times.remove(time)

    def prune(self, live: Callable[[Time], bool]) -> bool:
        """Put out the times that are not `live`; whether there were any."""
        kept = [time for time in self._times if live(time)]
        pruned = len(kept) < len(self._times)
        self._times = kept
        return pruned

    def copy(self) -> Antichain:
        """An independent copy."""
        twin = Antichain(self.shape, self._leq)
        twin._times = list(self._times)
        return twin


def _one(time: Time | None) -> list[Time]:
    return [] if time is None else [time]


def _reversed(shape: TimeShape) -> Callable[[Any, Any], bool]:
    return lambda first, second: shape.leq(second, first)


def not_before(shape: TimeShape, frontier: Iterable[Time], bound: Iterable[Time]) -> bool:
    """Whether all that `frontier` covers is covered by `bound`: it is as far or farther.

    >>> not_before(TimeShape(), [3], [2]), not_before(TimeShape(), [], [2])
    (True, True)
    """
    if shape.length == 0:
        first, least_of = min(bound, default=None), min(frontier, default=None)
        return least_of is None or (first is not None and first <= least_of)  # type: ignore[operator]
    least = Antichain.minimal(shape, bound)
    return all(map(least.covers, frontier))


def join(shape: TimeShape, first: Iterable[Time], second: Iterable[Time]) -> Frontier:
    """The frontier that covers exactly what both cover."""
    second = tuple(second)
    if shape.length == 0:
        least = min(first, default=None)
        return () if least is None or not second else (max(least, min(second)),)
    joined = (shape.join(a, b) for a in first for b in second)
    return Antichain.minimal(shape, joined).frontier


def meet(shape: TimeShape, first: Iterable[Time], second: Iterable[Time]) -> Frontier:
    """The frontier that covers what either of them covers."""
    both = (*first, *second)
    if shape.length == 0:
        return (min(both),) if both else ()
    return Antichain.minimal(shape, both).frontier


def leave_out(shape: TimeShape, frontier: Iterable[Time], times: Iterable[Time]) -> Frontier:
    """The frontier that covers what `frontier` covers, without all that is ≤ one of `times`."""
    result = tuple(frontier)
    for time in times:
        steps = shape.beyond(time)
        result = join(shape, result, steps)
    return result


def check_frontier(shape: TimeShape, times: Iterable[object]) -> Frontier:
    """`times` as a minimal antichain, each checked for its shape."""
    if shape.length == 0:
        return tuple(sorted(map(shape.check, times))[:1])
    return Antichain.minimal(shape, [shape.check(time) for time in times]).frontier


class CountedAntichain:
    """A multiset of times that shows its minimal ones.  Make one with :func:`counted`."""

    def __init__(self, shape: TimeShape) -> None:
        self.shape = shape
        self.counts: dict[Time, int] = {}

    def __repr__(self) -> str:
        return f"{{{', '.join(map(str, self.frontier))}}}"

    def __len__(self) -> int:
        """How many distinct times are held."""
        return len(self.counts)

    @property
    def frontier(self) -> Frontier:
        """The minimal times, in a fixed sequence."""
        raise NotImplementedError

    def covers(self, time: Time) -> bool:
        """Whether a held time is ≤ `time`; if not, `time` is completed."""
        raise NotImplementedError

    def check(self, updates: Iterable[Change], *, forward: bool = True) -> dict[Time, int]:
        """The net change per time, if the update is legal; raises if not.

        An update is taken as a whole: a time may be exchanged for a later one.  A count never
        falls below 0, and with `forward` a count grows only at or after a time held before.
        """
        updates = tuple(updates)
        net: dict[Time, int] = {}
        for time, delta in updates:
            self.shape.check(time)
            net[time] = net.get(time, 0) + delta
        for time, delta in net.items():
            if delta < 0 and self.counts.get(time, 0) + delta < 0:
                raise FrontierError(
                    f"{time} is held {self.counts.get(time, 0)} times",
                    update=f"progress {list(updates)}",
                    state=f"lower frontier {self}",
                )
            if forward and delta > 0 and not self.covers(time):
                raise IllegalTimeError(
                    f"{time} is not at or after a held time",
                    update=f"progress {list(updates)}",
                    state=f"lower frontier {self}",
                )
        return net

    def update(self, updates: Iterable[Change], *, forward: bool = False) -> tuple[Change, ...]:
        """Change counts; which times left the view (-1) and came into it (+1)."""
        return self.apply(self.check(updates, forward=forward))

    def apply(self, net: Mapping[Time, int]) -> tuple[Change, ...]:
        """Change counts by a net that :meth:`check` has passed."""
        raise NotImplementedError

    def _count(self, net: Mapping[Time, int]) -> list[Time]:
        """Change the counts; the times that were not held before."""
        fresh = []
        for time, delta in net.items():
            before = self.counts.get(time, 0)
            after = before + delta
            if after > 0:
                self.counts[time] = after
                if before == 0:
                    fresh.append(time)
            elif before > 0:
                del self.counts[time]
        return fresh


class _CountedIntegers(CountedAntichain):
    """Integers: one time shows, and a heap knows the next."""

    def __init__(self, shape: TimeShape) -> None:
        super().__init__(shape)
        self._heap: list[Any] = []
        self._least: Any = None

    @property
    def frontier(self) -> Frontier:
        return () if self._least is None else (self._least,)

    def covers(self, time: Time) -> bool:
        return self._least is not None and bool(self._least <= time)

    def apply(self, net: Mapping[Time, int]) -> tuple[Change, ...]:
        heap, counts = self._heap, self.counts
        for time in self._count(net):
            heapq.heappush(heap, time)
        if len(heap) > 2 * len(counts) + _DEAD_MIN:
            heap[:] = counts
            heapq.heapify(heap)
        while heap and heap[0] not in counts:
            heapq.heappop(heap)
        before, self._least = self._least, heap[0] if heap else None
        if before == self._least:
            return ()
        left = () if before is None else ((before, -1),)
        return left if self._least is None else (*left, (self._least, 1))


class _CountedTuples(CountedAntichain):
    """Tuples: the minimal ones are kept, and found again when one of them goes."""

    def __init__(self, shape: TimeShape) -> None:
        super().__init__(shape)
        self._lower = Antichain.minimal(shape)

    @property
    def frontier(self) -> Frontier:
        return self._lower.frontier

    def covers(self, time: Time) -> bool:
        return self._lower.covers(time)

    def apply(self, net: Mapping[Time, int]) -> tuple[Change, ...]:
        before = self._lower.frontier
        fresh = self._count(net)
        if self._lower.prune(self.counts.__contains__):
            self._lower.insert_all(self.counts)
        else:
            self._lower.insert_all(fresh)
        after = self._lower.frontier
        left = [(time, -1) for time in before if time not in after]
        return (*left, *((time, 1) for time in after if time not in before))


def counted(shape: TimeShape, times: Iterable[Time] = ()) -> CountedAntichain:
    """A counted antichain for times of `shape`, each of `times` held once.

    >>> lower = counted(TimeShape(), [0])
    >>> lower.update([(0, -1), (3, 1), (5, 1)]), lower.update([(5, -1)])
    (((0, -1), (3, 1)), ())
    """
    antichain = _CountedIntegers(shape) if shape.length == 0 else _CountedTuples(shape)
    antichain.update([(time, 1) for time in times])
    return antichain
