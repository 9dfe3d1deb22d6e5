"""What became of reports that were not confirmed: told truthfully, however the leader was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
import headrace.sync
from headrace.catalog import Catalog, leases
from headrace.errors import AckUnsettledError, Fenced
from headrace.groups.progress import Progress
from headrace.groups.shared.admin import Groups
from headrace.groups.shared.core.records import ClaimRecord, Commit, ProgressRecord
from headrace.groups.shared.runtime import state
from headrace.groups.shared.runtime.settling import Doubt, Settler, Verdict, judge, segment_ids
from tests.groups.shared.runtime.support import Worker, open_log, publish, run
from tests.support import until

GROUP = "g:orders.>"
UNIT = "orders/0"
TEXT = "$share/g/orders.>"


class Group:
    """A group in a catalog, and a leader's commits of it."""

    def __init__(self, hr: headrace.sync.Headrace) -> None:
        self.hr = hr
        self.catalog: Catalog = hr.client.log.catalog
        self.groups = Groups(hr.client.log)
        self.commits = 0
        self.token = 0

    def lead(self, name: str) -> None:
        lease = state.lease_name(GROUP)
        self.token = self.catalog.write(lambda tx: leases.seize(tx, lease, name, 60_000)).token

    def commit(self, acked: int | None = None, claim: int | None = None) -> None:
        self.commits += 1
        progress = () if acked is None else (ProgressRecord(UNIT, Progress(acked)),)
        claims = () if claim is None else (ClaimRecord(UNIT, f"b{claim}", claim),)
        commit = Commit(self.commits, self.token, progress, claims)
        stream = self.hr.client.log.stream("orders")
        keys = {UNIT: state.SegmentKey(stream.id, stream.segments[0].id)}
        self.catalog.write(
            lambda tx: state.run_commit(tx, GROUP, commit, keys), locks=state.locks(GROUP, commit)
        )

    def verdict(self, low: int, high: int, *, token: int = 1, leader: int = 1) -> Verdict:
        doubt = Doubt(GROUP, UNIT, token, leader, ((low, high),))
        return self.catalog.read(lambda tx: judge(tx, [doubt]), snapshot=True)[0]


@pytest.fixture
def group(catalog_url: str) -> Iterator[Group]:
    with headrace.sync.open(catalog_url, housekeeping=False) as hr:
        hr.create_stream("orders", ["orders.>"], segments=1)
        made = Group(hr)
        made.groups.declare("g", "orders.>", start="earliest")
        made.lead("one")
        made.commit(claim=1)
        yield made


def test_what_is_stored_under_the_same_claim_counts(group: Group) -> None:
    group.commit(acked=5)
    assert group.verdict(0, 5) is Verdict.COUNTS
    assert group.verdict(4, 6) is Verdict.OPEN


def test_what_a_replaced_leader_has_not_stored_does_not_count(group: Group) -> None:
    group.commit(acked=5)
    assert group.verdict(5, 6) is Verdict.OPEN
    group.lead("two")
    assert group.verdict(5, 6) is Verdict.DOES_NOT
    assert group.verdict(0, 5) is Verdict.COUNTS


def test_after_a_hand_over_counts_what_was_stored_before_it(group: Group) -> None:
    group.commit(acked=5)
    group.commit(claim=2)
    group.commit(acked=9)  # by the next owner
    assert group.verdict(0, 5) is Verdict.COUNTS
    assert group.verdict(5, 6) is Verdict.DOES_NOT


def test_when_hand_overs_are_forgotten_nobody_is_told_what_is_not_known(group: Group) -> None:
    group.commit(acked=5)
    for token in range(2, state.SLOTS + 3):
        group.commit(claim=token)
    group.commit(acked=9)
    assert group.verdict(5, 9) is Verdict.UNKNOWN
    assert group.verdict(9, 10) is Verdict.DOES_NOT


def test_nothing_counts_in_a_group_or_a_stream_that_is_deleted(group: Group) -> None:
    group.commit(acked=5)
    group.groups.delete("g", force=True)
    assert group.verdict(0, 5) is Verdict.DOES_NOT
    group.groups.declare("g", "orders.>")
    group.hr.delete_stream("orders", force=True)
    assert group.verdict(0, 5) is Verdict.DOES_NOT
    assert group.catalog.read(lambda tx: segment_ids(tx, [UNIT])) == {}


async def give_one(hr: headrace.Headrace, worker: Worker) -> headrace.Delivery:
    """An event that a session holds and has not acked, delivered by a leader elsewhere."""
    other = await worker.session.__aenter__()
    await other.subscribe(TEXT, start="earliest")
    await until(lambda: other.units, "a unit of its own")
    await publish(hr, "orders", 50)
    return await anext(aiter(other))


def test_an_ack_counts_that_was_stored_by_a_leader_who_never_said_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr, open_log(tmp_path / "d") as there:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            async with Worker(hr, "first", TEXT, start="earliest") as first:
                await until(lambda: first.session.units, "a leader")
                second = Worker(there, "second")
                delivery = await give_one(hr, second)
                peer = await hr._shared.peer()
                # From here on the leader stores what it hears, and says nothing.
                peer.to_borrowers = lambda messages: None  # type: ignore[method-assign]
                await delivery.ack()
                assert delivery.value not in first.delivered
                await second.session.close()

    run(test())


def test_an_ack_that_no_leader_heard_of_is_refused_and_the_event_comes_again(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr, open_log(tmp_path / "d") as there:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            async with Worker(hr, "first", TEXT, start="earliest") as first:
                await until(lambda: first.session.units, "a leader")
                second = Worker(there, "second")
                delivery = await give_one(hr, second)
                peer = await hr._shared.peer()
                peer._receive = lambda messages: None  # type: ignore[method-assign]
                peer._answered = lambda pings: []  # type: ignore[method-assign]
                with pytest.raises(Fenced):
                    await delivery.ack()
                await until(lambda: first.acked[delivery.value], "the event to come again")
                await second.session.close()

    run(test())


def test_who_waits_too_long_is_told_that_it_is_not_known(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=1)
            await hr.shared_groups.declare("g", "orders.>", start="earliest")
            told: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
            settler = Settler(hr.host, patience_ms=50)
            settler.settle(Doubt(GROUP, UNIT, 1, 1, ((0, 1),)), told.set_result)
            assert await told is Verdict.UNKNOWN
            assert "orders/0" in str(AckUnsettledError(("orders/0",)))

    run(test())
