"""What nobody is left to record: the ends of leases, told by whoever is alive, once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

import headrace.sync
import headrace.testing
from headrace.catalog import Catalog, Tx, leases
from headrace.groups import decisions, lost
from headrace.groups.decisions import Decision, What
from headrace.groups.shared import sessions
from headrace.groups.shared.sessions import SessionRecord, Subscription
from tests.groups.readers.runtime.support import freeze, stop_detecting
from tests.support import until, wait_until

PIN = "pin.orders.billing.m1"


def decided(catalog: Catalog, group: str = "orders/billing") -> list[Decision]:
    return catalog.read(lambda tx: decisions.read(tx, group))


def test_the_only_instance_of_a_member_is_killed_and_that_is_told_once(catalog_url: str) -> None:
    with headrace.sync.open(catalog_url) as hr:
        hr.create_stream("orders", ["orders.>"], partitions=2)
        hr.groups.create_static("orders", "billing", max_members=2, members=["m1"])
        catalog = hr.client.log.catalog
        join = ["--catalog", catalog_url, "group", "join", "orders", "billing", "m1"]
        command = [sys.executable, "-m", "headrace", *join, "--pin-ttl-ms", "1000"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: catalog.leases.get(PIN), "the pin", 60)
            os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: [d for d in decided(catalog) if d.what is What.LOST], "its end", 60)
        [told] = [d for d in decided(catalog) if d.what is What.LOST]
        assert told.source == "m1"
        assert "was last heard at 20" in told.reason
        findings = hr.groups.explain("orders", "billing").findings
        assert any("m1 was lost" in each for each in findings), findings
        assert lost.look(catalog, "another") == 0
        assert len([d for d in decided(catalog) if d.what is What.LOST]) == 1


def test_the_end_of_a_leader_is_told_and_its_history_stays(catalog: Catalog) -> None:
    catalog.write(lambda tx: leases.seize(tx, "leader audit:orders.>", "p1", 1))
    wait_until(lambda: catalog.leases.get("leader audit:orders.>") is None, "its end")
    assert lost.look(catalog, "watchman-1") == 1
    assert lost.look(catalog, "watchman-1") == 0
    [told] = decided(catalog, "$share/audit/orders.>")
    assert (told.what, told.source) == (What.LOST, "p1")


@pytest.mark.parametrize(
    ("lease", "group"),
    [
        (PIN, "orders/billing"),
        ("leader audit:orders.>", "$share/audit/orders.>"),
        ("session worker", "$share/audit/orders.>"),
        ("reader/report/reader/r1", "reader/report"),
    ],
)
def test_what_nobody_is_left_to_record_is_recorded_within_two_seconds(
    catalog_url: str, lease: str, group: str
) -> None:
    ttl_ms = 5_000

    async def main() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"], partitions=2)
            await hr.groups.create_static("orders", "billing", max_members=2, members=["m1"])
            await hr.reader_groups.create("report", streams=["orders"])
            await hr.shared_groups.declare("audit", "orders.>")
            catalog = hr.log.catalog
            worker = Subscription("$share/audit/orders.>", "orders.>", shared=True)

            def die(tx: Tx) -> int:
                if lease == "session worker":
                    sessions.put(tx, _session(worker, tx.now_us()))
                return leases.seize(tx, lease, "somebody", ttl_ms).expires_us

            ended_us = catalog.write(die)

            def told() -> list[Decision]:
                return [d for d in decided(catalog, group) if d.what is What.LOST]

            await headrace.testing.driven_clock().advance(ttl_ms / 1000 - 0.5)
            assert not told()
            while not told():
                await headrace.testing.driven_clock().advance(0.1)
                late_us = catalog.read(lambda tx: tx.now_us()) - ended_us
                assert late_us <= 2_000_000, "two seconds after the end of the lease"
            [lost] = told()
            assert (lost.instance or lost.source, lost.at_us) == ("somebody", ended_us)
            assert "was last heard at" in lost.reason

    headrace.testing.run(main())


@pytest.mark.parametrize("heard", [True, False])
def test_a_member_that_died_with_the_leader_is_told_of_though_another_leads(
    catalog: Catalog, heard: bool
) -> None:
    group = "$share/audit/orders.>"
    joined = Decision(what=What.JOINED, reason="it has subscribed", target="worker")
    elected = Decision(what=What.ELECTED, reason="it takes over", target="p2")
    subscribed = Subscription(group, "orders.>", shared=True)

    def die(tx: Tx) -> None:
        sessions.put(tx, _session(subscribed, tx.now_us()))
        decisions.record(tx, group, [elected, joined] if heard else [joined, elected])
        leases.seize(tx, "leader audit:orders.>", "p2", 600_000)
        leases.seize(tx, "session worker", "p1", 1)

    catalog.write(die)
    wait_until(lambda: catalog.leases.get("session worker") is None, "its end")
    assert lost.look(catalog, "watchman-1") == 1
    told = [each.source for each in decided(catalog, group) if each.what is What.LOST]
    assert told == ([] if heard else ["worker"])  # who leads tells of those it has heard
    assert lost.look(catalog, "watchman-1") == 0


def _session(subscription: Subscription, now_us: int) -> SessionRecord:
    return SessionRecord(
        name="worker",
        persistent=True,
        expiry_ms=60_000,
        created_us=now_us,
        seen_us=now_us,
        subscriptions=(subscription,),
    )


def test_the_end_of_the_last_reader_is_told_once(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", subjects=["orders.>"], segments=2)
        group = await hr.reader_groups.create("report", streams=["orders"])
        await hr.publish("orders.x", b"1")
        first = group.reader("r1")
        await first.__aenter__()
        assert (await anext(aiter(first))).value == b"1"
        freeze(first)
        stop_detecting(first)
        catalog = hr.log.catalog

        def lost() -> list[Decision]:
            return [d for d in decided(catalog, "reader/report") if d.what is What.LOST]

        await until(lost)
        assert lost()[0].source == "r1"
        assert lost()[0].unit_count == 2
        assert "no other reader is online" in lost()[0].reason
        async with group.reader("r2") as second:
            assert (await anext(aiter(second))).value == b"1"
            assert len(lost()) == 1
            moves = [d for d in decided(catalog, "reader/report") if d.what is What.MOVES]
            assert moves[0].cause == lost()[0].number

    async def main() -> None:
        async with headrace.open(catalog_url) as hr:
            await work(hr)

    headrace.testing.run(asyncio.wait_for(main(), 120), autojump=True)
