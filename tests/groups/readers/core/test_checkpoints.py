"""Checkpoints: who owes them, what they hold, and what a reset to one brings back."""

from __future__ import annotations

import pytest

from headrace.errors import (
    CheckpointCompleteError,
    CheckpointPendingError,
    InvalidReaderUpdateError,
    TooManyCheckpointsError,
    UnknownCheckpointError,
)
from headrace.groups.readers import (
    END,
    CancelCheckpoints,
    GroupConfig,
    Reset,
    ResetToCheckpoint,
    SegmentId,
)
from headrace.groups.readers.core.changes import CheckpointForgotten
from headrace.groups.readers.core.cuts import floors_at
from headrace.groups.readers.core.retention import kept_cut
from headrace.groups.readers.core.segments import positions
from headrace.groups.readers.core.settings import Retain
from tests.groups.readers.core.helpers import Group, cut, seg


def test_every_reader_owes_a_checkpoint_idle_ones_too() -> None:
    group = Group(a0=0)
    group.join("r1", "r2")
    group.claim("r1", "a/0")
    group.checkpoint("c1")
    assert group.state.blockers() == {"c1": ("r1", "r2")}
    group.ack("r1", "c1", a0=9)
    assert group.state.blockers() == {"c1": ("r2",)}
    assert group.state.checkpoints.last is None
    group.ack("r2", "c1")
    assert group.state.blockers() == {}
    assert group.checkpoint_at("c1") == {"a/0": 9}


def test_who_joins_later_owes_nothing() -> None:
    group = Group(a0=0, a1=0)
    group.join("r1")
    group.checkpoint("c1")
    group.join("r2")
    assert group.acquire("r1") == 0
    assert group.acquire("r2") == 1
    group.ack("r1", "c1")
    assert group.checkpoint_at("c1") == {"a/0": 0, "a/1": 0}


def test_with_nobody_online_a_checkpoint_is_complete_at_once() -> None:
    group = Group(a0=4)
    group.checkpoint("c1")
    assert group.state.blockers() == {}
    last = group.state.checkpoints.last
    assert last is not None
    assert last.positions == cut(a0=4)


def test_checkpoints_are_asked_for_in_the_order_of_creation() -> None:
    group = Group(a0=0)
    group.join("r1")
    names = ["zebra", "ant", "mole"]
    for name in names:
        group.checkpoint(name)
    asked = []
    while (owed := group.state.checkpoints.next_for("r1")) is not None:
        asked.append(owed)
        group.ack("r1", owed)
    assert asked == names


def test_normal_and_silent_checkpoints_are_limited_each_for_themselves() -> None:
    group = Group(GroupConfig(checkpoints_outstanding_max=2), a0=0)
    group.join("r1")
    for n in range(2):
        group.checkpoint(f"n{n}")
        group.checkpoint(f"s{n}", silent=True)
    for silent in (False, True):
        with pytest.raises(TooManyCheckpointsError, match="n0 for r1"):
            group.checkpoint("more", silent=silent)
    group.ack("r1", "n0")
    group.checkpoint("more")


def test_a_silent_checkpoint_moves_neither_positions_nor_the_last_one() -> None:
    group = Group(a0=0)
    group.join("r1")
    group.claim("r1", "a/0")
    group.checkpoint("s1", silent=True)
    group.ack("r1", "s1", a0=70)
    assert group.checkpoint_at("s1") == {"a/0": 70}
    assert group.owned("r1") == {"a/0": 0}
    assert group.state.checkpoints.last is None


def test_a_second_answer_changes_nothing() -> None:
    group = Group(a0=0)
    group.join("r1", "r2")
    group.claim("r1", "a/0")
    group.checkpoint("c1")
    group.ack("r1", "c1", a0=5)
    before = group.image()
    group.ack("r1", "c1", a0=50)
    group.ack("r1", "unheard of", a0=50)
    assert group.image() == before


def test_what_is_left_out_of_an_answer_is_held_at_the_recorded_position() -> None:
    group = Group(a0=3, a1=0)
    group.join("r1")
    group.claim("r1", "a/0", "a/1")
    group.checkpoint("c1")
    group.ack("r1", "c1", a1=8, b5=77)
    assert group.checkpoint_at("c1") == {"a/0": 3, "a/1": 8}


def test_only_so_many_complete_checkpoints_are_kept_and_the_last_one_always() -> None:
    group = Group(GroupConfig(checkpoints_kept_max=2), a0=0)
    for n in range(4):
        group.checkpoint(f"c{n}")
    for n in range(3):
        group.checkpoint(f"s{n}", silent=True)
    assert [c.name for c in group.state.checkpoints.all()] == ["c2", "c3", "s1", "s2"]
    assert group.state.checkpoints.last is group.state.checkpoints.get("c3")


def test_a_reset_drops_readers_waits_and_newer_checkpoints() -> None:
    group = Group(a0=0, a1=0)
    group.join("r1")
    group.claim("r1", "a/0", "a/1")
    group.checkpoint("c1")
    group.ack("r1", "c1", a0=END, a1=33)
    group.complete("r1", "a/0", a2="a/0 a/1")
    group.checkpoint("c2")
    group.apply(ResetToCheckpoint("c1"))
    assert group.state.members == {}
    assert group.unassigned == {"a/0": END, "a/1": 33}
    assert group.future == {}
    assert [c.name for c in group.state.checkpoints.all()] == ["c1"]
    assert group.state.checkpoints.last is group.state.checkpoints.get("c1")


