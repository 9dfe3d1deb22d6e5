"""The torture of a server, in short; and an account that finds what it is there for."""

from __future__ import annotations

from collections import Counter

from tests.torture.server_faults import Said, account, endure


def test_a_program_that_is_cut_off_loses_and_repeats_nothing() -> None:
    found = endure(["cut off"], seed=7)
    assert not found.findings, found
    assert all(each.acked > 10 for each in found.groups)


def said(*numbers: int) -> list[Said]:
    return [Said(float(at), "static", number) for at, number in enumerate(numbers)]


def test_the_account_finds_what_was_lost_came_again_or_out_of_order() -> None:
    there = {*range(20)}
    good = account("static", said(*range(10)), Counter(range(10, 20)), there, set(), kills=0)
    assert (good.lost, good.again, good.order) == (0, 0, 0)
    lost = account("static", said(*range(9)), Counter(range(10, 20)), there, set(), kills=0)
    assert (lost.lost, lost.again, lost.order) == (1, 0, 0)
    again = account("static", said(*range(11)), Counter(range(10, 20)), there, set(), kills=0)
    assert (again.lost, again.again, again.order) == (0, 1, 0)
    excused = account("static", said(*range(11)), Counter(range(10, 20)), there, {10}, kills=0)
    assert (excused.lost, excused.again, excused.order) == (0, 0, 0)
    torn = account("static", said(5, 0, *range(1, 5)), Counter(range(6, 20)), there, set(), kills=0)
    assert (torn.lost, torn.again, torn.order) == (0, 0, 1)
