"""What updates do to a reader group, and which of them are refused."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import pytest

import headrace.groups.readers
from headrace.errors import (
    AlreadyMemberError,
    CheckpointPendingError,
    InvalidInputError,
    InvalidReaderUpdateError,
    NotMemberError,
    NotOverloadedError,
    NotOwnerError,
    NotUnassignedError,
    PositionFellError,
    ReaderGroupError,
    ReaderRevisionError,
    TooManyCheckpointsError,
    UnknownCheckpointError,
)
from headrace.groups.readers import (
    END,
    AckCheckpoint,
    AcquireShare,
    AddReader,
    ClaimSegment,
    CompleteSegments,
    Completion,
    CreateCheckpoint,
    Position,
    RecordPositions,
    ReleaseSegments,
    RemoveReader,
    ReportLag,
    Reset,
    ResetToCheckpoint,
    SegmentId,
    Successor,
    apply,
)
from headrace.groups.readers.core import balance, segments
from headrace.groups.readers.core.segments import positions
from tests.groups.readers.core.helpers import Group, cut, seg


def test_docstring_examples_hold() -> None:
    for module in (headrace.groups.readers, balance, segments):
        assert doctest.testmod(module).failed == 0


def test_a_claim_takes_what_is_unassigned_from_where_it_stands() -> None:
    group = Group(a0=0, a1=40)
    group.join("r1")
    group.claim("r1", "a/1")
    assert group.owned("r1") == {"a/1": 40}
    assert group.unassigned == {"a/0": 0}
    assert not group.state.end_of_data


def test_tokens_grow_with_every_change_of_hands_and_across_resets() -> None:
    group = Group(a0=0)
    tokens = []
    for _ in range(3):
        group.join("r1")
        tokens.append(group.token("r1"))
        group.claim("r1", "a/0")
        tokens.append(group.state.owned("r1")[seg("a/0")].token)
        group.apply(Reset(positions(cut(a0=0))))
    assert tokens == sorted(set(tokens))


def test_a_reader_that_came_back_is_not_the_one_that_left() -> None:
    group = Group(a0=0)
    group.join("r1")
    old = group.token("r1")
    group.claim("r1", "a/0")
    group.offline("r1")
    group.join("r1")
    before = group.image()
    for update in (
        AcquireShare("r1", old),
        ClaimSegment("r1", old, seg("a/0")),
        ReportLag("r1", old, 5),
        RecordPositions("r1", old, ()),
    ):
        with pytest.raises(NotMemberError, match="start again"):
            group.apply(update)
    group.apply(RemoveReader("r1", token=old))
    assert group.image() == before


def test_a_late_lag_does_not_bring_a_reader_back() -> None:
    group = Group(a0=0)
    group.join("r1", "r2")
    token = group.token("r1")
    group.offline("r1")
    with pytest.raises(NotMemberError):
        group.apply(ReportLag("r1", token, 100))
    assert list(group.state.members) == ["r2"]


def test_offline_takes_given_positions_else_recorded_ones_and_ignores_foreign_ones() -> None:
    group = Group(a0=0, a1=10, a2=20)
    group.join("r1", "r2")
    group.claim("r1", "a/0", "a/1")
    group.claim("r2", "a/2")
    group.offline("r1", a0=7, a2=99, b9=5)
    assert group.unassigned == {"a/0": 7, "a/1": 10}
    assert group.owned("r2") == {"a/2": 20}
    before = group.image()
    group.offline("r1", a0=500)
    group.offline("nobody")
    assert group.image() == before


def test_offline_answers_the_checkpoints_that_are_owed_in_order() -> None:
    group = Group(a0=0, a1=5)
    group.join("r1")
    group.claim("r1", "a/0")
    group.checkpoint("c1")
    group.checkpoint("c2")
    group.offline("r1", a0=30)
    assert group.state.blockers() == {}
    assert group.checkpoint_at("c1") == group.checkpoint_at("c2") == {"a/0": 30, "a/1": 5}
    assert group.state.checkpoints.last is group.state.checkpoints.get("c2")


def test_equal_numbers_of_two_streams_do_not_open_each_other() -> None:
    group = Group(a0=0, a1=0, b0=0, b1=0)
    group.join("r1")
    group.claim("r1", "a/0", "a/1", "b/0", "b/1")
    group.complete("r1", "a/0", a2="a/0 a/1")
    group.complete("r1", "b/1", b2="b/0 b/1")
    assert group.future == {"a/2": {"a/1"}, "b/2": {"b/0"}}
    group.complete("r1", "b/0", b2="b/0 b/1")
    assert group.unassigned == {"b/2": 0}
    assert group.future == {"a/2": {"a/1"}}


def test_a_successor_that_is_open_already_is_not_opened_again() -> None:
    group = Group(a0=END, a1=17)
    group.join("r1")
    group.claim("r1", "a/0", "a/1")
    group.complete("r1", "a/0", a1="a/0")
    assert group.owned("r1") == {"a/1": 17}


def test_nothing_follows_a_segment_of_the_end_cut() -> None:
    group = Group(end=cut(a0=60), a0=0)
    group.join("r1")
    group.claim("r1", "a/0")
    group.complete("r1", "a/0", a1="a/0")
    assert group.state.end_of_data
    assert group.owned("r1") == {}


def test_a_reset_keeps_the_end_cut_unless_it_brings_another() -> None:
    group = Group(end=cut(a0=60), a0=0)
    group.apply(Reset(positions(cut(a0=3))))
    assert group.state.end_cut == cut(a0=60)
    group.apply(Reset(positions(cut(a0=3)), end_cut=positions(cut(a0=70))))
    assert group.state.end_cut == cut(a0=70)


def test_released_segments_carry_their_positions_and_those_kept_are_recorded() -> None:
    group = Group(a0=0, a1=0, a2=0, a3=0)
    group.join("r1")
    group.acquire("r1")
    group.join("r2")
    group.release("r1", "a/3", "a/2", a3=3, a0=1)
    assert group.unassigned == {"a/3": 3, "a/2": 0}
    assert group.owned("r1") == {"a/0": 1, "a/1": 0}


def test_no_more_is_released_at_once_than_one_by_one() -> None:
    group = Group.of(6, "r1")
    group.acquire("r1")
    group.join("r2")
    with pytest.raises(NotOverloadedError):
        group.release("r1", "a/0", "a/1", "a/2", "a/3")
    group.release("r1", "a/0", "a/1", "a/2")
    with pytest.raises(NotOverloadedError):
        group.release("r1", "a/3")


def test_an_update_decided_on_another_revision_is_refused() -> None:
    group = Group(a0=0)
    group.join("r1")
    with pytest.raises(ReaderRevisionError, match="revision 1, not 0"):
        apply(group.state, AddReader("r2"), if_revision=0)
    assert list(group.state.members) == ["r1"]


def test_an_update_that_comes_to_nothing_makes_no_revision() -> None:
    group = Group(a0=0)
    group.join("r1")
    group.claim("r1", "a/0")
    revision = group.state.revision
    assert group.acquire("r1") == 0
    group.apply(RecordPositions("r1", group.token("r1"), positions(cut(a0=0, b7=3))))
    assert group.state.revision == revision


def busy_group() -> Group:
    """r1 owns a/0 and a/1 at 10 and owes a checkpoint, r2 owns a/2, a/3 is free, a/5 waits."""
    group = Group(a0=0, a1=10, a2=0, a3=0, a4=0)
    group.join("r1", "r2")
    group.claim("r1", "a/0", "a/1", "a/4")
    group.claim("r2", "a/2")
    group.complete("r1", "a/4", a5="a/4 a/2")
    for name in ("c1", "c2", "c3"):
        group.checkpoint(name)
        group.ack("r2", name)
    return group


REFUSED: dict[str, tuple[Callable[[Group], object], type[ReaderGroupError]]] = {
    "join twice": (lambda g: g.join("r1"), AlreadyMemberError),
    "acquire as nobody": (lambda g: g.acquire("r9"), NotMemberError),
    "wants to release as nobody": (lambda g: balance.wants_release(g.state, "r9"), NotMemberError),
    "claim what is owned": (lambda g: g.claim("r2", "a/0"), NotUnassignedError),
    "claim what waits": (lambda g: g.claim("r2", "a/5"), NotUnassignedError),
    "claim what is over": (lambda g: g.claim("r2", "a/4"), NotUnassignedError),
    "claim what is unknown": (lambda g: g.claim("r2", "b/0"), NotUnassignedError),
    "claim while owing": (lambda g: g.claim("r1", "a/3"), CheckpointPendingError),
    "release while owing": (lambda g: g.release("r1", "a/0"), CheckpointPendingError),
    "release what is not owned": (lambda g: g.release("r1", "a/2"), NotOwnerError),
    "release within the share": (lambda g: g.release("r2", "a/2"), NotOverloadedError),
    "complete while owing": (lambda g: g.complete("r1", "a/0"), CheckpointPendingError),
    "complete what is not owned": (lambda g: g.complete("r2", "a/0"), NotOwnerError),
    "answer out of order": (lambda g: g.ack("r1", "c2"), CheckpointPendingError),
    "answer with a fall": (lambda g: g.ack("r1", "c1", a1=9), PositionFellError),
    "offline with a fall": (lambda g: g.offline("r1", a0=5, a1=9), PositionFellError),
    "one checkpoint too many": (lambda g: g.checkpoint("c4"), TooManyCheckpointsError),
    "restore what is pending": (
        lambda g: g.apply(ResetToCheckpoint("c1")),
        UnknownCheckpointError,
    ),
    "restore what is unknown": (
        lambda g: g.apply(ResetToCheckpoint("c9")),
        UnknownCheckpointError,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_allowed_is_refused_by_name_and_changes_nothing(name: str) -> None:
    act, error = REFUSED[name]
    group = busy_group()
    before = group.image()
    with pytest.raises(error) as caught:
        act(group)
    assert type(caught.value) is error
    assert group.state.describe() in str(caught.value)
    assert caught.value.update.split()[0] in str(caught.value)
    assert group.image() == before


MALFORMED: dict[str, Callable[[Group], object]] = {
    "offset below the end": lambda g: g.ack("r1", "c1", a0=-2),
    "offset beyond all": lambda g: g.offline("r2", a2=2**63),
    "segment twice": lambda g: g.apply(
        RemoveReader("r2", (Position(seg("a/2"), 1), Position(seg("a/2"), 2)))
    ),
    "release of nothing": lambda g: g.apply(ReleaseSegments("r2", g.token("r2"), ())),
    "release of one twice": lambda g: g.release("r2", "a/2", "a/2"),
    "a successor of others": lambda g: g.complete("r2", "a/2", a9="a/3"),
    "a negative lag": lambda g: g.apply(ReportLag("r2", g.token("r2"), -1)),
    "a name with a dot": lambda g: g.join("r.1"),
    "a nameless checkpoint": lambda g: g.checkpoint(""),
    "an endless name": lambda g: g.checkpoint("c" * 129),
    "a wait within the cut": lambda g: g.apply(
        Reset(positions(cut(a0=0)), (Successor(seg("a/0"), (seg("a/1"),)),))
    ),
    "a wait for nothing": lambda g: g.apply(
        Reset(positions(cut(a0=0)), (Successor(seg("a/1"), ()),))
    ),
    "an end cut below the end": lambda g: g.apply(
        Reset(positions(cut(a0=0)), end_cut=(Position(seg("a/0"), -5),))
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_updates_are_refused_and_change_nothing(name: str) -> None:
    group = busy_group()
    before = group.image()
    with pytest.raises(InvalidInputError):
        MALFORMED[name](group)
    assert group.image() == before


@pytest.mark.parametrize("text", ["", "a", "/1", "a/", "a/-1", "a/x", "a/²"])
def test_a_text_that_is_no_segment_is_refused(text: str) -> None:
    with pytest.raises(InvalidReaderUpdateError):
        SegmentId.parse(text)


def test_a_stale_owner_learns_who_owns_the_segment() -> None:
    group = busy_group()
    with pytest.raises(NotOwnerError, match="'r2' does not own a/0, 'r1' does"):
        group.apply(CompleteSegments("r2", group.token("r2"), (Completion(seg("a/0")),)))


def test_followers_apply_what_the_log_holds_without_asking_for_more_than_the_rules() -> None:
    group = busy_group()
    token = group.token("r1")
    apply(group.state, AckCheckpoint("r1", token, "c2", positions(cut(a0=9))))
    apply(group.state, AckCheckpoint("r1", token, "c1", positions(cut(a0=5))))
    assert group.owned("r1") == {"a/0": 5, "a/1": 10}
    apply(group.state, RemoveReader("r1", positions(cut(a0=2))))
    assert group.unassigned["a/0"] == 2
    for name in ("c4", "c5"):
        apply(group.state, CreateCheckpoint(name))
    assert group.state.blockers() == {"c4": ("r2",), "c5": ("r2",)}


def test_an_existing_checkpoint_is_not_begun_again() -> None:
    group = busy_group()
    before = group.image()
    assert group.apply(CreateCheckpoint("c2")).changes == ()
    assert group.image() == before
