"""The ledger against an oracle of its own, which knows every row and compares every time."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.epochs.core import ledger, lines
from headrace.epochs.core.antichains import Antichain
from headrace.epochs.core.commits import (
    AbortStream,
    EpochCommit,
    GiveUp,
    JoinStream,
    Publish,
    Step,
)
from headrace.epochs.core.fronts import FRONTS_MAX
from headrace.epochs.core.ledger import Decided, LedgerState, PublisherState
from headrace.epochs.core.lines import Line, Span, covers_all, decode_line, encode_line
from headrace.epochs.core.times import Time, TimeShape
from headrace.errors import (
    CapabilityError,
    EpochError,
    EpochLimitError,
    EpochStreamEndedError,
    FrontierError,
    HeadraceError,
    IllegalTimeError,
    LateEventError,
    PublisherLimitError,
    UnknownPublisherError,
    UnreadableRecordError,
)

GRID = {0: 12, 2: 5, 3: 4}
"""Times of a shape that the oracle looks at: so many in every direction."""


def leq(first: Time, second: Time) -> bool:
    """The product order, once more and by itself."""
    if isinstance(first, int) or isinstance(second, int):
        return first <= second  # type: ignore[operator]
    return all(a <= b for a, b in zip(first, second, strict=True))


def grid(length: int) -> list[Time]:
    side = range(GRID[length])
    return list(side) if length == 0 else list(product(side, repeat=length))


class Row(msgspec.Struct):
    publisher: str
    time: Time
    line: int
    taken_back: bool = False


class Oracle:
    """Every row, every held time, every line; nothing is joined, counted or left out."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.grid = grid(length)
        self.held: dict[str, list[Time]] = {}
        self.rows: list[Row] = []
        self.virgin = True
        self.lines: list[Line] = []
        self.complete: list[set[Time]] = []
        """After each line."""

    def is_complete(self, time: Time) -> bool:
        if self.virgin:
            return False
        return not any(leq(held, time) for times in self.held.values() for held in times)

    def is_late(self, name: str, time: Time) -> bool:
        return not any(leq(held, time) for held in self.held[name])

    def take_back(self, name: str) -> None:
        for row in self.rows:
            if row.publisher == name and not self.is_late(name, row.time):
                row.taken_back = True

    def note(self, line: Line) -> None:
        self.lines.append(line)
        self.complete.append({time for time in self.grid if self.is_complete(time)})


