"""Fair shares, with the fewest moves."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.shared.core.balance import plan_by_lag, shares_by_count

loads_strategy = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3), st.integers(0, 30), min_size=1, max_size=12
)


def moves(loads: dict[str, int], shares: dict[str, int]) -> int:
    """How many units have to be taken away."""
    return sum(max(0, load - shares[member]) for member, load in loads.items())


@given(loads_strategy, st.integers(0, 40))
def test_shares_add_up_and_differ_by_one_at_most(loads: dict[str, int], free: int) -> None:
    units = sum(loads.values()) + free
    shares = shares_by_count(units, loads)
    assert sum(shares.values()) == units
    assert max(shares.values()) - min(shares.values()) <= 1


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 8), min_size=1, max_size=5),
    st.integers(0, 8),
)
def test_no_balanced_shares_need_fewer_moves(loads: dict[str, int], free: int) -> None:
    units = sum(loads.values()) + free
    base, larger = divmod(units, len(loads))
    fewest = min(
        moves(loads, dict(zip(loads, sizes, strict=True)))
        for sizes in permutations([base + 1] * larger + [base] * (len(loads) - larger))
    )
    assert moves(loads, shares_by_count(units, loads)) == fewest


@given(loads_strategy, st.integers(0, 40))
def test_what_is_taken_away_is_missing_elsewhere(loads: dict[str, int], free: int) -> None:
    """Nothing is revoked that would be granted back: nobody is both above and below."""
    shares = shares_by_count(sum(loads.values()) + free, loads)
    missing = sum(max(0, shares[m] - load) for m, load in loads.items())
    assert missing == moves(loads, shares) + free


def test_nobody_to_share_with() -> None:
    assert shares_by_count(5, {}) == {}


owned_strategy = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.lists(st.integers(0, 1000), max_size=8), min_size=1
)


def named(owned: dict[str, list[int]]) -> dict[str, list[tuple[str, int]]]:
    return {m: [(f"{m}{n}", lag) for n, lag in enumerate(lags)] for m, lags in owned.items()}


def apply(
    owned: dict[str, list[tuple[str, int]]], free: list[tuple[str, int]], slack: int
) -> dict[str, dict[str, int]]:
    plan = plan_by_lag(owned, free, slack_percent=slack)
    result = {member: dict(units) for member, units in owned.items()}
    lags = dict(free)
    for unit, member in plan.grants:
        result[member][unit] = lags[unit]
    for unit, source, target in plan.moves:
        result[target][unit] = result[source].pop(unit)
    return result


@given(owned_strategy, st.lists(st.integers(0, 1000), max_size=6))
def test_by_lag_every_free_unit_is_granted_once(
    owned: dict[str, list[int]], free: list[int]
) -> None:
    units = [(f"free{n}", lag) for n, lag in enumerate(free)]
    plan = plan_by_lag(named(owned), units, slack_percent=20)
    assert sorted(unit for unit, _ in plan.grants) == sorted(unit for unit, _ in units)


@given(owned_strategy)
def test_by_lag_the_heaviest_load_never_grows(owned: dict[str, list[int]]) -> None:
    def heaviest(result: dict[str, dict[str, int]]) -> int:
        return max(sum(lag + 1 for lag in units.values()) for units in result.values())

    before = {member: dict(units) for member, units in named(owned).items()}
    assert heaviest(apply(named(owned), [], 20)) <= heaviest(before)


@given(owned_strategy)
def test_by_lag_no_unit_moves_twice(owned: dict[str, list[int]]) -> None:
    plan = plan_by_lag(named(owned), [], slack_percent=20)
    moved = [unit for unit, _, _ in plan.moves]
    assert len(moved) == len(set(moved))
    assert all(source != target for _, source, target in plan.moves)


def test_by_lag_a_hot_pair_is_pulled_apart() -> None:
    plan = plan_by_lag({"a": [("x", 500), ("y", 500)], "b": []}, [], slack_percent=20)
    assert plan.moves == (("x", "a", "b"),)


def test_by_lag_one_hot_unit_alone_stays() -> None:
    plan = plan_by_lag({"a": [("x", 500)], "b": [("y", 0)]}, [], slack_percent=20)
    assert plan.moves == ()


def test_by_lag_within_the_slack_nothing_moves() -> None:
    owned = {"a": [("x", 54), ("y", 54)], "b": [("z", 100)]}
    assert plan_by_lag(owned, [], slack_percent=20).moves == ()
