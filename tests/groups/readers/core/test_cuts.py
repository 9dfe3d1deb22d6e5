"""Cuts in the graph of segments, resets to them, and how much of a stream groups need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidReaderUpdateError
from headrace.groups.readers import END, GroupConfig, SegmentId, Successor
from headrace.groups.readers.core import cuts
from headrace.groups.readers.core.retention import kept_cut
from headrace.groups.readers.core.settings import Retain
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.log import order
from tests.groups.readers.core.helpers import Group, cut, seg

# a/0 and a/1 are scaled into a/2, a/3, a/4; a/3 straddles both.  a/5 joins a/3 and a/4.
EDGES = {"a/0": "", "a/1": "", "a/2": "a/0", "a/3": "a/0 a/1", "a/4": "a/1", "a/5": "a/3 a/4"}
GRAPH = {seg(s): tuple(map(seg, before.split())) for s, before in EDGES.items()}
HEADS = dict.fromkeys(GRAPH, 100)


def names(segments: set[SegmentId]) -> set[str]:
    return set(map(str, segments))


def test_what_follows_is_ahead_and_the_rest_is_behind() -> None:
    assert names(order.following(cut(a1=0), GRAPH)) == {"a/3", "a/4", "a/5"}
    assert order.following(cut(a2=0, a5=0), GRAPH) == set()


def test_what_lies_behind_a_cut_is_not_waited_for() -> None:
    waits = cuts.waits_of(cut(a0=30, a4=10), GRAPH)
    assert waits == (Successor(seg("a/3"), (seg("a/0"),)),)
    assert cuts.waits_of(cut(a0=0, a1=0), GRAPH) == ()


def test_a_group_reset_in_the_middle_of_a_scale_reads_on_to_the_end() -> None:
    group = Group(a0=0)
    group.apply(cuts.reset_to(cut(a0=30, a4=10), GRAPH))
    group.join("r1")
    group.claim("r1", "a/0", "a/4")
    group.complete("r1", "a/0", a2="a/0", a3="a/0 a/1")
    assert group.unassigned == {"a/2": 0, "a/3": 0}
    group.claim("r1", "a/3")
    group.complete("r1", "a/3", a5="a/3 a/4")
    assert group.future == {"a/5": {"a/4"}}
    group.complete("r1", "a/4", a5="a/3 a/4")
    assert group.unassigned == {"a/2": 0, "a/5": 0}


def test_a_group_may_begin_in_the_middle_of_a_scale_and_end_at_a_cut() -> None:
    group = Group()
    start, end = cut(a0=30, a4=10), cut(a2=5, a3=5, a4=20)
    group.state = cuts.begin_at(start, GRAPH, GroupConfig(), end_cut=end)
    assert group.future == {"a/3": {"a/0"}}
    group.join("r1")
    group.claim("r1", "a/0", "a/4")
    group.complete("r1", "a/4", a5="a/3 a/4")
    group.complete("r1", "a/0", a2="a/0", a3="a/0 a/1")
    group.claim("r1", "a/2", "a/3")
    group.complete("r1", "a/2")
    group.complete("r1", "a/3", a5="a/3 a/4")
    assert group.state.end_of_data
    with pytest.raises(InvalidReaderUpdateError, match="end cut: there is no segment b/0"):
        cuts.begin_at(start, GRAPH, GroupConfig(), end_cut=cut(b0=1))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (cut(a0=0, a1=0, a9=0), "no segment a/9"),
        (cut(a0=0, a1=0, a3=5), "a/3 follows another"),
        (cut(a0=0, a1=END, a5=5), "a/5 follows another"),
        (cut(a1=0), "says nothing of the keys of a/2"),
    ],
)
def test_a_cut_that_would_skip_or_repeat_is_refused(wrong: dict[SegmentId, int], told: str) -> None:
    with pytest.raises(InvalidReaderUpdateError, match=told):
        cuts.reset_to(wrong, GRAPH)


START = cut(a0=30, a1=0)


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        (START, cut(a0=29, a1=5), "a/0 ends at 29, and the group begins there at 30"),
        (cut(a0=END, a1=0), cut(a0=29, a1=5), "begins there at its end"),
        (cut(a2=0, a5=0), cut(a2=4, a3=4, a4=4), "a/3 lies behind the start"),
        (START, cut(a2=4, a3=4, a4=4, a5=9), "a/5 follows another segment"),
        (START, cut(a0=40), "a/1 leads into a/3, which lies beyond the end; name a/1, too"),
        (START, cut(a2=5, a3=5), "a/4 leads into a/5"),
        (START, cut(a2=5), "says nothing of the keys of a/5"),
        (START, cut(a5=5), "says nothing of the keys of a/2"),
        (START, cut(a2=END, a5=5), "give the offset at which a/2 ends"),
        (START, cut(a0=40, a1=40, b0=1), "no segment b/0"),
    ],
)
def test_an_end_that_would_never_be_reached_is_refused_at_creation_and_at_reset(
    start: dict[SegmentId, int], end: dict[SegmentId, int], told: str
) -> None:
    with pytest.raises(InvalidReaderUpdateError, match=told):
        cuts.begin_at(start, GRAPH, GroupConfig(), end_cut=end)
    with pytest.raises(InvalidReaderUpdateError, match=told):
        cuts.reset_to(start, GRAPH, end_cut=end)
    with pytest.raises(InvalidReaderUpdateError, match=told):
        cuts.reset_to(start, GRAPH, ReaderGroupState(GroupConfig(), {}, end_cut=end))


def test_a_reset_speaks_of_every_stream_of_the_group() -> None:
    group = Group(a0=0, a1=0, b0=0)
    with pytest.raises(InvalidReaderUpdateError, match="says nothing of stream 'b'"):
        cuts.reset_to(START, GRAPH, group.state)


@given(st.lists(st.sampled_from((None, 0, 3)), min_size=6, max_size=6), st.data())
def test_every_end_that_is_accepted_is_reached(
    chosen: list[int | None], data: st.DataObject
) -> None:
    end = {s: at for s, at in zip(GRAPH, chosen, strict=True) if at is not None}
    start = data.draw(st.sampled_from((cut(a0=0, a1=0), cut(a0=2, a4=0), cut(a2=0, a3=1, a4=0))))
    group = Group()
    try:
        group.state = cuts.begin_at(start, GRAPH, GroupConfig(), end_cut=end)
    except InvalidReaderUpdateError:
        return
    read_to_the_end(group, data)
    assert group.state.end_of_data


def read_to_the_end(group: Group, data: st.DataObject) -> list[SegmentId]:
    """Claim and complete until nothing can be claimed; what was completed."""
    group.join("r1")
    done: list[SegmentId] = []
    while group.state.unassigned:
        segment = data.draw(st.sampled_from(sorted(group.state.unassigned)))
        group.claim("r1", str(segment))
        following = [each for each, before in GRAPH.items() if segment in before]
        opens = {f"{s.stream}{s.number}": " ".join(map(str, GRAPH[s])) for s in following}
        group.complete("r1", str(segment), **opens)
        done.append(segment)
    return done


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.data())
def test_every_reset_to_a_valid_cut_can_be_read_to_the_end(
    chosen: list[bool], data: st.DataObject
) -> None:
    wanted = {segment: 0 for segment, within in zip(GRAPH, chosen, strict=True) if within}
    try:
        update = cuts.reset_to(wanted, GRAPH)
    except InvalidReaderUpdateError:
        return
    group = Group()
    group.apply(update)
    done = read_to_the_end(group, data)
    assert group.state.end_of_data
    assert len(done) == len(set(done))
    assert set(done) == set(wanted) | order.following(wanted, GRAPH)


# --- retention -----------------------------------------------------------------------------


def reading(config: GroupConfig | None = None, **at: int) -> Group:
    """A group that begins at a cut."""
    group = Group(config)
    group.apply(cuts.reset_to(cut(**at), GRAPH))
    return group


def bound(*groups: Group) -> dict[str, int]:
    asked = [kept_cut(group.state) for group in groups]
    found = [cuts.floors_at(*each, GRAPH, HEADS) for each in asked if each is not None]
    return {str(each): min(floors[each] for floors in found) for each in GRAPH if found}


def test_what_is_behind_may_go_and_what_is_ahead_stays() -> None:
    assert bound(reading(a0=30, a4=10)) == {
        "a/0": 30, "a/1": 100, "a/2": 0, "a/3": 0, "a/4": 10, "a/5": 0,
    }  # fmt: skip


def test_the_slowest_group_decides_for_each_segment() -> None:
    assert bound(reading(a2=5, a5=7), reading(a0=30, a4=END)) == {
        "a/0": 30, "a/1": 100, "a/2": 0, "a/3": 0, "a/4": 100, "a/5": 0,
    }  # fmt: skip


def test_a_group_can_ask_for_its_last_checkpoint_or_for_nothing() -> None:
    keeper = reading(GroupConfig(retain=Retain.CHECKPOINT), a0=0, a1=0)
    keeper.join("r1")
    keeper.claim("r1", "a/0", "a/1")
    keeper.checkpoint("c1")
    keeper.ack("r1", "c1", a0=20, a1=25)
    keeper.offline("r1", a0=50, a1=60)
    assert (bound(keeper)["a/0"], bound(keeper)["a/1"]) == (20, 25)
    assert bound(reading(GroupConfig(retain=Retain.NOTHING), a0=0, a1=0)) == {}
    assert bound() == {}


def test_other_streams_of_a_group_do_not_matter() -> None:
    group = Group(a2=5, a5=6, b0=3)
    assert bound(group)["a/2"] == 5
    assert set(bound(group)) == set(EDGES)
