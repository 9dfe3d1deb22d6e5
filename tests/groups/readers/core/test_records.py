"""States and updates survive storing, in pieces of bounded size; foreign bytes are refused."""

from __future__ import annotations

from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    NotUnassignedError,
    ReaderFormatError,
    ReaderRevisionError,
    ReaderStateDecodeError,
)
from headrace.groups.readers import (
    AckCheckpoint,
    AcquireShare,
    AddReader,
    ClaimSegment,
    CreateCheckpoint,
    GroupConfig,
    RecordPositions,
    RemoveReader,
    SegmentId,
    Successor,
    Update,
)
from headrace.groups.readers.core import balance, records
from headrace.groups.readers.core.checkpoints import Checkpoints
from headrace.groups.readers.core.columns import SegmentColumns
from headrace.groups.readers.core.entries import decode_outcome, encode_outcome
from headrace.groups.readers.core.records import (
    CHUNK_SEGMENTS_MAX,
    decode_state,
    encode_state,
)
from headrace.groups.readers.core.rules import Outcome
from headrace.groups.readers.core.segments import positions
from headrace.groups.readers.core.synchronizer import LOG_ENTRIES_MAX, Replica, compaction_due
from tests.groups.readers.core.helpers import Group, cut, seg


def full_group() -> Group:
    """Something of everything."""
    group = Group(GroupConfig(checkpoints_kept_max=1), end=cut(b0=9), a0=0, a1=3, a2=0, b0=5)
    group.join("r1", "r2")
    group.claim("r1", "a/0", "b/0")
    group.claim("r2", "a/2")
    group.complete("r1", "a/0", a4="a/0 a/2")
    group.checkpoint("c1")
    group.ack("r1", "c1", b0=7)
    group.ack("r2", "c1", a2=2)
    group.checkpoint("s1", silent=True)
    group.ack("r1", "s1")
    return group


def test_a_state_comes_back_as_it_was() -> None:
    group = full_group()
    image = group.image()
    twin = Group()
    twin.state = decode_state(image)
    assert twin.image() == image
    assert twin.owned("r1") == group.owned("r1")
    assert twin.future == group.future
    assert twin.state.blockers() == {"s1": ("r2",)}
    assert twin.state.end_cut == group.state.end_cut
    assert twin.state.config == group.state.config
    last = twin.state.checkpoints.last
    assert last is twin.state.checkpoints.get("c1")
    for each in (group, twin):
        each.ack("r2", "s1", a2=4)
        each.offline("r1", b0=8)
        each.acquire("r2")
    assert twin.image() == group.image()


def test_a_last_checkpoint_that_is_no_longer_known_by_name_comes_back() -> None:
    group = full_group()
    group.ack("r2", "s1")
    state = group.state
    last = state.checkpoints.last
    assert last is not None
    state.checkpoints._by_name.pop(last.name)
    restored = decode_state(encode_state(state))
    assert restored.checkpoints.get("c1") is None
    assert restored.checkpoints.last is not None
    assert restored.checkpoints.last.positions == last.positions


