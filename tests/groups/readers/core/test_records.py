"""States and updates survive storing, in pieces of bounded size; foreign bytes are refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import NotUnassignedError, ReaderRevisionError, ReaderStateDecodeError
from headrace.groups.readers import (
    AckCheckpoint,
    AddReader,
    ClaimSegment,
    GroupConfig,
    RemoveReader,
    Successor,
)
from headrace.groups.readers.core import records
from headrace.groups.readers.core.records import (
    CHUNK_SEGMENTS_MAX,
    LogEntry,
    decode_entry,
    decode_state,
    encode_entry,
    encode_state,
)
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


def test_an_update_is_small_whatever_the_group() -> None:
    entry = LogEntry(7, ClaimSegment("r1", 3, seg("orders/12")))
    data = encode_entry(entry)
    assert len(data) < 60
    assert decode_entry(data) == entry


@given(st.binary(max_size=60))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ReaderStateDecodeError):
        decode_entry(data)
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
    except ReaderStateDecodeError:
        pass


def test_missing_and_surplus_chunks_are_refused() -> None:
    chunks = full_group().image()
    for broken in ([], chunks[:-1], [*chunks, chunks[-1]], chunks[::-1], [chunks[0], chunks[0]]):
        with pytest.raises(ReaderStateDecodeError):
            decode_state(broken)


@pytest.mark.parametrize(
    "part",
    [
        records._Unassigned([records._Columns("a", [1], [])]),
        records._Unassigned([records._Columns("a", [-1], [0])]),
        records._Unassigned([records._Columns("a", [1], [-2])]),
        records._Future([Successor(seg("a/1"), (seg("a/9"),))]),
        records._Reader("r9", 1, 0, 0, [records._Columns("a", [1], [0], [1])]),
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
    entries = [
        LogEntry(1, AddReader("r1")),
        LogEntry(2, ClaimSegment("r1", 1, seg("a/0"))),
        LogEntry(3, RemoveReader("r1")),
    ]
    assert len(replica.follow(entries[:2])) == 2
    assert len(replica.follow(entries)) == 1
    assert replica.revision == 3


def test_a_gap_in_the_log_is_refused_and_a_snapshot_helps() -> None:
    group = Group(a0=0)
    replica = Replica(decode_state(group.image()))
    group.join("r1", "r2")
    with pytest.raises(ReaderRevisionError):
        replica.follow([LogEntry(2, AddReader("r2"))])
    assert replica.revision == 0
    assert Replica.restore(group.image()).revision == 2


def test_preparing_decides_and_changes_nothing_until_it_is_followed() -> None:
    replica = Replica(Group(a0=0).state)
    replica.follow([LogEntry(1, AddReader("r1"))])
    before = replica.snapshot()
    entry, outcome = replica.prepare(ClaimSegment("r1", 1, seg("a/0")))
    assert replica.snapshot() == before
    assert entry is not None
    assert [claim.token for claim in outcome.claimed] == [2] == [entry.revision]
    with pytest.raises(NotUnassignedError):
        replica.prepare(ClaimSegment("r1", 1, seg("a/1")))
    assert replica.follow([entry]) == [outcome]
    assert replica.prepare(RemoveReader("nobody"))[0] is None


def test_readers_that_answer_at_once_cost_one_update_each() -> None:
    group = Group.of(60)
    readers = [f"r{n}" for n in range(30)]
    group.join(*readers)
    for reader in readers:
        group.acquire(reader)
    group.checkpoint("c1")
    start, log = group.image(), list[LogEntry]()
    replicas = {reader: Replica.restore(start) for reader in readers}
    for reader, replica in replicas.items():
        replica.follow(log)
        entry, _ = replica.prepare(AckCheckpoint(reader, group.token(reader), "c1"))
        assert entry is not None
        log.append(entry)
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
