"""Distributions: the document's blocks, and the fewest moves under sticky."""

from __future__ import annotations

import doctest
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.partitioned.core import distribution as module
from headrace.groups.partitioned.core.distribution import (
    Assignment,
    blocks,
    effective_members,
    moved,
    owner_of_each,
    sticky,
)

names = st.text(alphabet="mAaz019-😀ﬀ", min_size=1, max_size=3)
lists_of_names = st.lists(names, max_size=12)


def check_whole_and_balanced(assignment: Assignment, members: list[str], partitions: int) -> None:
    active = effective_members(members, partitions)
    assert set(assignment) == set(members)
    owned = [p for each in assignment.values() for p in each]
    assert sorted(owned) == (list(range(partitions)) if active else [])
    sizes = [len(assignment[name]) for name in active]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert all(assignment[name] == () for name in members if name not in active)
    assert all(list(each) == sorted(each) for each in assignment.values())


def test_docstring_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0


@given(lists_of_names, st.integers(1, 30))
def test_blocks_are_whole_balanced_and_depend_on_names_alone(
    members: list[str], partitions: int
) -> None:
    made = blocks(members, partitions)
    check_whole_and_balanced(made, members, partitions)
    assert blocks([*reversed(members), *members], partitions) == made


@given(lists_of_names, st.lists(lists_of_names, max_size=4), st.integers(1, 30))
def test_sticky_stays_whole_and_balanced_through_changes(
    first: list[str], changes: list[list[str]], partitions: int
) -> None:
    made = sticky({}, first, partitions)
    check_whole_and_balanced(made, first, partitions)
    for members in changes:
        after = sticky(made, members, partitions)
        check_whole_and_balanced(after, members, partitions)
        assert sticky(after, members, partitions) == after
        made = after


def fewest_moves(before: Assignment, members: list[str], partitions: int) -> int:
    """Try every assignment that is balanced within one."""
    old = owner_of_each(before)
    low = partitions // len(members)
    best = partitions
    for owners in product(range(len(members)), repeat=partitions):
        sizes = [owners.count(i) for i in range(len(members))]
        if min(sizes) >= low and max(sizes) - min(sizes) <= 1:
            moves = sum(old.get(p) != members[i] for p, i in enumerate(owners))
            best = min(best, moves)
    return best


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 5, 6])
def test_sticky_moves_no_more_than_the_best_of_all_assignments(partitions: int) -> None:
    """Every assignment of the partitions to three members or nobody, then every membership."""
    seen = 0
    for owners in product("abc-", repeat=partitions):
        if partitions > 4 and list(owners) != sorted(owners):
            continue  # which partition it is makes no difference to the count
        before = {m: tuple(p for p in range(partitions) if owners[p] == m) for m in "abc"}
        for members in (["a"], ["a", "b"], ["b", "d"], ["a", "b", "c"], ["b", "c", "d"]):
            active = effective_members(members, partitions)
            after = sticky(before, members, partitions)
            assert len(moved(before, after)) == fewest_moves(before, active, partitions)
            seen += 1
    assert seen >= 20


@pytest.mark.parametrize(
    ("partitions", "before", "after", "moves"),
    [(1024, 4, 5, {204, 205}), (1024, 11, 12, {85}), (16, 8, 9, {1, 2}), (1024, 5, 4, {204, 205})],
)
def test_sticky_moves_the_known_minimum(
    partitions: int, before: int, after: int, moves: set[int]
) -> None:
    old = sticky({}, [f"m{i}" for i in range(before)], partitions)
    new = sticky(old, [f"m{i}" for i in range(after)], partitions)
    assert len(moved(old, new)) in moves


def test_blocks_move_far_more_which_is_why_sticky_exists() -> None:
    members = [f"m{i}" for i in range(1, 6)]
    assert len(moved(blocks(members[:4], 1024), blocks(members, 1024))) == 519


def test_a_damaged_previous_assignment_still_gives_each_partition_one_owner() -> None:
    made = sticky({"a": (0, 0, 1, 9, -1), "b": (0, 1, 2)}, ["a", "b"], 4)
    check_whole_and_balanced(made, ["a", "b"], 4)


def test_names_are_ordered_by_their_bytes() -> None:
    assert list(blocks(["m2", "m10", "B", "a", "😀", "ﬀ"], 9)) == ["B", "a", "m10", "m2", "ﬀ", "😀"]
