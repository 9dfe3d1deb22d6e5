"""The segments of a private subscription: what is claimed when, and what is recorded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.groups.shared.core.private import (
    PRIVATE_TRANSITIONS,
    PrivateSegments,
    PrivateStatus,
)

ROWS = {"s/0": 10, "s/1": 11, "s/2": 12}
BEFORE = {"s/0": (), "s/1": ("s/0",), "s/2": ("s/0",)}


def consumed(core: PrivateSegments, unit: str) -> None:
    """Claim a unit that was found ready, and read it to its end."""
    core.claimed([unit])
    core.read_to_end(unit)
    core.recorded(core.ending)
    core.given_back(unit)


def test_what_follows_is_claimed_when_the_end_before_it_is_recorded() -> None:
    core = PrivateSegments()
    assert core.seen(ROWS, BEFORE, {}) == (["s/0"], [])
    assert core.seen(ROWS, BEFORE, {}) == ([], [])
    core.claimed(["s/0"])
    core.read_to_end("s/0")
    assert core.ending == ["s/0"]
    assert core.seen(ROWS, BEFORE, {}) == ([], [])
    core.recorded(["s/0"])
    assert core.ending == []
    assert core.seen(ROWS, BEFORE, {"s/0": 10}) == (["s/1", "s/2"], [])


def test_an_empty_segment_in_between_holds_back_what_follows_it() -> None:
    rows = ROWS | {"s/3": 13}
    before = BEFORE | {"s/3": ("s/1",)}
    core = PrivateSegments()
    assert core.seen(rows, before, {"s/1": 11}).claim == ["s/0"]
    consumed(core, "s/0")
    assert core.seen(rows, before, {"s/0": 10, "s/1": 11}).claim == ["s/2", "s/3"]


def test_what_could_not_be_claimed_and_what_was_refused_is_claimed_again() -> None:
    core = PrivateSegments()
    assert core.seen(ROWS, BEFORE, {}).claim == ["s/0"]
    core.claim_failed(["s/0"])
    assert core.seen(ROWS, BEFORE, {}).claim == ["s/0"]
    core.claimed(["s/0"])
    core.refused("s/0")
    assert core.seen(ROWS, BEFORE, {}).claim == ["s/0"]
    core.claimed(["s/0"])
    core.read_to_end("s/0")
    core.refused("s/0")
    assert core.ending == []
    assert core.seen(ROWS, BEFORE, {}).claim == ["s/0"]


def test_a_stream_that_was_made_anew_is_dropped_and_read_from_its_beginning() -> None:
    core = PrivateSegments()
    core.seen(ROWS, BEFORE, {})
    core.claimed(["s/0"])
    again = {"s/0": 20}
    assert core.seen(again, BEFORE, {"s/0": 10}) == (["s/0"], ["s/0"])
    core.claimed(["s/0"])
    assert core.seen({}, {}, {}) == ([], ["s/0"])
    assert core.status("s/0") is PrivateStatus.ABSENT


def test_a_finished_segment_is_claimed_again_when_its_end_was_taken_back() -> None:
    core = PrivateSegments()
    core.seen(ROWS, BEFORE, {})
    consumed(core, "s/0")
    assert core.seen(ROWS, BEFORE, {"s/0": 10}).claim == ["s/1", "s/2"]
    core.claimed(["s/1", "s/2"])
    core.refused("s/1")
    core.refused("s/2")
    assert core.seen(ROWS, BEFORE, {}) == (["s/0"], [])


def test_what_the_table_does_not_know_raises_and_changes_nothing() -> None:
    core = PrivateSegments()
    core.seen(ROWS, BEFORE, {})
    with pytest.raises(KeyError):
        core.read_to_end("s/0")
    assert core.status("s/0") is PrivateStatus.CLAIMING
    assert {status for status, _ in PRIVATE_TRANSITIONS} == set(PrivateStatus)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_segment_is_read_once_after_its_predecessors_whatever_fails(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(1, 8))
    rows = {f"s/{n}": n for n in range(count)}
    before: dict[str, list[str]] = {"s/0": []}
    for n in range(1, count):
        earlier = st.sampled_from(list(rows)[:n])
        before[f"s/{n}"] = data.draw(st.lists(earlier, max_size=2, unique=True))
    core, recorded, read = PrivateSegments(), dict[str, int](), list[str]()
    for _ in range(20 * count):
        claim = core.seen(rows, before, recorded).claim
        if data.draw(st.booleans()):
            core.claim_failed(claim)
            continue
        core.claimed(claim)
        for unit in [u for u in rows if core.status(u) is PrivateStatus.OPEN]:
            match data.draw(st.sampled_from(["read", "refused", "slow"])):
                case "read":
                    assert all(p in recorded for p in before[unit])
                    read.append(unit)
                    core.read_to_end(unit)
                case "refused":
                    core.refused(unit)
        done = core.ending
        recorded |= {unit: rows[unit] for unit in done}
        core.recorded(done)
        for unit in done:
            core.given_back(unit)
        if len(recorded) == count:
            break
    assert len(read) == len(set(read))
