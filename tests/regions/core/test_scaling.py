"""Which splits and merges of another region are to be made here, and which cannot be."""

from __future__ import annotations

import msgspec
import pytest

from headrace.regions.core.scaling import Scaling, conflict, is_due, missing_scalings


class Part(msgspec.Struct, frozen=True):
    """A segment."""

    number: int
    range_lo: int
    range_hi: int
    predecessors: tuple[int, ...] = ()
    successors: tuple[int, ...] = ()

    @property
    def sealed(self) -> bool:
        return bool(self.successors)


def stream(*steps: tuple[list[int], list[tuple[int, int]]]) -> dict[int, Part]:
    """A stream of two segments after steps: which ended, and the ranges that were opened."""
    found = {0: Part(0, 0, 8), 1: Part(1, 8, 16)}
    for ended, ranges in steps:
        for lo, hi in ranges:
            number = len(found)
            before = [n for n in ended if found[n].range_lo < hi and lo < found[n].range_hi]
            found[number] = Part(number, lo, hi, tuple(before))
            for each in before:
                after = (*found[each].successors, number)
                found[each] = msgspec.structs.replace(found[each], successors=after)
    return found


SPLIT = ([0], [(0, 4), (4, 8)])
MERGE = ([3, 1], [(4, 16)])


def test_scalings_are_found_in_their_order_each_as_a_whole() -> None:
    theirs = stream(SPLIT, MERGE)
    assert missing_scalings(stream(), theirs) == [Scaling((0,), (2, 3)), Scaling((1, 3), (4,))]
    assert missing_scalings(stream(SPLIT), theirs) == [Scaling((1, 3), (4,))]
    assert missing_scalings(theirs, theirs) == []
    assert missing_scalings(theirs, stream()) == []


def test_segments_of_one_step_that_have_nothing_in_common_need_not_wait_for_each_other() -> None:
    both = stream(([0, 1], [(0, 4), (4, 8), (8, 12), (12, 16)]))
    assert missing_scalings(stream(), both) == [Scaling((0,), (2, 3)), Scaling((1,), (4, 5))]


def test_a_merge_is_due_when_all_that_it_ends_is_complete() -> None:
    mine, (_, merge) = stream(SPLIT), missing_scalings(stream(), stream(SPLIT, MERGE))
    assert not is_due(mine, merge, {3})
    assert is_due(mine, merge, {1, 3})
    assert not is_due(stream(), merge, {1, 3}), "what it ends was not opened here yet"


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        ([([0], [(0, 2), (2, 8)])], [SPLIT], "another key range"),
        ([([1], [(8, 12), (12, 16)])], [SPLIT], "another key range"),
        ([SPLIT, ([2], [(0, 2), (2, 4)])], [SPLIT, ([3], [(4, 6), (6, 8)])], "another key range"),
        ([([0, 1], [(0, 16)])], [SPLIT], "in another way"),
    ],
)
def test_regions_that_went_different_ways_are_told(
    mine: list[tuple[list[int], list[tuple[int, int]]]],
    theirs: list[tuple[list[int], list[tuple[int, int]]]],
    why: str,
) -> None:
    assert why in conflict(stream(*mine), stream(*theirs))
    assert why in conflict(stream(*theirs), stream(*mine))


def test_what_cannot_be_followed_is_told() -> None:
    gone = stream(SPLIT)
    del gone[0]
    assert "is gone" in conflict(stream(), gone)
    alone = {
        number: msgspec.structs.replace(part, predecessors=()) for number, part in gone.items()
    }
    assert "follows from no other" in conflict(stream(), alone)


def test_one_region_may_be_ahead_or_each_in_another_part() -> None:
    one, other = stream(SPLIT), stream(([1], [(8, 12), (12, 16)]))
    shifted = {
        number: msgspec.structs.replace(
            part,
            number=number + 2 * (number > 1),
            successors=tuple(n + 2 for n in part.successors),
        )
        for number, part in other.items()
    }
    shifted = {part.number: part for part in shifted.values()}
    assert conflict(stream(), one) == conflict(one, stream()) == ""
    assert conflict(one, shifted) == ""