class World:
    """The ledger and the oracle, side by side."""

    def __init__(self, length: int, declared: tuple[str, ...] = ()) -> None:
        self.shape = TimeShape(length)
        self.state, publishers = ledger.begin("s", self.shape, declared)
        self.publishers: dict[str, PublisherState] = {each.name: each for each in publishers}
        self.oracle = Oracle(length)
        if declared:
            self.oracle.virgin = False
            self.oracle.held = {name: [self.shape.bottom] for name in declared}
        self.offset = 0

    def commit(self, commit: EpochCommit) -> Decided:
        decided = ledger.decide(self.state, self.publishers.get(commit.publisher), commit)
        # What the catalog keeps is the encoded state: it has to come back as it was.
        encoded = ledger.encode_state(decided.state)
        self.state = ledger.decode_state(encoded, "days")
        assert self.state == decided.state
        if decided.publisher is None:
            self.publishers.pop(commit.publisher, None)
        else:
            again = ledger.decode_publisher(
                ledger.encode_state(decided.publisher), decided.publisher.name, "s"
            )
            assert again == decided.publisher
            self.publishers[commit.publisher] = again
        if decided.line is not None:
            assert decode_line(encode_line(decided.line), "s", 0) == decided.line
            assert decided.line.lower == self.state.lower
            self.oracle.note(decided.line)
            self.check()
        return decided

    def publish(self, name: str, times: list[Time], *steps: Step, take_back: bool = False) -> None:
        known = tuple(sorted(set(times)))
        counts = tuple((place, times.count(time)) for place, time in enumerate(known))
        spans: tuple[Span, ...] = ()
        if times:
            of_many = counts if len(known) > 1 else ()
            spans = (Span(0, self.offset, self.offset + len(times), of_many),)
        first = Step(times=known, rows=len(times))
        number = self.state.line
        decided = ledger.decide(
            self.state,
            self.publishers.get(name),
            commit := Publish(name, 1, (first, *steps), known, spans, take_back, take_back),
        )
        # The oracle judges for itself.
        if take_back:
            self.oracle.take_back(name)
            least = list(self.oracle.held[name])
            self.oracle.held[name] = [
                t for t in set(least) if not any(leq(o, t) and o != t for o in least)
            ]
        assert not any(self.oracle.is_late(name, time) for time in times)
        self.oracle.rows += [Row(name, time, number) for time in times]
        self.offset += len(times)
        assert decided.publisher is not None
        before, after = self.oracle.held[name], list(decided.publisher.held)
        assert all(any(leq(old, new) for old in before) for new in after)
        self.oracle.held[name] = after
        self.commit(commit)

    def check(self) -> None:
        """What the state says against all that ever happened."""
        oracle, state = self.oracle, self.state
        lower = Antichain.minimal(self.shape, state.lower)
        for time in oracle.grid:
            assert lower.covers(time) != oracle.is_complete(time), (time, state.lower)
        upper = Antichain.maximal(self.shape, state.upper)
        assert all(upper.covers(row.time) for row in oracle.rows)
        last = oracle.lines[-1]
        still = [row.line for row in oracle.rows if not oracle.is_complete(row.time)]
        assert last.first_open <= min(still, default=len(oracle.lines))
        assert last.first_open <= len(oracle.lines)
        assert len(state.fronts) <= FRONTS_MAX

    def replay(self, frontier: tuple[Time, ...]) -> None:
        """Starting from a frontier finds every row at or after it that counts, and no other."""
        numbers = [
            number
            for number, line in enumerate(self.oracle.lines)
            if covers_all(self.shape, line.lower, frontier)
        ]
        assert numbers == list(range(len(numbers)))  # true first, false ever after
        start = self.oracle.lines[numbers[-1]].first_open if numbers else 0
        wanted = Antichain.minimal(self.shape, frontier)
        found: dict[tuple[str, Time], int] = {}
        for line in self.oracle.lines[start:]:
            for publisher, time in list(found):
                if line.takes_back(self.shape, publisher, time):
                    del found[publisher, time]
            for time, count in line.rows_by_time().items():
                if wanted.covers(time):
                    found[line.publisher, time] = found.get((line.publisher, time), 0) + count
        expected: dict[tuple[str, Time], int] = {}
        for row in self.oracle.rows:
            if wanted.covers(row.time) and not row.taken_back:
                key = row.publisher, row.time
                expected[key] = expected.get(key, 0) + 1
        assert found == expected


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([0, 2, 3]))
def test_the_ledger_agrees_with_an_oracle(data: st.DataObject, length: int) -> None:
    declared = data.draw(st.sampled_from([(), ("a",), ("a", "b")]))
    world = World(length, declared)
    times = st.sampled_from(world.oracle.grid)
    names = st.sampled_from(["a", "b", "c"])
    numbers = st.integers(0, 3)
    for _ in range(data.draw(st.integers(1, 25))):
        name = data.draw(names)
        kind = data.draw(st.sampled_from(["join", "rows", "rows", "rows", "hold", "up", "back"]))
        before = world.state, dict(world.publishers)
        known = name in world.publishers
        try:
            match kind:
                case "join":
                    start = data.draw(st.one_of(st.none(), st.tuples(times)))
                    world_join(world, name, start)
                case "rows":
                    rows = data.draw(st.lists(times, max_size=6))
                    to = data.draw(st.one_of(st.none(), st.lists(times, min_size=1, max_size=2)))
                    world.publish(name, rows, *([] if to is None else [Step(advance_to=tuple(to))]))
                case "hold":
                    change = data.draw(st.tuples(numbers, st.one_of(st.none(), times)))
                    world.publish(name, [], Step(capabilities=(change,)))
                case "up":
                    event = data.draw(st.sampled_from([lines.CLOSED, lines.ROLLED_BACK]))
                    give_up(world, name, event)
                case "back":
                    world.publish(name, data.draw(st.lists(times, max_size=2)), take_back=True)
        except HeadraceError as refused:
            error = refused
        else:
            continue
        # Refused: nothing has changed, and there was a reason.
        assert (world.state, world.publishers) == before
        assert isinstance(error, EpochStreamEndedError) == (world.state.status != ledger.OPEN)
        assert not isinstance(error, UnknownPublisherError) or not known
        if isinstance(error, LateEventError):
            assert all(world.oracle.is_late(name, time) for time in error.times)  # type: ignore[arg-type]
    for frontier in {(world.shape.bottom,), *(line.lower for line in world.oracle.lines)}:
        world.replay(frontier)
    world.replay((data.draw(times),))


