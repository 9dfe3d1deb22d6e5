"""Order: ready, waiting and finished, against a model that knows keys and times and no edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.order import Order, awaited, following, standing, standing_at

SLOTS = 8
"""The key space of the model, one key each."""


@dataclass
class Segment:
    """A segment of the model: ``events`` are (key, how many of that key came before)."""

    number: int
    lo: int
    hi: int
    predecessors: tuple[int, ...]
    opened_at: int
    sealed_at: int | None = None
    tail: int = 0

    def __post_init__(self) -> None:
        self.events: list[tuple[int, int]] = []

    @property
    def head(self) -> int:
        return len(self.events)

    @property
    def sealed(self) -> bool:
        return self.sealed_at is not None

    def overlaps(self, other: Segment) -> bool:
        return self.lo < other.hi and other.lo < self.hi


class Stream:
    """A stream whose segments are split, merged and tiled anew."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._scaled = 0
        self._counts = dict.fromkeys(range(SLOTS), 0)
        self._open(0, SLOTS, ())

    def _open(self, lo: int, hi: int, sealed: Iterable[Segment]) -> None:
        segment = Segment(len(self.segments), lo, hi, (), self._scaled)
        segment.predecessors = tuple(each.number for each in sealed if each.overlaps(segment))
        self.segments.append(segment)

    @property
    def open_segments(self) -> list[Segment]:
        return sorted((s for s in self.segments if not s.sealed), key=lambda s: s.lo)

    def publish(self, key: int) -> None:
        [segment] = [s for s in self.open_segments if s.lo <= key < s.hi]
        segment.events.append((key, self._counts[key]))
        self._counts[key] += 1

    def scale(self, first: int, last: int, cuts: Iterable[int]) -> None:
        """Seal a run of neighbours and open others that cover just the same."""
        opened = self.open_segments
        first, last = sorted((first % len(opened), last % len(opened)))
        sealed = opened[first : last + 1]
        self._scaled += 1
        for segment in sealed:
            segment.sealed_at = self._scaled
        lo, hi = sealed[0].lo, sealed[-1].hi
        edges = [lo, *sorted({cut for cut in cuts if lo < cut < hi}), hi]
        for begin, end in pairwise(edges):
            self._open(begin, end, sealed)

    def trim(self, number: int, share: int) -> None:
        segment = self.segments[number % len(self.segments)]
        segment.tail = max(segment.tail, segment.head * share // 4)

    # --- what is true of it, told without edges ---

    def before(self, segment: Segment) -> set[int]:
        """Everything that was sealed before it and that it shares keys with, and so on."""
        found: set[int] = set()
        left = [segment]
        while left:
            this = left.pop()
            for other in self.segments:
                earlier = other.sealed_at is not None and other.sealed_at <= this.opened_at
                if earlier and other.overlaps(this) and other.number not in found:
                    found.add(other.number)
                    left.append(other)
        return found

    @property
    def graph(self) -> dict[int, tuple[int, ...]]:
        return {segment.number: segment.predecessors for segment in self.segments}


Step = Callable[[Stream], None]

numbers = st.integers(0, 30)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda key: lambda s: s.publish(key), st.integers(0, SLOTS - 1)),
    st.builds(
        lambda first, last, cuts: lambda s: s.scale(first, last, cuts),
        numbers,
        numbers,
        st.lists(st.integers(1, SLOTS - 1), max_size=3),
    ),
    st.builds(lambda number, share: lambda s: s.trim(number, share), numbers, st.integers(0, 4)),
)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    stream = Stream()
    for step in draw(st.lists(steps, max_size=30)):
        step(stream)
    return stream


@given(streams(), st.data())
def test_any_progress_in_any_stream_stands_as_the_model_says(
    stream: Stream, data: st.DataObject
) -> None:
    # A reader may have begun anywhere: it reads some segments, and everything after them.
    begins = data.draw(st.sets(st.sampled_from(range(len(stream.segments)))), label="begins")
    after = {s.number for s in stream.segments if begins & stream.before(s)}
    assert following(begins, stream.graph) == after
    parts = {s.number: s for s in stream.segments if s.number in begins | after}
    floors = {
        number: data.draw(st.integers(segment.tail, segment.head), label=f"floor of {number}")
        for number, segment in parts.items()
    }
    through = {n for n, s in parts.items() if s.sealed and floors[n] >= s.head}
    turn = {n for n, s in parts.items() if stream.before(s) & parts.keys() <= through}

    found = standing_at(stream.segments, floors)
    assert found.finished == turn & through
    assert found.ready == tuple(n for n in parts if n in turn - through)
    assert found.waiting == tuple(n for n in parts if n not in turn)


