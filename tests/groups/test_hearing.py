"""Until the lease of a process that was killed ends, it is said when it was last heard."""

from __future__ import annotations

import asyncio

import headrace
import headrace.testing
from headrace.catalog import Tx, leases
from headrace.catalog.leases import Ended
from headrace.groups import hearing
from headrace.groups.shapes import GroupMember, GroupView
from headrace.groups.shared import properties
from headrace.groups.shared.properties import BorrowerStatus, LeaderStatus
from headrace.groups.shared.runtime.state import lease_name

TTL_MS = 10_000


def test_a_leader_and_its_members_that_died_do_not_look_well(catalog_url: str) -> None:
    key = "audit:orders.>"

    def lead(tx: Tx) -> None:
        lease = leases.seize(tx, lease_name(key), "p1", TTL_MS)
        leases.seize(tx, "session w1", "p1", TTL_MS)
        member = BorrowerStatus(member="w1:1", session="w1", units=1, share=1)
        status = LeaderStatus(leader="p1", token=lease.token, at_us=0, members=(member,))
        properties.put_status(tx, key, status)

    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", subjects=["orders.>"])
        await hr.shared_groups.declare("audit", "orders.>")
        hr.log.catalog.write(lead)
        well = await hr.groups.get("audit")
        assert [member.state for member in well.members] == ["active"]
        assert well.leader_heard_at is not None
        assert not _findings(well)
        await headrace.testing.driven_clock().advance(0.7 * TTL_MS / 1000)
        late = await hr.groups.get("audit")
        assert (late.leader, late.leader_heard_at) == ("p1", well.leader_heard_at)
        assert [member.state for member in late.members] == ["silent"]
        assert late.members[0].why.startswith("not heard for 7 s; its lease ends 2030-")
        leader, member = late.findings
        assert leader.sentence == "its leader p1 is not heard for 7 s"
        assert leader.next.startswith("if it is dead, another takes over 2030-")
        assert member.sentence.startswith("w1 (w1:1) is not heard for 7 s")
        assert _findings(late) == {"leader_silent", "member_silent"}
        assert not any(finding.needs_person for finding in late.findings)
        await headrace.testing.driven_clock().advance(0.4 * TTL_MS / 1000)
        lost = await hr.groups.get("audit")
        assert lost.leader is None
        assert "leader_lost" in _findings(lost)

    run(catalog_url, work)


def test_an_instance_that_died_does_not_look_well(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", subjects=["orders.>"], partitions=2)
        await hr.groups.create_static("orders", "billing", max_members=2, members=["m1"])
        pin = "pin.orders.billing.m1"
        hr.log.catalog.write(lambda tx: leases.seize(tx, pin, "box.1", TTL_MS))
        await headrace.testing.driven_clock().advance(0.5 * TTL_MS / 1000)
        assert "member_silent" not in _findings(await hr.groups.get("billing"))
        await headrace.testing.driven_clock().advance(0.2 * TTL_MS / 1000)
        found = await hr.groups.get("billing")
        assert [member.state for member in found.members] == ["silent"]
        assert "member_silent" in _findings(found)

    run(catalog_url, work)


def test_a_session_that_no_leader_has_taken_in_may_be_dead_too() -> None:
    lease = Ended("session w1", "p1", 1, expires_us=30_000_000, heard_us=1, told=False)
    waits = GroupMember(member="w1", state="stands by", why="p1 runs it")
    assert hearing.heard(waits, lease, 5_000_000).why == "p1 runs it"
    late = hearing.heard(waits, lease, 20_000_000)
    [finding] = hearing.silent("audit", [late])
    assert finding.sentence.startswith("w1 is not heard for 19 s; its lease ends 1970-01-01")


def _findings(view: GroupView) -> set[str]:
    return {finding.finding for finding in view.findings}


def run(catalog_url: str, work: object) -> None:
    async def main() -> None:
        async with headrace.open(catalog_url, housekeeping=False) as hr:
            await work(hr)  # type: ignore[operator]

    headrace.testing.run(asyncio.wait_for(main(), 120))