def world_join(world: World, name: str, start: tuple[Time, ...] | None) -> None:
    decided = ledger.decide(
        world.state, world.publishers.get(name), commit := JoinStream(name, 1, start)
    )
    assert decided.publisher is not None
    # Nothing that was complete is open again.
    assert not any(world.oracle.is_complete(time) for time in decided.publisher.held)
    world.oracle.virgin = False
    world.oracle.held[name] = list(decided.publisher.held)
    world.commit(commit)


def give_up(world: World, name: str, event: str) -> None:
    ledger.decide(world.state, world.publishers.get(name), commit := GiveUp(name, 1, event))
    if event == lines.ROLLED_BACK:
        world.oracle.take_back(name)
    world.oracle.held[name] = []
    world.commit(commit)


# --- single rules ---------------------------------------------------------------------------


def open_world(length: int = 0) -> World:
    world = World(length)
    world_join(world, "eu", None)
    return world


def test_until_the_first_publisher_comes_the_stream_holds_the_first_time() -> None:
    state, publishers = ledger.begin("s", TimeShape())
    assert (state.lower, publishers) == ((0,), ())
    decided = ledger.decide(state, None, JoinStream("eu", 1))
    assert decided.state.lower == (0,)
    later = ledger.decide(state, None, JoinStream("eu", 1, (7,)))
    assert later.state.lower == (7,)


def test_declared_publishers_hold_the_first_time_until_each_has_moved() -> None:
    world = World(0, ("eu", "us"))
    world.publish("eu", [0, 3], Step(advance_to=(5,)))
    assert world.state.lower == (0,)
    world.publish("us", [], Step(advance_to=(4,)))
    assert world.state.lower == (4,)


def test_late_rows_are_refused_with_what_is_held() -> None:
    world = open_world()
    world.publish("eu", [0], Step(advance_to=(7,)))
    with pytest.raises(LateEventError, match=r"epoch 5 and 1 more.*holds 7 and later") as caught:
        world.publish("eu", [5, 6, 8])
    assert (caught.value.times, caught.value.held) == ((5, 6), (7,))


def test_rows_of_one_commit_are_judged_before_its_advance() -> None:
    world = open_world()
    commit = Publish("eu", 1, (Step(times=(0,), advance_to=(1,)), Step(times=(0,))), (0,))
    with pytest.raises(LateEventError):
        ledger.decide(world.state, world.publishers["eu"], commit)


def test_a_frontier_moves_forward_only() -> None:
    world = open_world(2)
    world.publish("eu", [], Step(advance_to=((2, 2),)))
    for back in ((1, 1), (5, 0), (0, 5)):
        with pytest.raises(FrontierError, match="forward only"):
            world.publish("eu", [], Step(advance_to=(back,)))
    with pytest.raises(FrontierError, match="close"):
        world.publish("eu", [], Step(advance_to=()))


def test_the_same_frontier_again_writes_no_line() -> None:
    world = open_world()
    world.publish("eu", [], Step(advance_to=(3,)))
    count = world.state.line
    world.publish("eu", [], Step(advance_to=(3,)))
    assert world.state.line == count


def test_a_capability_keeps_its_time_open_until_it_is_dropped() -> None:
    world = open_world()
    world.publish("eu", [], Step(capabilities=((0, 4),)), Step(advance_to=(9,)))
    assert world.state.lower == (4,)
    world.publish("eu", [5], Step(capabilities=((0, 6),)))
    assert world.state.lower == (6,)
    world.publish("eu", [], Step(capabilities=((0, None),)))
    assert world.state.lower == (9,)
    with pytest.raises(CapabilityError, match="dropped"):
        world.publish("eu", [], Step(capabilities=((0, 9),)))


def test_a_capability_neither_begins_before_a_held_time_nor_goes_back() -> None:
    world = open_world()
    world.publish("eu", [], Step(advance_to=(5,)))
    with pytest.raises(IllegalTimeError):
        world.publish("eu", [], Step(capabilities=((0, 4),)))
    world.publish("eu", [], Step(capabilities=((0, 8),)))
    with pytest.raises(IllegalTimeError, match="forward only"):
        world.publish("eu", [], Step(capabilities=((0, 7),)))


