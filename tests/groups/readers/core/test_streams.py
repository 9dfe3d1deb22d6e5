"""Streams that join and leave a group, readers that come back, and a config that changes."""

from __future__ import annotations

import pytest

from headrace.errors import (
    CheckpointPendingError,
    InvalidReaderUpdateError,
    NotMemberError,
    PositionFellError,
    StreamOfGroupExistsError,
    UnknownStreamOfGroupError,
)
from headrace.groups.readers import (
    AddStreams,
    ClaimFree,
    CompleteSegments,
    Completion,
    Configure,
    DropStreams,
    GroupConfig,
    RemoveReader,
    ReportLag,
    ResetToCheckpoint,
    ReturnReader,
    Successor,
)
from headrace.groups.readers.core.changes import CheckpointForgotten, SegmentDropped
from headrace.groups.readers.core.segments import positions
from tests.groups.readers.core.helpers import Group, cut, seg


def test_a_stream_joins_at_a_cut_and_interrupts_nobody() -> None:
    group = Group(a0=0)
    group.join("r1")
    group.claim("r1", "a/0")
    waits = (Successor(seg("b/3"), (seg("b/1"),)),)
    group.apply(AddStreams(positions(cut(b1=7)), waits, positions(cut(b3=9))))
    assert group.owned("r1") == {"a/0": 0}
    assert group.unassigned == {"b/1": 7}
    assert group.future == {"b/3": {"b/1"}}
    assert group.state.end_cut == cut(b3=9)
    assert list(group.state.streams) == ["a", "b"]


def test_a_checkpoint_from_before_holds_a_new_stream_where_it_began() -> None:
    group = Group(a0=0)
    group.join("r1")
    group.claim("r1", "a/0")
    group.checkpoint("c1")
    group.ack("r1", "c1", a0=5)
    group.checkpoint("c2")
    group.apply(AddStreams(positions(cut(b0=7))))
    group.ack("r1", "c2", a0=8)
    group.claim("r1", "b/0")
    group.offline("r1", a0=50, b0=60)
    for name, at in (("c2", 8), ("c1", 5)):
        group.apply(ResetToCheckpoint(name))
        assert group.unassigned == {"a/0": at, "b/0": 7}


def test_a_stream_leaves_readers_waits_ends_and_checkpoints() -> None:
    group = Group(end=cut(a2=5, b0=9), a0=0, a1=0, b0=0)
    group.join("r1", "r2")
    group.claim("r1", "a/0", "b/0")
    group.claim("r2", "a/1")
    group.complete("r1", "a/0", a2="a/0 a/1")
    group.checkpoint("c1")
    outcome = group.apply(DropStreams(("a",)))
    assert SegmentDropped("r2", seg("a/1")) in outcome.changes
    assert (group.owned("r1"), group.owned("r2")) == ({"b/0": 0}, {})
    assert group.future == {}
    assert group.state.end_cut == cut(b0=9)
    assert list(group.state.streams) == ["b"]
    for reader in ("r1", "r2"):
        group.ack(reader, "c1")
    assert group.checkpoint_at("c1") == {"b/0": 0}
    group.apply(ResetToCheckpoint("c1"))
    assert (group.unassigned, group.future) == ({"b/0": 0}, {})
    group.apply(AddStreams(positions(cut(a7=3))))
    assert group.unassigned == {"b/0": 0, "a/7": 3}


def test_a_group_without_streams_has_come_to_its_end() -> None:
    group = Group(a0=0)
    group.apply(DropStreams(("a",)))
    assert group.state.end_of_data


def test_streams_that_are_not_there_or_there_already_are_refused() -> None:
    group = Group(a0=0)
    before = group.image()
    with pytest.raises(UnknownStreamOfGroupError, match="does not read stream 'b'; it reads a"):
        group.apply(DropStreams(("a", "b")))
    with pytest.raises(StreamOfGroupExistsError, match="reads stream 'a' already"):
        group.apply(AddStreams(positions(cut(a1=0))))
    for wrong in (
        AddStreams(()),
        AddStreams(positions(cut(b0=0)), (Successor(seg("c/1"), (seg("c/0"),)),)),
        AddStreams(positions(cut(b0=0)), (), positions(cut(c0=0))),
        DropStreams(()),
    ):
        with pytest.raises(InvalidReaderUpdateError):
            group.apply(wrong)
    assert group.image() == before


def test_a_lower_limit_forgets_the_oldest_checkpoints() -> None:
    group = Group(a0=0)
    for name in ("c1", "c2", "c3"):
        group.checkpoint(name)
    outcome = group.apply(Configure(GroupConfig(checkpoints_kept_max=1)))
    assert outcome.changes[1:] == (CheckpointForgotten("c1", 1), CheckpointForgotten("c2", 2))
    assert [c.name for c in group.state.checkpoints.all()] == ["c3"]
    assert group.apply(Configure(GroupConfig(checkpoints_kept_max=1))).changes == ()


def test_another_assumed_lag_counts_at_once() -> None:
    group = Group.of(2, "r1", "r2")
    for reader in ("r1", "r2"):
        group.acquire(reader)
    group.apply(ReportLag("r1", group.token("r1"), 100))
    assert not group.state.loads.seems_far("r2", 5000)
    group.apply(Configure(GroupConfig(lag_assumed_ms=1000)))
    assert group.state.loads.seems_far("r2", 5000)


