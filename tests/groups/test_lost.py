"""What nobody is left to record: the ends of leases, told by whoever is alive, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import headrace.sync
from headrace.catalog import Catalog, leases
from headrace.groups import decisions, lost
from headrace.groups.decisions import Decision, What
from tests.support import wait_until

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
