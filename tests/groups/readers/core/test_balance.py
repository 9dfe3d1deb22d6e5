"""Fair shares: who claims and releases how much, and who goes first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidReaderUpdateError
from headrace.groups.readers import GroupConfig, ReaderSettings, ReportLag
from headrace.groups.readers.core import balance
from headrace.groups.readers.core.loads import Load, Loads
from headrace.groups.readers.core.reader_rules import STREAK
from tests.groups.readers.core.helpers import Group

ASSUMED_MS = GroupConfig().lag_assumed_ms


def settle(group: Group) -> int:
    """Let all readers claim and release until nobody wants to; how many moves that took."""
    for moves in range(1000):
        state = group.state
        by_load = sorted(state.members, key=state.loads.rank)
        if state.unassigned:
            assert group.acquire(by_load[-1]) > 0
            continue
        giver = next((r for r in by_load if balance.release_count(state, r)), None)
        if giver is None:
            return moves
        going = balance.segments_to_release(state, giver)
        group.release(giver, *map(str, going))
    raise AssertionError("it never settles")


@pytest.mark.parametrize(
    ("segments", "readers", "share"), [(5, 2, 3), (5, 3, 2), (5, 4, 1), (1, 3, 0), (7, 7, 1)]
)
def test_halves_are_rounded_up(segments: int, readers: int, share: int) -> None:
    assert balance.fair_share(segments, readers) == share


@given(st.integers(0, 60), st.integers(1, 9), st.integers(0, 9))
def test_shares_settle_within_one_of_each_other(segments: int, first: int, more: int) -> None:
    group = Group.of(segments, *(f"r{n}" for n in range(first)))
    settle(group)
    group.join(*(f"new{n}" for n in range(more)))
    moves = settle(group)
    counts = [len(member.owned) for member in group.state.members.values()]
    assert sum(counts) == segments
    assert max(counts) - min(counts) <= 1
    assert moves <= 4 * (first + more) + segments


@given(st.integers(2, 40), st.integers(0, 8))
def test_what_is_released_at_once_is_what_would_be_released_one_by_one(
    segments: int, idle: int
) -> None:
    group = Group.of(segments, "r1")
    group.acquire("r1")
    group.join(*(f"r{n}" for n in range(2, 2 + idle)))
    count = balance.release_count(group.state, "r1")
    alone = 0
    while balance.wants_release(group.state, "r1"):
        group.release("r1", *map(str, balance.segments_to_release(group.state, "r1")[:1]))
        alone += 1
    assert count == alone


def test_what_was_claimed_last_is_released_first() -> None:
    group = Group.of(3, "r1")
    group.claim("r1", "a/1", "a/0", "a/2")
    group.join("r2")
    assert list(map(str, balance.segments_to_release(group.state, "r1"))) == ["a/2", "a/0"]


def test_what_waits_longest_is_claimed_first() -> None:
    group = Group.of(3, "r1", "r2", "r3")
    group.claim("r1", "a/0")
    group.offline("r1")
    group.join("r1")
    group.acquire("r1")
    assert list(group.owned("r1")) == ["a/1"]


def tell(group: Group, **lags_ms: int) -> None:
    for reader, lag_ms in lags_ms.items():
        group.apply(ReportLag(reader, group.token(reader), lag_ms))


HOUR_MS = 3_600_000


def test_a_reader_that_stays_far_behind_sheds_load_and_the_others_take_it() -> None:
    group = Group.of(100, *(f"r{n}" for n in range(10)))
    settle(group)
    for number in range(STREAK):
        assert not balance.wants_release(group.state, "r3")
        tell(group, **{f"r{n}": HOUR_MS + number for n in range(10) if n != 3})
        tell(group, r3=4 * HOUR_MS + 8 + number)
    assert balance.wants_release(group.state, "r3")
    assert group.state.loads.rank("r3") == 0
    settle(group)
    counts = {name: len(member.owned) for name, member in group.state.members.items()}
    assert counts["r3"] < 5
    del counts["r3"]
    assert max(counts.values()) - min(counts.values()) <= 1


def test_who_has_caught_up_takes_its_share_again() -> None:
    group = Group.of(20, "r1", "r2")
    settle(group)
    for number in range(STREAK):
        tell(group, r1=HOUR_MS + number, r2=5 * HOUR_MS + number)
    settle(group)
    assert len(group.owned("r2")) < 5
    tell(group, r2=3 * HOUR_MS)
    for number in range(STREAK):
        assert group.state.members["r2"].far_behind
        tell(group, r2=HOUR_MS - number)
    assert not group.state.members["r2"].far_behind
    settle(group)
    assert len(group.owned("r1")) == len(group.owned("r2")) == 10


def test_a_lag_that_jumps_moves_nothing() -> None:
    group = Group.of(20, "r1", "r2")
    settle(group)
    for number in range(20):
        tell(group, r1=HOUR_MS + number, r2=(9 if number % 3 else 1) * HOUR_MS + number)
        assert not balance.wants_release(group.state, "r2")


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.3, 0.9])
def test_lags_of_the_same_order_move_nothing(spread: float) -> None:
    chance = random.Random(17)
    group = Group.of(1000, *(f"r{n}" for n in range(10)))
    settle(group)
    claims = 0
    for _ in range(12):
        for name in list(group.state.members):
            tell(group, **{name: int(HOUR_MS * chance.uniform(1 - spread / 2, 1 + spread / 2))})
            claims += settle(group)
    assert claims == 0


def test_an_unknown_lag_counts_like_the_others() -> None:
    group = Group.of(10, "r1")
    group.acquire("r1")
    tell(group, r1=HOUR_MS)
    group.join("r2")
    tell(group, r2=0)
    assert group.state.members["r2"].lag_ms is None
    assert balance.release_count(group.state, "r1") == 5
    settle(group)
    assert len(group.owned("r1")) == len(group.owned("r2")) == 5


def test_small_differences_in_lag_count_for_nothing() -> None:
    group = Group.of(2, "r1", "r2")
    group.claim("r1", "a/0")
    group.claim("r2", "a/1")
    for number in range(2 * STREAK):
        tell(group, r1=number, r2=4 * ASSUMED_MS - number - 1)
    assert not group.state.members["r2"].far_behind


def test_an_eleventh_reader_moves_the_least() -> None:
    group = Group.of(1000, *(f"r{n}" for n in range(10)))
    settle(group)
    before = {s: name for name, m in group.state.members.items() for s in m.owned}
    group.join("r10")
    released = 0
    while group.state.unassigned or any(
        balance.release_count(group.state, name) for name in group.state.members
    ):
        for name in sorted(group.state.members, key=group.state.loads.rank):
            going = balance.segments_to_release(group.state, name)
            if going:
                released += len(going)
                group.release(name, *map(str, going))
        if group.state.unassigned:
            group.acquire(max(group.state.members, key=group.state.loads.rank))
    counts = [len(member.owned) for member in group.state.members.values()]
    assert max(counts) - min(counts) <= 1
    moved = sum(before[s] != name for name, m in group.state.members.items() for s in m.owned)
    assert 90 <= moved <= released <= 99


def test_the_most_loaded_releases_first_and_the_least_loaded_claims_first_within_a_moment() -> None:
    group = Group.of(6, *(f"r{n}" for n in range(4)))
    for reader, segments in {
        "r1": ("a/0", "a/1", "a/2"),
        "r2": ("a/3", "a/4"),
        "r3": ("a/5",),
    }.items():
        group.claim(reader, *segments)
    settings = ReaderSettings()
    order = ["r1", "r2", "r3", "r0"]
    releases = [balance.release_delay_ms(group.state, r, settings) for r in order]
    acquires = [balance.acquire_delay_ms(group.state, r, settings) for r in order]
    assert releases == [0, 50, 100, 150]
    assert acquires == [150, 100, 50, 0]
    assert balance.lag_period_ms(group.state, settings) == 5000
    assert balance.record_period_ms(group.state, settings) == settings.record_ms
    group.join(*(f"more{n}" for n in range(496)))
    assert balance.record_period_ms(group.state, settings) == 50 * settings.record_ms


def test_among_many_readers_who_has_its_share_leaves_what_is_on_offer_to_those_who_lack_it() -> (
    None
):
    settings, names = ReaderSettings(), [f"r{n}" for n in range(100)]
    group = Group.of(202, *names)
    owned = dict.fromkeys(names, 2) | {"r0": 3, "r98": 1, "r99": 0}
    numbers = iter(range(200))
    for reader, count in owned.items():
        group.claim(reader, *(f"a/{next(numbers)}" for _ in range(count)))
    held_ms = {r: balance.held_back_ms(group.state, r, settings) for r in names}
    # Those with one too many or just enough wait, whoever is below its share does not.
    assert held_ms == dict.fromkeys(names, 4 * settings.balance_ms) | {"r98": 0, "r99": 0}
    group.claim("r98", "a/199")
    group.claim("r99", "a/200", "a/201")
    # Nobody lacks anything: what is left over fits nobody's share, and is read all the same.
    assert [r for r in names if balance.held_back_ms(group.state, r, settings)] == ["r0"]
    few = Group.of(4, "r0", "r1")
    few.claim("r0", "a/0", "a/1", "a/2")
    assert balance.held_back_ms(few.state, "r0", settings) == 0


loads = st.builds(
    Load, st.integers(0, 5), st.none() | st.integers(0, 9 * ASSUMED_MS), st.booleans()
)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.none() | loads), max_size=30))
def test_loads_kept_in_order_are_those_computed_from_scratch(
    steps: list[tuple[str, Load | None]],
) -> None:
    kept, known = Loads(ASSUMED_MS), dict[str, Load]()
    for reader, load in steps:
        if load is None:
            kept.remove(reader)
            known.pop(reader, None)
        else:
            kept.put(reader, load)
            known[reader] = load
        sizes = {name: each.size for name, each in known.items()}
        for name, each in known.items():
            assert kept.size(name) == sizes[name]
            larger = sum(1 for size in sizes.values() if size > sizes[name])
            equal = sum(1 for size in sizes.values() if size == sizes[name])
            assert larger <= kept.rank(name) < larger + equal
            no_further = [o.size for o in known.values() if each.far_behind or not o.far_behind]
            for margin in (1, 2):
                exceeds = each.size > min(no_further) + margin * each.weight
                assert kept.exceeds(name, 0, margin) == exceeds
            others = sorted(
                other.lag_ms
                for called, other in known.items()
                if called != name and other.owned and other.lag_ms is not None
            )
            if each.owned and others and not each.far_behind:
                middle_ms = max(ASSUMED_MS, others[(len(others) - 1) // 2])
                assert kept.seems_far(name, 4 * middle_ms)
                assert not kept.seems_far(name, 4 * middle_ms - 1)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: GroupConfig(checkpoints_outstanding_max=0), "checkpoints_outstanding_max"),
        (lambda: GroupConfig(lag_assumed_ms=0), "lag_assumed_ms"),
        (lambda: ReaderSettings(balance_ms=0), "balance_ms"),
        (lambda: ReaderSettings(heartbeat_ms=6000), "heartbeat_ms"),
    ],
)
def test_settings_out_of_bounds_are_refused(make: object, field: str) -> None:
    with pytest.raises(InvalidReaderUpdateError, match=field):
        make()  # type: ignore[operator]
