"""Progress between two regions, step by step: who says what when, and what may not be lost of it.

Agents are stepped by hand, so that everything happens in exactly the order that is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.catalog import Tx, claims, entries, replicas
from headrace.catalog.streams import StreamConfig
from headrace.errors import Fenced
from headrace.groups.homes import GROUPS_BUCKET, HomeStamp
from headrace.groups.operations.seek import seek
from headrace.groups.partitioned.core.pins import ClaimOwner
from headrace.groups.partitioned.lifecycle import create_static
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress import Progress, store
from headrace.regions import enabling, losing, moving
from headrace.regions.leaving import unlink
from headrace.regions.linking import change_member, link
from headrace.regions.records import (
    GroupRecord,
    Handing,
    Region,
    get_group,
    put_group,
    require_link,
    require_region,
)
from headrace.regions.runtime import applying
from headrace.regions.runtime.joining import decode_cursor
from headrace.regions.runtime.replicator import Replicator
from tests.regions.runtime.world import Stepped
from tests.regions.runtime.world import settle as settle

KEY = "orders.billing"
ONE = StreamConfig(subjects=("orders.>",), partitions=1)


class Side(Stepped):
    """A region whose agent is stepped by hand, with one segment and a group of one member."""

    @property
    def segment(self) -> int:
        return self.log.stream("orders").segments[0].id

    def ack(self, lo: int, hi: int) -> None:
        """As the owner of the unit would."""

        def run(tx: Tx) -> None:
            before = store.load(tx, KEY, self.segment) or Progress()
            store.ack_spans(tx, KEY, {self.segment: before}, {self.segment: [(lo, hi)]})

        self.log.catalog.write(run)

    def unacked(self) -> list[int]:
        """The offsets that a member would be given."""
        head = self.log.stream("orders").segments[0].head
        found = self.log.catalog.read(lambda tx: store.load(tx, KEY, self.segment)) or Progress()
        tail = self.log.stream("orders").segments[0].tail
        return [o for lo, hi in found.acked().missing(head) for o in range(lo, hi) if o >= tail]

    def left(self) -> list[tuple[str, int]]:
        """Their origins."""
        rows = [(lane, sequence) for lane, sequence, _ in self.origins()[0]]
        tail = self.log.stream("orders").segments[0].tail
        return [rows[offset - tail] for offset in self.unacked()]

    def known(self, lane: str) -> set[int]:
        """The sequences that are acked by origin."""
        row = self.log.catalog.read(lambda tx: replicas.cursor(tx, KEY, self.segment))
        acked = decode_cursor(KEY, b"" if row is None else row.state).acked(lane)
        return set() if acked is None else {s for s in range(acked.end) if s in acked}

    def record(self) -> GroupRecord:
        found = self.log.catalog.read(lambda tx: get_group(tx, KEY))
        assert found is not None
        return found

    @property
    def me(self) -> Region:
        return self.log.catalog.read(require_region)

    def translate(self) -> None:
        self.agent.translate(self.me)


Make = Callable[..., tuple[Side, Side]]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Make]:
    """Two linked regions with a replicated group; a published some events before."""
    made: list[Side] = []

    def make(
        *, history: int = 0, backfill: str = "all", home: str | None = None
    ) -> tuple[Side, Side]:
        made.extend(Side(name, str(tmp_path / name)) for name in ("a", "b"))
        a, b = made
        a.log.create_stream("orders", ONE)
        if history:
            a.publish(history)
        link(a.log, "orders", "b", here=a.url, catalog=b.url, backfill=backfill)
        create_static(a.log, "orders", "billing", max_members=1, members=["m1"])
        enabling.enable(a.log, KEY, a.neighbours, home=home)
        settle(a, b)
        return a, b

    yield make
    for side in made:
        side.close()


def test_a_seek_where_the_history_never_was_leaves_the_history_alone(two: Make) -> None:
    a, b = two(history=6, backfill="none")
    a.publish(4)
    settle(a, b)
    a.ack(1, 2)
    settle(a, b)
    seek(b.log, "orders/billing", "latest")
    settle(a, b)
    assert a.left() == [("a", 0), ("a", 2), ("a", 3), ("a", 4), ("a", 5)]
    seek(b.log, "orders/billing", "earliest")
    settle(a, b)
    assert a.known("a") == {1}


def test_a_seek_leaves_a_gap_alone_and_counts_before_it(two: Make) -> None:
    a, b = two()
    a.publish(4)
    settle(a, b)
    a.publish(3)
    a.publish(3)
    a.ack(0, 7)
    a.log.trim("orders", {0: 7})
    settle(a, b)
    assert [sequence for _, sequence, _ in b.origins()[0]] == [0, 1, 2, 3, 7, 8, 9]
    assert a.known("a") == set(range(7))
    seek(b.log, "orders/billing", "earliest")
    settle(a, b)
    assert a.known("a") == b.known("a") == {4, 5, 6}


def test_a_seek_to_the_end_is_one_whatever_comes_before_it_is_translated(two: Make) -> None:
    a, b = two()
    a.publish(5)
    settle(a, b)
    a.publish(5)
    a.ack(5, 10)
    a.translate()
    b.agent.take_over(b.me, b.agent.members()[0])  # read, and waits behind the data
    _apply_eagerly(a, b)
    assert b.known("a") == {5, 6, 7, 8, 9}
    seek(b.log, "orders/billing", "latest")
    b.publish(2)
    b.translate()
    settle(a, b)
    assert b.left() == [("b", 0), ("b", 1)]
    assert a.left() == [("b", 0), ("b", 1)]


def _apply_eagerly(a: Side, b: Side) -> None:
    """Acks arrive before their events, as for a group with ``eager``."""
    theirs = a.log.catalog.read(
        lambda tx: applying.look(tx, "a", -1, {"orders": require_link(tx, "orders")}), snapshot=True
    )

    def make_eager(tx: Tx) -> None:
        found = get_group(tx, KEY)
        assert found is not None
        put_group(tx, msgspec.structs.replace(found, eager=True))

    b.log.catalog.write(make_eager, locks=(entries.lock(GROUPS_BUCKET),))
    applying.apply(b.log, b.me, theirs, eager_only=True)


def test_a_seek_here_is_not_forgotten_when_acks_come_from_elsewhere(two: Make) -> None:
    a, b = two()
    a.publish(6)
    settle(a, b)
    b.ack(0, 4)
    settle(a, b)
    a.ack(5, 6)
    a.translate()
    seek(b.log, "orders/billing", "earliest")
    b.agent.take_over(b.me, b.agent.members()[0])  # before b's own seek is translated
    settle(a, b)
    assert a.unacked() == b.unacked() == [0, 1, 2, 3, 4, 5]


def test_what_is_acked_again_after_a_seek_elsewhere_is_news(two: Make) -> None:
    a, b = two()
    a.publish(6)
    settle(a, b)
    b.ack(0, 6)
    settle(a, b)
    seek(a.log, "orders/billing", "earliest")
    a.translate()
    b.agent.take_over(b.me, b.agent.members()[0])
    assert b.unacked() == [0, 1, 2, 3, 4, 5]
    b.ack(0, 3)  # before b's agent looks at its own row again
    settle(a, b)
    assert a.unacked() == b.unacked() == [3, 4, 5]


def test_acks_wait_behind_events_of_a_link_that_is_paused(two: Make) -> None:
    a, b = two()
    a.publish(4)
    settle(a, b)
    a.log.create_stream("out", StreamConfig(subjects=("out.>",)))
    link(a.log, "out", "b", here=a.url, catalog=b.url)
    settle(a, b)
    change_member(b.log, "out", "a", lambda m: msgspec.structs.replace(m, state="paused"))
    a.publish(1, stream="out")
    a.ack(0, 4)
    settle(a, b)
    assert b.known("a") == set(), "their output has not come"
    change_member(b.log, "out", "a", lambda m: msgspec.structs.replace(m, state="active"))
    settle(a, b)
    assert b.known("a") == {0, 1, 2, 3}


def test_nothing_is_passed_over_while_the_source_has_unlinked_the_stream(two: Make) -> None:
    a, b = two()
    replicator = Replicator(b.log, b.neighbours, "a")
    a.publish(3)
    assert replicator.step()
    unlink(a.log, "orders")
    a.publish(5)
    place = b.log.catalog.read(replicas.all_places)
    assert not replicator.step()
    assert b.log.catalog.read(replicas.all_places) == place


def _own(side: Side, *, ttl_ms: int) -> tuple[ClaimOwner, int]:
    """A member with a pin and the unit, as if it had joined."""
    name = GroupName("orders", "billing")
    pin = side.log.catalog.leases.acquire(name.pin("m1"), "i1", ttl_ms)
    assert pin is not None
    owner = ClaimOwner("m1", "i1", pin.token)
    claim = side.log.catalog.claims.take(KEY, "0", owner.encode())
    return owner, claim.token


def test_a_member_that_died_does_not_keep_a_group_from_moving(two: Make) -> None:
    a, _b = two(home="a")
    _, token = _own(a, ttl_ms=60_000)
    moving._begin_switch(a.log, KEY, "a", "b")
    a.translate()
    assert not (a.record().handing or Handing("a")).drained, "it may still give it up"
    a.log.catalog.write(lambda tx: tx.execute("UPDATE leases SET expires_us = 1"))
    a.translate()
    handing = a.record().handing
    assert handing is not None
    assert handing.drained
    with pytest.raises(Fenced):
        a.log.catalog.read(lambda tx: claims.check(tx, KEY, "0", token))


def test_who_froze_through_a_fail_over_is_fenced_when_the_region_returns(two: Make) -> None:
    a, b = two(home="a")
    _, token = _own(a, ttl_ms=60_000)
    losing.fail_over(b.log, "a", b.neighbours, force=True)
    assert b.record().home == "b"
    losing.set_state(b.log, "a", "active")
    settle(a, b)
    assert a.record().home == "b"
    assert a.record().stamp > HomeStamp()
    with pytest.raises(Fenced):
        a.log.catalog.read(lambda tx: claims.check(tx, KEY, "0", token))


def test_a_damaged_record_of_one_neighbour_stops_nobody_else(two: Make) -> None:
    a, b = two()
    a.publish(3)
    settle(a, b)

    def damage(tx: Tx) -> None:
        revision = replicas.next_revision(tx)
        tx.execute("UPDATE region_cursors SET state = ?, revision = ?", (b"\xff\x00", revision))

    a.log.catalog.write(damage)
    before = b.known("a")
    b.agent.step()
    assert b.known("a") == before
    (since, why) = b.agent.away["a"]
    assert since > 0
    assert "cannot be read" in why
    b.ack(0, 1)
    b.agent.step()
    assert b.known("a") == {*before, 0}, "and its own work goes on"
