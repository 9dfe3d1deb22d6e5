"""Order: which segments of a stream may be read, which have to wait, and which are finished.

Theory of operation
-------------------
The events of a key lie in one open segment at a time.  A split or a merge seals segments and opens
others that follow from them, so a stream's segments form a graph.  The events of a key stay in
order if everybody who reads keeps one rule, *all predecessors first*.  To a reader a segment is

*waiting*   as long as one of its predecessors is not finished;
*ready*     once all of them are: it may be read, even if there is nothing in it yet;
*finished*  when it is ready, sealed, and read to its head.

So finished is recursive.  A segment that was split while it was empty has nothing left to read from
the beginning.  Still it is not finished before its predecessors are, or its successors would be
read while events of the same keys lie in wait in its predecessor.

A predecessor that takes no part holds nobody up: the log has deleted it, it lies before the place
at which the reader began, or the reader was not asked to read it.  How far a segment is read is
for the caller to say: to a group, events that were trimmed before it read them count as read.

:func:`standing` looks at all segments afresh; :class:`Order` is told step by step.  Both are linear
in segments and edges, and pure, so that the cores of groups use them as well.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from itertools import filterfalse
from typing import Generic, Protocol, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


class Part(Protocol):
    """A segment as far as the order is concerned."""

    @property
    def number(self) -> int: ...
    @property
    def predecessors(self) -> tuple[int, ...]: ...
    @property
    def head(self) -> int: ...
    @property
    def sealed(self) -> bool: ...


class Order(Generic[K]):
    """The segments that a reader has still to finish; those that it has finished are forgotten."""

    def __init__(self) -> None:
        self._awaited: dict[K, set[K] | None] = {}
        """Whom each segment still waits for; nobody if it is ready, None before it has joined."""
        self._followers: dict[K, list[K]] = {}
        """Who waits for a segment."""

    def __contains__(self, segment: object) -> bool:
        """Whether a segment takes part and is not finished."""
        return segment in self._awaited

    def is_ready(self, segment: K) -> bool:
        """Whether a segment takes part and waits for nobody."""
        awaited = self._awaited.get(segment)
        return awaited is not None and not awaited

    @property
    def waiting(self) -> dict[K, frozenset[K]]:
        """The segments that wait, and whom for; one that has not joined waits for itself."""
        return {
            segment: frozenset((segment,) if awaited is None else awaited)
            for segment, awaited in self._awaited.items()
            if awaited is None or awaited
        }

    def expect(self, segment: K) -> None:
        """A segment takes part; it waits until ``join`` tells its predecessors."""
        self._awaited.setdefault(segment, None)

    def join(self, found: Mapping[K, Iterable[K]]) -> list[K]:
        """Take segments in, each with its predecessors; returns those that are ready.

        Segments that have joined before stay as they are.
        """
        known = self._awaited
        for segment in found:
            known.setdefault(segment, None)
        ready = []
        for segment, predecessors in found.items():
            if known[segment] is not None:
                continue
            awaited = set(filter(known.__contains__, predecessors)) if predecessors else set()
            known[segment] = awaited
            for predecessor in awaited:
                self._followers.setdefault(predecessor, []).append(segment)
            if not awaited:
                ready.append(segment)
        return ready

    def finish(self, segment: K) -> list[K]:
        """A segment that is ready is read to its end; returns those whose turn it is now."""
        if not self.is_ready(segment):
            raise ValueError(f"segment {segment} cannot be finished: it is not its turn")
        return self.leave(segment)

    def leave(self, segment: K) -> list[K]:
        """A segment takes part no longer, read or not; returns those whose turn it is now."""
        del self._awaited[segment]
        ready = []
        for follower in self._followers.pop(segment, ()):
            awaited = self._awaited.get(follower)
            if awaited and segment in awaited:
                awaited.remove(segment)
                if not awaited:
                    ready.append(follower)
        return ready


class Standing(msgspec.Struct, Generic[K], frozen=True):
    """Where a reader stands, with segments in the order in which they were given."""

    ready: tuple[K, ...]
    waiting: tuple[K, ...]
    finished: frozenset[K]


def standing(graph: Mapping[K, Iterable[K]], through: Container[K]) -> Standing[K]:
    """Where a reader stands that has read the segments in ``through`` to their ends.

    ``graph`` holds the segments that take part, each with its predecessors.
    """
    order: Order[K] = Order()
    finished = set()
    due = order.join(graph)
    while due:
        segment = due.pop()
        if segment in through:
            finished.add(segment)
            due += order.finish(segment)
    left = [segment for segment in graph if segment not in finished]
    ready = tuple(filter(order.is_ready, left))
    return Standing(
        ready=ready,
        waiting=tuple(filterfalse(order.is_ready, left)),
        finished=frozenset(finished),
    )


def standing_at(segments: Iterable[Part], floors: Mapping[int, int]) -> Standing[int]:
    """Where a reader stands whose next offsets are ``floors``; other segments take no part."""
    taking_part = [segment for segment in segments if segment.number in floors]
    return standing(
        {segment.number: segment.predecessors for segment in taking_part},
        {s.number for s in taking_part if s.sealed and floors[s.number] >= s.head},
    )


def awaited(predecessors: Iterable[K], finished: Container[K]) -> frozenset[K]:
    """Whom a segment still waits for."""
    return frozenset(p for p in predecessors if p not in finished)


def following(segments: Iterable[K], graph: Mapping[K, Iterable[K]]) -> set[K]:
    """Everything that follows from one of the segments, however far; ``graph`` is as above."""
    followers: dict[K, list[K]] = {}
    for segment, predecessors in graph.items():
        for predecessor in predecessors:
            followers.setdefault(predecessor, []).append(segment)
    found: set[K] = set()
    left = list(segments)
    while left:
        for segment in followers.get(left.pop(), ()):
            if segment not in found:
                found.add(segment)
                left.append(segment)
    return found