def test_a_large_state_is_cut_into_chunks_of_bounded_size() -> None:
    group = Group.of(10_000, "r1")
    group.acquire("r1")
    group.join(*(f"r{n}" for n in range(2, 30)))
    for name in ("c1", "c2"):
        group.checkpoint(name)
        for reader in group.state.members:
            group.ack(reader, name)
    chunks = group.image()
    assert len(chunks) == 1 + 3 * -(-10_029 // CHUNK_SEGMENTS_MAX)
    assert max(map(len, chunks)) < 100_000
    assert encode_state(decode_state(chunks)) == chunks


def test_an_outcome_is_small_whatever_the_group() -> None:
    group = Group.of(10_000, "r1")
    outcome = group.apply(ClaimSegment("r1", group.token("r1"), seg("a/12")))
    data = encode_outcome(outcome)
    assert len(data) < 90
    assert decode_outcome(data) == msgspec.structs.replace(
        outcome, update=ClaimSegment("r1", group.token("r1"), seg("a/12"))
    )


def test_the_outcome_of_many_segments_takes_a_few_bytes_each() -> None:
    group = Group.of(1000, "r1")
    group.acquire("r1")
    moved = positions({SegmentId("a", n): 70_000 + n for n in range(1000)})
    outcome = group.apply(RecordPositions("r1", group.token("r1"), moved))
    data = encode_outcome(outcome)
    assert len(data) < 9_000
    assert decode_outcome(data).changes == outcome.changes


def test_an_update_that_is_unknown_here_is_left_out_and_its_changes_are_followed() -> None:
    group = Group.of(1, "r1")
    outcome = group.apply(AcquireShare("r1", group.token("r1")))
    entry = msgspec.msgpack.decode(encode_outcome(outcome))
    entry[-1] = {"type": "of tomorrow", "reader": "r1"}
    found = decode_outcome(msgspec.msgpack.encode(entry))
    assert found.update is None
    assert found.changes == outcome.changes


def test_what_a_newer_version_wrote_is_refused_by_that_name() -> None:
    group = full_group()
    entry = msgspec.msgpack.decode(encode_outcome(group.apply(AddReader("r7"))))
    entry[0] = 2
    with pytest.raises(ReaderFormatError, match=r"has format 2.*upgrade this program"):
        decode_outcome(msgspec.msgpack.encode([*entry[:3], {"of": "tomorrow"}]))
    chunks = group.image()
    head = msgspec.msgpack.decode(chunks[0])
    head[0]["format"] = 3
    tomorrow = msgspec.msgpack.encode([{"type": "of tomorrow"}])
    with pytest.raises(ReaderFormatError, match="has format 3"):
        decode_state([msgspec.msgpack.encode(head), tomorrow])


@given(st.binary(max_size=60))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ReaderStateDecodeError):
        decode_outcome(data)
    with pytest.raises(ReaderStateDecodeError):
        decode_state([data])


@given(st.data())
def test_damaged_chunks_are_refused_or_whole(data: st.DataObject) -> None:
    """A changed byte may make another state, never an error of another kind."""
    chunks = [bytearray(chunk) for chunk in full_group().image()]
    chunk = chunks[data.draw(st.integers(0, len(chunks) - 1))]
    at = data.draw(st.integers(0, len(chunk) - 1))
    chunk[at] = data.draw(st.integers(0, 255))
    try:
        decode_state([bytes(each) for each in chunks])
    except (ReaderStateDecodeError, ReaderFormatError):
        pass


def test_missing_and_surplus_chunks_are_refused() -> None:
    chunks = full_group().image()
    for broken in ([], chunks[:-1], [*chunks, chunks[-1]], chunks[::-1], [chunks[0], chunks[0]]):
        with pytest.raises(ReaderStateDecodeError):
            decode_state(broken)


