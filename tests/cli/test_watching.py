"""Members that the command line runs do what every open program does for the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headrace.sync
from headrace.catalog import leases
from headrace.groups import decisions
from headrace.groups.decisions import What
from tests.support import wait_until


@pytest.mark.parametrize(
    "member",
    [
        ("group", "join", "orders", "billing", "m2"),
        ("subscribe", "$share/audit/orders.>"),
        ("reader", "read", "report", "r1"),
    ],
)
def test_a_member_at_the_command_line_records_who_was_lost(
    tmp_path: Path, member: tuple[str, ...]
) -> None:
    folder = str(tmp_path / "data")
    with headrace.sync.open(folder, housekeeping=False) as hr:
        hr.create_stream("orders", ["orders.>"], partitions=2)
        hr.groups.create_static("orders", "billing", max_members=2, members=["m1", "m2"])
        hr.reader_groups.create("report", ["orders"])
        catalog = hr.client.log.catalog
        catalog.write(lambda tx: leases.seize(tx, "pin.orders.billing.m1", "p1", 1))
        command = [sys.executable, "-m", "headrace", "--catalog", folder, *member]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
            try:
                [told] = wait_until(
                    lambda: [
                        each
                        for each in catalog.read(lambda tx: decisions.read(tx, "orders/billing"))
                        if each.what is What.LOST
                    ],
                    "the end of m1",
                    60,
                )
            finally:
                running.kill()
    assert (told.source, told.instance) == ("m1", "p1")