def test_a_checkpoint_can_be_gone_back_to_again_and_so_can_those_before_it() -> None:
    group = Group(GroupConfig(retain=Retain.CHECKPOINT), a0=0)
    graph: dict[SegmentId, tuple[SegmentId, ...]] = {seg("a/0"): ()}
    for name, at in (("c1", 5), ("c2", 20), ("c3", 30)):
        group.join("r1")
        group.claim("r1", "a/0")
        group.checkpoint(name)
        group.ack("r1", name, a0=at)
        group.offline("r1")
    for name, known, at in (
        ("c2", ["c1", "c2"], 20),
        ("c2", ["c1", "c2"], 20),
        ("c1", ["c1"], 5),
        ("c1", ["c1"], 5),
    ):
        group.apply(ResetToCheckpoint(name))
        assert [c.name for c in group.state.checkpoints.all()] == known
        assert group.unassigned == {"a/0": at}
        group.join("r1")
        group.claim("r1", "a/0")
        group.offline("r1", a0=80)
        asked = kept_cut(group.state)
        assert asked is not None
        assert floors_at(*asked, graph, {seg("a/0"): 100}) == {seg("a/0"): at}


def test_a_reset_to_a_cut_clears_all_checkpoints() -> None:
    group = Group(a0=0)
    group.join("r1")
    group.checkpoint("c1")
    group.ack("r1", "c1")
    group.checkpoint("c2")
    outcome = group.apply(Reset(positions(cut(a0=3))))
    assert CheckpointForgotten("c1", 2) in outcome.changes
    assert group.state.checkpoints.all() == []
    assert group.state.checkpoints.last is None
    assert group.state.checkpoints.owed_by("r1") == ()


def test_a_checkpoint_that_is_stuck_can_be_cancelled_alone_or_with_all_that_wait() -> None:
    group = Group(a0=0)
    group.join("r1", "stuck")
    for name in ("c1", "c2", "c3"):
        group.checkpoint(name)
        group.ack("r1", name)
    group.checkpoint("s1", silent=True)
    group.apply(CancelCheckpoints(("c2",)))
    assert group.state.checkpoints.owed_by("stuck") == ("c1", "c3", "s1")
    group.checkpoint("c4")
    group.apply(CancelCheckpoints())
    assert group.state.blockers() == {"s1": ("r1", "stuck")}
    assert group.apply(CancelCheckpoints()).changes == ()
    with pytest.raises(UnknownCheckpointError, match="no checkpoint 'c1'"):
        group.apply(CancelCheckpoints(("c1",)))
    group.offline("stuck")
    group.ack("r1", "s1")
    with pytest.raises(CheckpointCompleteError, match="'s1' is complete"):
        group.apply(CancelCheckpoints(("s1",)))


def test_checkpoints_of_one_name_are_told_apart_by_their_creation() -> None:
    group = Group(a0=0)
    created = []
    for _ in range(2):
        group.checkpoint("c1")
        found = group.state.checkpoints.get("c1")
        assert found is not None
        created.append(found.created)
        group.apply(Reset(positions(cut(a0=0))))
    assert created == [1, 3]


@pytest.mark.parametrize("name", ["", "c" * 129, "a\x1b[31m", "tab\there", "\ud800", "line\n"])
def test_a_checkpoint_has_a_name_that_can_be_shown(name: str) -> None:
    group = Group(a0=0)
    with pytest.raises(InvalidReaderUpdateError, match="printable"):
        group.checkpoint(name)
    group.checkpoint("Nächtlich, 3. Lauf")


def test_a_restored_group_waits_only_for_what_was_still_to_come() -> None:
    """a/1 was over before the checkpoint: a/3 must not wait for it again."""
    group = Group(a0=0, a1=0)
    group.join("r1")
    group.claim("r1", "a/0", "a/1")
    group.complete("r1", "a/1", a3="a/0 a/1", a4="a/1")
    group.checkpoint("c1")
    group.ack("r1", "c1", a0=12)
    assert group.checkpoint_at("c1") == {"a/4": 0, "a/0": 12}
    group.complete("r1", "a/0", a2="a/0", a3="a/0 a/1")
    group.apply(ResetToCheckpoint("c1"))
    assert group.unassigned == {"a/4": 0, "a/0": 12}
    assert group.future == {"a/3": {"a/0"}}
    group.join("r2")
    group.claim("r2", "a/0", "a/4")
    group.complete("r2", "a/0", a2="a/0", a3="a/0 a/1")
    assert group.unassigned == {"a/2": 0, "a/3": 0}
    assert group.future == {}


def test_the_last_checkpoint_can_be_restored_after_newer_silent_ones() -> None:
    group = Group(GroupConfig(checkpoints_kept_max=1), a0=0)
    group.join("r1")
    group.claim("r1", "a/0")
    group.checkpoint("c1")
    group.ack("r1", "c1", a0=6)
    group.checkpoint("s1", silent=True)
    group.ack("r1", "s1", a0=9)
    group.apply(ResetToCheckpoint("c1"))
    assert group.unassigned == {"a/0": 6}


def test_while_it_owes_a_reader_neither_claims_nor_wants_to_release() -> None:
    group = Group.of(4, "r1")
    group.acquire("r1")
    group.join("r2")
    group.checkpoint("c1")
    before = group.image()
    assert group.acquire("r1") == 0
    with pytest.raises(CheckpointPendingError):
        group.complete("r1", "a/0")
    assert group.image() == before
    group.ack("r1", "c1")
    group.complete("r1", "a/0")
    assert seg("a/0") not in group.state.owned("r1")