# --- coming back ---------------------------------------------------------------------------


def test_a_name_that_comes_back_has_its_segments_again_under_new_tokens() -> None:
    group = Group(a0=0, a1=0, a2=0, a3=0)
    group.join("r1", "r2")
    group.claim("r1", "a/0", "a/1")
    group.claim("r2", "a/2")
    old = group.token("r1")
    group.checkpoint("c1")
    wants = (seg("a/2"), seg("a/3"), seg("z/9"))
    outcome = group.apply(ReturnReader("r1", 8, positions(cut(a0=6)), wants))
    assert group.owned("r1") == {"a/0": 6, "a/1": 0, "a/3": 0}
    assert group.owned("r2") == {"a/2": 0}
    assert {claim.token for claim in outcome.claimed} == {outcome.revision} == {group.token("r1")}
    assert group.state.members["r1"].lease_token == 8
    assert group.state.blockers() == {"c1": ("r2",)}
    with pytest.raises(NotMemberError):
        group.apply(ReportLag("r1", old, 5))


def test_a_name_that_is_gone_comes_back_to_what_nobody_took() -> None:
    group = Group(a0=0, a1=0)
    group.join("r2")
    group.claim("r2", "a/1")
    group.apply(ReturnReader("r1", 3, (), (seg("a/0"), seg("a/1"))))
    assert group.owned("r1") == {"a/0": 0}


def test_positions_of_the_earlier_life_do_not_fall() -> None:
    group = Group(a0=9)
    group.join("r1")
    group.claim("r1", "a/0")
    with pytest.raises(PositionFellError):
        group.apply(ReturnReader("r1", 1, positions(cut(a0=5))))


def test_what_is_free_can_be_claimed_by_name_and_the_rest_is_left() -> None:
    group = Group(a0=0, a1=4, a2=0)
    group.join("r1", "r2")
    group.claim("r2", "a/0")
    token = group.token("r1")
    some = (seg("a/0"), seg("a/1"), seg("b/7"))
    assert len(group.apply(ClaimFree("r1", token, some)).claimed) == 1
    assert group.owned("r1") == {"a/1": 4}
    assert group.apply(ClaimFree("r1", token, some)).changes == ()
    group.checkpoint("c1")
    with pytest.raises(CheckpointPendingError):
        group.apply(ClaimFree("r1", token, (seg("a/2"),)))


def test_an_operator_may_take_acks_back_and_says_why() -> None:
    group = Group(a0=0)
    group.join("r1")
    group.claim("r1", "a/0")
    group.checkpoint("c1")
    group.ack("r1", "c1", a0=9)
    back = RemoveReader("r1", positions(cut(a0=4)), rewind=True, why="wrote nonsense")
    group.apply(back)
    assert group.unassigned == {"a/0": 4}
    with pytest.raises(InvalidReaderUpdateError, match="the reason has 513 characters"):
        group.apply(RemoveReader("r1", why="x" * 513))


# --- many segments at once -----------------------------------------------------------------


def test_segments_that_are_completed_together_open_what_follows_them_once() -> None:
    group = Group(a0=0, a1=0, a2=0)
    group.join("r1", "r2")
    group.claim("r1", "a/0", "a/1")
    group.claim("r2", "a/2")
    both = Successor(seg("a/3"), (seg("a/0"), seg("a/1")))
    wide = Successor(seg("a/4"), (seg("a/0"), seg("a/1"), seg("a/2")))
    done = tuple(Completion(seg(s), (both, wide)) for s in ("a/0", "a/1"))
    group.apply(CompleteSegments("r1", group.token("r1"), done))
    assert group.unassigned == {"a/3": 0}
    assert group.future == {"a/4": {"a/2"}}


@pytest.mark.parametrize(
    ("completions", "told"),
    [
        ((), "at least one segment"),
        ((Completion(seg("a/0")), Completion(seg("a/0"))), "each once"),
        (
            (Completion(seg("a/0"), (Successor(seg("b/1"), (seg("a/0"),)),)),),
            "b/1 cannot follow a/0: it has to do with another stream",
        ),
        (
            (Completion(seg("a/0"), (Successor(seg("a/0"), (seg("a/0"),)),)),),
            "it would follow itself",
        ),
    ],
)
def test_completions_that_make_no_sense_are_refused(
    completions: tuple[Completion, ...], told: str
) -> None:
    group = Group(a0=0)
    group.join("r1")
    group.claim("r1", "a/0")
    with pytest.raises(InvalidReaderUpdateError, match=told):
        group.apply(CompleteSegments("r1", group.token("r1"), completions))


@pytest.mark.parametrize("lag_ms", [1.5, True, -1, 2**54])
def test_a_lag_is_a_whole_number(lag_ms: int) -> None:
    group = Group.of(1, "r1")
    group.acquire("r1")
    with pytest.raises(InvalidReaderUpdateError, match="must be a whole number"):
        group.apply(ReportLag("r1", group.token("r1"), lag_ms))