@pytest.mark.parametrize(
    "part",
    [
        records._Unassigned([SegmentColumns("a", [1], [])]),
        records._Unassigned([SegmentColumns("a", [-1], [0])]),
        records._Unassigned([SegmentColumns("a", [1], [-2])]),
        records._Future([Successor(seg("a/1"), (seg("a/9"),))]),
        records._Reader("r9", 1, 0, None, False, 0, [SegmentColumns("a", [1], [0], [1])]),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(part: object) -> None:
    head, body = Group(a1=0).image()
    broken = msgspec.msgpack.encode([*msgspec.msgpack.decode(body), part])
    with pytest.raises(ReaderStateDecodeError):
        decode_state([head, broken])


# --- replicas ------------------------------------------------------------------------------


def test_a_replica_follows_what_it_has_not_seen_and_skips_the_rest() -> None:
    group = Group(a0=0)
    replica = Replica(decode_state(group.image()))
    log = [
        group.apply(AddReader("r1")),
        group.apply(ClaimSegment("r1", 1, seg("a/0"))),
        group.apply(RemoveReader("r1")),
    ]
    assert replica.follow(log[:2]).outcomes == tuple(log[:2])
    assert replica.follow(log).outcomes == (log[2],)
    assert replica.revision == 3
    assert replica.snapshot() == group.image()


def test_followers_decide_nothing_so_two_versions_of_the_rules_agree() -> None:
    """One of them rounds shares another way, gives up all it has, and keeps one checkpoint."""
    group = Group.of(5, "r1", "r2")
    start = group.image()
    theirs, ours = Replica.restore(start), Replica.restore(start)
    log: list[Outcome] = []

    def put(replica: Replica, update: Update) -> Outcome:
        replica.follow(map(decode_outcome, map(encode_outcome, log)))
        outcome = replica.prepare(update, now_ms=len(log))
        if outcome.changes:
            log.append(outcome)
        return outcome

    other = mock.patch.object(balance, "fair_share", return_value=1)
    with other:
        assert len(put(theirs, AcquireShare("r1", 1)).claimed) == 2
    assert len(put(ours, AcquireShare("r2", 2)).claimed) == 3
    for name in ("c1", "c2", "c3", "c4"):
        put(ours, CreateCheckpoint(name))
        put(ours, AckCheckpoint("r1", 1, name))
        with mock.patch.object(Checkpoints, "too_many", return_value=[]):
            put(theirs, AckCheckpoint("r2", 2, name))
    with other:
        theirs.follow(log)
    ours.follow(log)
    assert theirs.snapshot() == ours.snapshot()
    assert len(ours.state.checkpoints.all()) == 4
    assert {name: len(m.owned) for name, m in ours.state.members.items()} == {"r1": 2, "r2": 3}


def test_a_gap_in_the_log_is_refused_and_a_snapshot_helps() -> None:
    group = Group(a0=0)
    replica = Replica(decode_state(group.image()))
    group.join("r1")
    second = group.apply(AddReader("r2"))
    with pytest.raises(ReaderRevisionError):
        replica.follow([second])
    assert replica.revision == 0
    assert Replica.restore(group.image()).revision == 2


def test_preparing_decides_and_changes_nothing_until_it_is_followed() -> None:
    replica = Replica(Group(a0=0).state)
    replica.follow([replica.prepare(AddReader("r1"), 0)])
    before = replica.snapshot()
    outcome = replica.prepare(ClaimSegment("r1", 1, seg("a/0")), 70)
    assert replica.snapshot() == before
    assert [claim.token for claim in outcome.claimed] == [2] == [outcome.revision]
    assert (outcome.update, outcome.at_ms) == (ClaimSegment("r1", 1, seg("a/0")), 70)
    with pytest.raises(NotUnassignedError):
        replica.prepare(ClaimSegment("r1", 1, seg("a/1")), 0)
    assert replica.follow([outcome]).outcomes == (outcome,)
    nothing = replica.prepare(RemoveReader("nobody"), 0)
    assert (nothing.changes, nothing.revision) == ((), 2)


def test_who_waits_for_a_checkpoint_learns_of_it_even_if_it_is_forgotten_at_once() -> None:
    group = Group(GroupConfig(checkpoints_kept_max=1, checkpoints_outstanding_max=5), a0=0)
    group.join("r1")
    for number in range(5):
        group.checkpoint(f"s{number}", silent=True)
    follower = Replica.restore(group.image())
    followed = follower.follow([group.apply(RemoveReader("r1"))])
    assert [c.name for c in followed.completed] == ["s0", "s1", "s2", "s3", "s4"]
    assert [c.positions for c in followed.completed] == [cut(a0=0)] * 5
    assert [c.name for c in follower.state.checkpoints.all()] == ["s4"]


def test_readers_that_answer_at_once_cost_one_update_each() -> None:
    group = Group.of(60)
    readers = [f"r{n}" for n in range(30)]
    group.join(*readers)
    for reader in readers:
        group.acquire(reader)
    group.checkpoint("c1")
    start, log = group.image(), list[Outcome]()
    replicas = {reader: Replica.restore(start) for reader in readers}
    for reader, replica in replicas.items():
        replica.follow(log)
        log.append(replica.prepare(AckCheckpoint(reader, group.token(reader), "c1"), 0))
    assert len(log) == len(readers)
    follower = Replica.restore(start)
    follower.follow(log)
    assert follower.state.blockers() == {}
    for replica in replicas.values():
        replica.follow(log)
        assert replica.snapshot() == follower.snapshot()


def test_a_long_log_is_due_for_a_snapshot() -> None:
    assert not compaction_due(10, 1000)
    assert compaction_due(LOG_ENTRIES_MAX + 1, 1000)
    assert compaction_due(10, 2**20)
