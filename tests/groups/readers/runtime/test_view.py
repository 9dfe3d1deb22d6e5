"""Reader groups are looked at like the others: one name, one shape, one lag."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import headrace
from headrace.catalog import Tx, leases
from headrace.catalog.streams import StreamConfig
from headrace.cli import run
from headrace.errors import AmbiguousGroupNameError
from headrace.groups import kinds, looks, names, view
from headrace.groups.partitioned import admin as partitioned
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join
from headrace.groups.readers import admin, info
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.shapes import GroupView
from headrace.log.events import Event
from headrace.log.log import Log
from tests.groups.readers.runtime.support import Taken, send
from tests.groups.readers.runtime.support import run as in_clock
from tests.support import until

NAME = ReaderGroupName("report")


def made(log: Log, *streams: str, end: object = None, filter: str | None = None) -> None:
    config = admin.group_config(
        retain="nothing", checkpoint_every_s=None, checkpoints_kept=1, checkpoints_outstanding=3
    )
    admin.create(
        log, "report", given=streams, start="earliest", end=end, filter=filter, config=config
    )


def append(log: Log, count: int, stream: str = "orders") -> None:
    log.append(stream, [Event(subject=f"{stream}.{n}", value=bytes(50)) for n in range(count)])


def seen(log: Log, name: str = "reader/report") -> GroupView:
    """One group, which has to look the same among all."""
    one = looks.of_one(log.catalog, name)
    (same,) = [each for each in looks.of_all(log.catalog) if each.group == one.group]
    assert _steady(one) == _steady(same)
    return one


def _steady(found: GroupView) -> GroupView:
    still = tuple(msgspec.structs.replace(unit, seconds=0.0) for unit in found.units)
    lag = msgspec.structs.replace(found.lag, seconds=0.0)
    return msgspec.structs.replace(found, units=still, lag=lag, findings=())


def test_a_group_that_nobody_reads_is_behind_and_says_so(log: Log) -> None:
    for stream in ("orders", "clicks"):
        log.create_stream(stream, StreamConfig(subjects=(f"{stream}.>",)), segments=2)
    made(log, "orders", "clicks")
    found = seen(log)
    assert (found.kind, found.streams, found.stream) == ("reader", ("orders", "clicks"), None)
    (nobody,) = found.findings
    assert (nobody.finding, nobody.needs_person) == ("no_members", False)
    append(log, 20)
    append(log, 4, "clicks")
    found = seen(log, "report")
    assert (found.lag.events, found.lag.exact) == (24, True)
    assert {unit.state for unit in found.units} == {"unowned"}
    assert [each.needs_person for each in found.findings] == [True]
    own = info.read_lag(log.catalog, "report")
    assert (found.lag.events, found.lag.bytes) == (own.events, own.bytes)
    segment = log.stream("orders").segments[0]
    rows = {segment.id: Progress(segment.head)}
    log.catalog.write(lambda tx: join(tx, NAME.key, rows))
    own = info.read_lag(log.catalog, "report")
    assert seen(log).lag.events == own.events == 24 - segment.head


def test_a_filter_makes_an_upper_bound_and_an_end_is_the_end(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    append(log, 10)
    made(log, "orders", end={"orders/0": 6}, filter="orders.1")
    append(log, 10)
    found = seen(log)
    assert (found.lag.events, found.lag.exact, found.stream) == (6, False, "orders")
    assert info.read_lag(log.catalog, "report").events == 6


def test_readers_are_members_and_a_dead_one_is_a_finding(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=4)
        group = await hr.reader_groups.create("report", streams=["orders"])
        taken = Taken()
        async with group.reader("r1") as r1, group.reader("r2") as r2:
            taken.start(r1, r2)
            await send(hr, *range(40))
            await until(lambda: len(taken.got) == 40)
            await until(lambda: len(r1.status.segments) == len(r2.status.segments) == 2)
            found = await hr.groups.get("report")
            assert found.group == "reader/report"
            assert (found.members_active, found.members_wanted) == (2, 2)
            assert [(m.member, m.state, m.units) for m in found.members] == [
                ("r1", "active", 2),
                ("r2", "active", 2),
            ]
            assert {unit.state for unit in found.units} == {"owned"}
            assert all(unit.token and unit.instance for unit in found.units)
            assert found.findings == ()
            assert await hr.groups.members("reader/report") == found.members
            assert (await hr.groups.lag("report")).events == 0
            told = await hr.groups.explain("report")
            assert told.decisions == await hr.groups.decisions("report")
            assert told.decisions
            catalog = hr.log.catalog
            now_us = catalog.read(lambda tx: tx.now_us())
            lost = catalog.read(
                lambda tx: _later(tx, leases.get(tx, NAME.lease("r1")), now_us), snapshot=True
            )
            (finding,) = lost.findings
            assert (finding.finding, finding.needs_person) == ("member_lost", True)
            assert "'r1'" in finding.sentence

    in_clock(catalog_url, work)


def _later(tx: Tx, lease: leases.Lease | None, now_us: int) -> GroupView:
    """The group as it is seen when the lease of r1 ran out a minute ago, and that of r2 did not."""
    assert lease is not None
    name = names.resolve(tx, "report")
    kind = kinds.kind("reader")
    assert kind is not None
    picture = view.picture_of_all(tx, names.all_names(tx))
    old = leases.Ended(lease.name, lease.owner, lease.token, now_us - 60_000_000, 0, told=False)
    picture.leases = {**picture.leases, lease.name: old}
    found = kind.view(name, picture)
    assert [member.state for member in found.members] == ["lost", "active"]
    assert {unit.state for unit in found.units if unit.member == "r1"} == {"unowned"}
    return found


def test_a_group_of_a_stream_called_reader_is_another(
    log: Log, catalog_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log.create_stream("reader", StreamConfig(subjects=("reader.*",), partitions=2))
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    partitioned.create_static(log, "reader", "report", max_members=2, members=["m1", "m2"])
    made(log, "orders")

    def said(*words: str) -> Any:
        capsys.readouterr()
        assert run(["--catalog", catalog_url, "--json", "group", *words]) == 0
        return json.loads(capsys.readouterr().out)

    listed = [(each["group"], each["kind"]) for each in said("ls")]
    assert listed == [("partitioned/reader/report", "static"), ("reader/report", "reader")]
    assert said("info", "reader/report")["kind"] == "reader"
    assert said("info", "reader", "report")["kind"] == "static"
    assert said("info", "partitioned/reader/report")["kind"] == "static"
    assert said("lag", "reader/report")["kind"] == "reader"
    assert said("explain", "partitioned/reader/report")["group"]["kind"] == "static"
    ours, theirs = (said("decisions", n) for n in ("reader/report", "partitioned/reader/report"))
    assert "a reader group on orders" in ours[0]["reason"]
    assert all("a reader group" not in each["reason"] for each in theirs)
    with pytest.raises(AmbiguousGroupNameError):
        looks.of_one(log.catalog, "report")
    start = looks.of_one(log.catalog, "partitioned/reader/report").findings[0].next
    assert start == "start one: headrace group join reader report m1"


def test_a_group_whose_state_is_damaged_does_not_hide_the_others(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    made(log, "orders")
    log.catalog.write(lambda tx: tx.execute("DELETE FROM reader_snapshots"))
    (found,) = looks.of_all(log.catalog)
    assert [each.finding for each in found.findings] == ["unreadable"]
