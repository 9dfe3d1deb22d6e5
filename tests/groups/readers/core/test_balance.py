"""Fair shares: who claims and releases how much, and who goes first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidReaderUpdateError
from headrace.groups.readers import GroupConfig, ReaderSettings, ReportLag
from headrace.groups.readers.core import balance
from headrace.groups.readers.core.loads import Loads
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
        giver = next((r for r in by_load if balance.wants_release(state, r)), None)
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


def test_a_reader_far_behind_counts_for_more() -> None:
    group = Group.of(4, "r1", "r2")
    group.claim("r1", "a/0", "a/1")
    group.claim("r2", "a/2", "a/3")
    assert not balance.wants_release(group.state, "r1")
    group.apply(ReportLag("r1", group.token("r1"), 10 * ASSUMED_MS))
    assert group.state.loads.size("r1") == 2.0
    assert group.state.loads.size("r2") == pytest.approx(0.2)
    assert balance.wants_release(group.state, "r1")
    assert group.state.loads.rank("r1") == 0


def test_small_differences_in_lag_count_for_nothing() -> None:
    group = Group.of(2, "r1", "r2")
    group.claim("r1", "a/0", "a/1")
    group.apply(ReportLag("r1", group.token("r1"), ASSUMED_MS - 1))
    assert group.state.loads.size("r1") == 2.0
    assert group.state.loads.size("r2") == 0.0


def test_the_most_loaded_releases_first_and_the_least_loaded_claims_first_within_a_second() -> None:
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
    assert releases == [0, 250, 500, 750]
    assert acquires == [750, 500, 250, 0]
    assert balance.lag_period_ms(group.state, settings) == 5000


lags = st.integers(0, 5 * ASSUMED_MS)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 5), lags), max_size=30))
def test_loads_kept_in_order_are_those_computed_from_scratch(
    steps: list[tuple[str, int, int]],
) -> None:
    loads, known = Loads(ASSUMED_MS), dict[str, tuple[int, int]]()
    for reader, owned, lag_ms in steps:
        if owned == 5:
            loads.remove(reader)
            known.pop(reader, None)
        else:
            loads.put(reader, owned, lag_ms)
            known[reader] = (owned, max(ASSUMED_MS, lag_ms))
        unit = max((lag for count, lag in known.values() if count), default=ASSUMED_MS)
        sizes = {name: count * lag / unit for name, (count, lag) in known.items()}
        for name, (count, lag) in known.items():
            assert loads.size(name) == pytest.approx(sizes[name])
            larger = sum(1 for size in sizes.values() if size > sizes[name] + 1e-9)
            equal = sum(1 for size in sizes.values() if size == pytest.approx(sizes[name]))
            assert larger <= loads.rank(name) < larger + equal
            least = min(c * g for c, g in known.values())
            for margin in (1, 2):
                assert loads.exceeds(name, 0, margin) == (count * lag > least + margin * unit)


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
