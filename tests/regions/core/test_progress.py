"""Progress by origin is a join: whatever the order, every region ends up with the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidCursorDeltaError
from headrace.regions.core.progress import CursorDelta, LaneDelta, OriginProgress
from headrace.regions.core.stamps import STAMP_COUNTER_MAX, Life, Stamp

stamps = st.builds(Stamp, st.integers(0, 3), st.sampled_from(["", "a", "b"]))


def normal(floor: int, numbers: set[int]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Ranges as one region would write them: apart from the floor and from one another."""
    acked = OriginProgress("g")
    acked.ack("x", 0, floor)
    for n in numbers:
        acked.ack("x", n, n + 1)
    known = acked.acked("x")
    assert known is not None
    return known.floor, known.to_tuples()


@st.composite
def deltas(draw: st.DrawFn) -> CursorDelta:
    stamp = draw(stamps)
    # A life is one command, so its stamp says whether it is a delete.
    life = Life(stamp, deleted=stamp.counter % 2 == 1)
    names = draw(st.sets(st.sampled_from(["a", "b", "b!"])))
    lanes = []
    for lane in [] if life.deleted else sorted(names):
        floor, ranges = normal(
            draw(st.integers(0, 6)), draw(st.sets(st.integers(0, 12), max_size=5))
        )
        lanes.append(LaneDelta(lane, draw(stamps), floor, ranges))
    return CursorDelta("g", life, tuple(lanes))


def joined(*parts: CursorDelta) -> CursorDelta:
    progress = OriginProgress("g")
    for part in parts:
        progress.merge(part)
    return progress.whole()


@settings(max_examples=200, deadline=None)
@given(deltas(), deltas(), deltas())
def test_merge_is_commutative_associative_and_idempotent(
    x: CursorDelta, y: CursorDelta, z: CursorDelta
) -> None:
    assert joined(x, y) == joined(y, x)
    assert joined(joined(x, y), z) == joined(x, joined(y, z))
    assert joined(x, x) == joined(x)
    assert joined(joined(x, y), x, y) == joined(x, y)


@settings(max_examples=100, deadline=None)
@given(st.lists(deltas(), max_size=6), st.randoms(use_true_random=False))
def test_any_order_and_any_repeats_give_the_same(parts: list[CursorDelta], random: object) -> None:
    shuffled = parts + parts[: len(parts) // 2]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert joined(*shuffled) == joined(*parts)


@settings(max_examples=200, deadline=None)
@given(deltas(), deltas())
def test_gains_cover_exactly_what_is_new(x: CursorDelta, y: CursorDelta) -> None:
    progress = OriginProgress("g")
    progress.merge(x)
    before = {lane: acked_of(progress, lane) for lane in ("a", "b", "b!")}
    merged = progress.merge(y)
    if merged.rewound:
        return
    for lane, had in before.items():
        gained = {n for at, lo, hi in merged.gains if at == lane for n in range(lo, hi)}
        now = acked_of(progress, lane)
        assert had <= now
        assert now - had <= gained <= now
    assert merged.changed == any(before[lane] != acked_of(progress, lane) for lane in before)


def acked_of(progress: OriginProgress, lane: str) -> set[int]:
    known = progress.acked(lane)
    return set() if known is None else {n for n in range(30) if n in known}


def lane(stamp: Stamp, floor: int, *ranges: tuple[int, int]) -> CursorDelta:
    return CursorDelta("g", Life(), (LaneDelta("a", stamp, floor, ranges),))


def test_higher_stamp_of_a_lane_wins_whole() -> None:
    progress = OriginProgress("g")
    progress.merge(lane(Stamp(), 50))
    assert progress.merge(lane(Stamp(1, "b"), 3)).rewound
    assert not progress.merge(lane(Stamp(), 80)).changed
    assert progress.whole() == lane(Stamp(1, "b"), 3)


def test_seeks_at_the_same_time_end_at_one_of_the_two() -> None:
    one, other = lane(Stamp(1, "a"), 7), lane(Stamp(1, "b"), 2)
    assert joined(one, other) == joined(other, one) == other


def test_stamp_is_above_all_that_was_met_even_if_it_did_not_count() -> None:
    progress = OriginProgress("g")
    progress.merge(CursorDelta("g", Life(Stamp(9, "b"), deleted=True)))
    progress.merge(lane(Stamp(20, "c"), 1))
    assert progress.next_stamp("a") == Stamp(21, "a")


@pytest.mark.parametrize(
    ("delta", "why"),
    [
        (CursorDelta("h", Life()), "another group"),
        (lane(Stamp(-1), 0), "stamp is out of bounds"),
        (lane(Stamp(STAMP_COUNTER_MAX), 0), "stamp is out of bounds"),
        (lane(Stamp(), -1), "has the floor -1"),
        (lane(Stamp(), 5, (3, 9)), r"do not ascend at \[3, 9\)"),
        (lane(Stamp(), 0, (4, 4)), r"do not ascend at \[4, 4\)"),
        (lane(Stamp(), 0, (4, 6), (5, 7)), r"do not ascend at \[5, 7\)"),
        (lane(Stamp(), 0, (4, 2**63)), "do not ascend"),
        (CursorDelta("g", Life(), lane(Stamp(), 1).lanes * 2), "named twice"),
        (
            CursorDelta("g", Life(Stamp(1, "a"), deleted=True), lane(Stamp(), 1).lanes),
            "deleted group has no progress",
        ),
    ],
)
def test_broken_record_is_refused_and_changes_nothing(delta: CursorDelta, why: str) -> None:
    progress = OriginProgress("g")
    progress.merge(lane(Stamp(), 3, (5, 6)))
    before = progress.whole()
    with pytest.raises(InvalidCursorDeltaError, match=why) as refused:
        progress.merge(delta)
    assert "while group 'g' has {a@0" in str(refused.value)
    assert progress.whole() == before
    assert progress.next_stamp("a") == Stamp(1, "a")


@settings(max_examples=50, deadline=None)
@given(deltas())
def test_record_survives_the_wire(delta: CursorDelta) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(delta), type=CursorDelta) == delta