@given(st.lists(st.one_of(steps, st.none()), max_size=60), st.data())
def test_whoever_is_told_step_by_step_reads_every_key_in_order(
    told: list[Step | None], data: st.DataObject
) -> None:
    """None is a turn of the reader: it reads a little of one segment that is ready."""
    stream, order, ready = Stream(), Order[int](), list[int]()
    floors: dict[int, int] = {}
    read: dict[int, list[int]] = {key: [] for key in range(SLOTS)}

    def look() -> None:
        new = {n: before for n, before in stream.graph.items() if n not in floors}
        floors.update(dict.fromkeys(new, 0))
        retire(order.join(new) + ready)

    def retire(due: list[int]) -> None:
        ready.clear()
        while due:
            number = due.pop()
            segment = stream.segments[number]
            if segment.sealed and floors[number] >= segment.head:
                due += order.finish(number)
            else:
                ready.append(number)

    def turn(most: int) -> None:
        number = data.draw(st.sampled_from(sorted(ready)), label="reads")
        segment = stream.segments[number]
        start = max(floors[number], segment.tail)
        floors[number] = min(segment.head, start + most)
        for key, place in segment.events[start : floors[number]]:
            read[key].append(place)
        look()

    look()
    for step in told:
        if step is None:
            turn(data.draw(st.integers(0, 3), label="events"))
        else:
            step(stream)
        if data.draw(st.booleans(), label="looks"):
            look()
            found = standing_at(stream.segments, floors)
            assert set(found.ready) == set(ready)
            assert set(found.waiting) == order.waiting.keys()
    look()
    while behind := [n for n in ready if floors[n] < stream.segments[n].head]:
        ready[:] = behind  # the rest has nothing now, and comes back with the next look
        turn(1000)
        look()
        ready[:] = [n for n in floors if order.is_ready(n)]
    assert all(floors[s.number] >= s.head for s in stream.segments)
    for places in read.values():
        assert places == sorted(set(places))


# --- a segment that was split while it was empty -------------------------------------------

EMPTY = {0: (), 1: (0,), 2: (0,), 3: (1,), 4: (1,)}
"""0 was split into 1 and 2, and 1 into 3 and 4 before anything was written to it."""


def test_an_empty_segment_is_not_finished_before_its_predecessors() -> None:
    assert standing(EMPTY, {1}).waiting == (1, 2, 3, 4)
    found = standing(EMPTY, {0, 1})
    assert (found.ready, found.waiting) == ((2, 3, 4), ())
    assert found.finished == {0, 1}


def test_a_segment_cannot_be_finished_before_its_turn() -> None:
    order = Order[int]()
    assert order.join(EMPTY) == [0]
    with pytest.raises(ValueError, match="not its turn"):
        order.finish(1)
    assert order.waiting[3] == {1}
    assert order.finish(0) == [1, 2]
    with pytest.raises(ValueError, match="not its turn"):
        order.finish(0)


# --- who takes part ------------------------------------------------------------------------


def test_a_predecessor_that_takes_no_part_is_not_waited_for() -> None:
    assert standing({3: (1,), 4: (1, 2), 2: ()}, set()).ready == (3, 2)
    assert awaited((1, 2), {1}) == {2}


def test_a_segment_that_leaves_unread_holds_nobody_up() -> None:
    order = Order[int]()
    order.join(EMPTY)
    assert order.leave(1) == [3, 4]
    assert order.leave(0) == [2]
    assert 1 not in order
    assert order.join({1: ()}) == [1]  # made again under the same name


def test_a_segment_that_is_expected_waits_until_its_predecessors_are_told() -> None:
    order = Order[int]()
    order.expect(0)
    order.expect(1)
    assert order.join({1: (0,)}) == []
    assert order.join({0: ()}) == [0]
    assert order.join({0: (), 1: ()}) == []  # told before
    assert order.finish(0) == [1]


# --- cost ----------------------------------------------------------------------------------


class Counted(int):
    """A number that counts how often it is looked up."""

    looked_up = 0

    def __hash__(self) -> int:
        Counted.looked_up += 1
        return int.__hash__(self)


def _chain(count: int) -> dict[Counted, tuple[Counted, ...]]:
    each = [Counted(n) for n in range(count)]
    return {number: (each[at - 1],) if at else () for at, number in enumerate(each)}


def _merge(count: int) -> dict[Counted, tuple[Counted, ...]]:
    each = [Counted(n) for n in range(count)]
    return dict.fromkeys(each[:-1], ()) | {each[-1]: tuple(each[:-1])}


def _split(count: int) -> dict[Counted, tuple[Counted, ...]]:
    each = [Counted(n) for n in range(count)]
    return {each[0]: ()} | dict.fromkeys(each[1:], (each[0],))


@pytest.mark.parametrize("shape", [_chain, _merge, _split])
def test_the_cost_grows_with_segments_and_edges_and_no_faster(
    shape: Callable[[int], Mapping[Counted, tuple[Counted, ...]]],
) -> None:
    def cost(count: int) -> int:
        graph = shape(count)
        Counted.looked_up = 0
        assert len(standing(graph, graph.keys()).finished) == count
        assert len(following([Counted(0)], graph)) <= count
        return Counted.looked_up

    assert cost(10_000) <= 11 * cost(1000)