def test_a_take_over_takes_back_what_is_held_and_drops_capabilities() -> None:
    world = open_world()
    world.publish("eu", [0, 1, 2], Step(capabilities=((0, 2),)), Step(advance_to=(1,)))
    world.publish("eu", [], take_back=True)
    line = world.oracle.lines[-1]
    assert line.taken_back == (1,)
    assert [line.takes_back(world.shape, "eu", time) for time in (0, 1, 2)] == [False, True, True]
    assert not line.takes_back(world.shape, "us", 1)
    assert world.publishers["eu"].capabilities == ()


def test_the_last_one_to_give_up_closes_the_stream() -> None:
    world = World(0, ("eu", "us"))
    give_up(world, "eu", lines.CLOSED)
    assert world.state.status == ledger.OPEN
    give_up(world, "us", lines.RELEASED)
    assert (world.state.status, world.state.lower) == (ledger.ENDED, ())
    with pytest.raises(EpochStreamEndedError, match="closed"):
        world.commit(JoinStream("eu", 1))


def test_an_aborted_stream_takes_nothing_more() -> None:
    world = open_world()
    world.commit(AbortStream("eu", 1, "the source is gone"))
    assert (world.state.lower, world.oracle.lines[-1].reason) == ((0,), "the source is gone")
    with pytest.raises(EpochStreamEndedError, match="the source is gone"):
        world.publish("eu", [1])


def test_a_publisher_cannot_join_where_something_is_complete() -> None:
    world = open_world()
    world.publish("eu", [], Step(advance_to=(5,)))
    with pytest.raises(FrontierError, match="frontier or later"):
        world.commit(JoinStream("us", 1, (4,)))
    world_join(world, "us", None)
    assert world.publishers["us"].frontier == (5,)


def test_the_number_of_publishers_times_and_pairs_is_bounded() -> None:
    names = tuple(f"p{number}" for number in range(ledger.PUBLISHERS_MAX))
    world = World(0, names)
    with pytest.raises(PublisherLimitError, match="one-more"):
        world.commit(JoinStream("one-more", 1))
    many = tuple(range(lines.TIMES_MAX + 1))
    spans = (Span(0, 0, len(many), tuple((at, 1) for at in many)),)
    commit = Publish("p0", 1, (Step(times=many),), many, spans)
    with pytest.raises(EpochLimitError, match="append in parts"):
        ledger.decide(world.state, world.publishers["p0"], commit)
    held = Step(capabilities=tuple((at, 0) for at in range(ledger.HELD_MAX)))
    with pytest.raises(EpochLimitError, match="would hold 65 times"):
        world.publish("p0", [], held)


def test_the_state_stays_small_over_early_data_in_a_partial_order() -> None:
    """Rows far ahead, all over the plane, for long: neither fronts nor maxima pile up."""
    state, _ = ledger.begin("s", TimeShape(2))
    decided = ledger.decide(state, None, JoinStream("eu", 1))
    state, publisher = decided.state, decided.publisher
    for at in range(2000):
        assert publisher is not None
        times = tuple(sorted({(at % 97 + 20, 2000 - at), (at + 20, at % 13 + 5)}))
        to = ((at // 100, 0),) if at % 100 == 99 else None
        step = Step(times=times, advance_to=to)
        counts = tuple((place, 1) for place in range(len(times))) if len(times) > 1 else ()
        span = Span(0, 2 * at, 2 * at + len(times), counts)
        decided = ledger.decide(state, publisher, Publish("eu", 1, (step,), times, (span,)))
        state, publisher = decided.state, decided.publisher
    assert len(state.fronts) <= FRONTS_MAX
    assert len(ledger.encode_state(state)) < 4096


def test_a_damaged_line_names_its_place() -> None:
    with pytest.raises(
        UnreadableRecordError, match="line 7 of the progress log of stream 'orders'"
    ):
        decode_line(b"\xc1", "orders", 7)


def test_errors_of_the_ledger_are_errors_of_epochs() -> None:
    assert issubclass(LateEventError, EpochError)
    assert isinstance(ledger.begin("s", TimeShape())[0], LedgerState)
