"""Snapshots by command: one is taken now, those of the log are listed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from headrace import sync
from headrace.cli import run
from headrace.errors import InvalidInputError, LinkError
from headrace.regions.losing import set_state
from headrace.regions.records import AGENT_LEASE
from headrace.regions.snapshots import AskedSnapshot
from headrace.regions.taking import TakeReport, list_snapshots, take_snapshots
from tests.regions.runtime.test_groups import in_loop, publish, running, two_regions
from tests.regions.runtime.test_snapshots import (
    GROUP,
    SnapshotPlace,
    enable,
    exchange,
    head_of,
    regions,
)
from tests.regions.runtime.test_snapshotting import TWO
from tests.support import until, wait_until


@contextmanager
def asking(place: SnapshotPlace) -> Iterator[list[TakeReport]]:
    """Somebody asks for a snapshot; the place's agent is stepped by the test meanwhile."""
    place.log.catalog.leases.acquire(AGENT_LEASE, "test", 60_000)
    found: list[TakeReport] = []
    thread = threading.Thread(target=lambda: found.append(take_snapshots(place.log, "orders")))
    thread.start()
    try:
        yield found
    finally:
        thread.join()


def hear(place: SnapshotPlace, before: AskedSnapshot | None) -> None:
    """The agent works until it has heard of the wish."""

    def has_heard() -> bool:
        place.agent.step()
        return place.state().asked != before

    wait_until(has_heard, "the wish")


@in_loop
async def test_a_snapshot_is_taken_now_without_traffic_and_stands_in_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with two_regions(tmp_path, TWO) as (eu, us):
        await eu.groups.create_static(
            "orders", "billing", max_members=2, members=("m1",), home="eu", mode="snapshot"
        )
        with running(eu, us):
            await publish(eu, "eu", 10)
            await until(lambda: list_snapshots(eu.log, "orders"), "one by itself", 30)
            took = await asyncio.to_thread(
                run, ["--catalog", str(tmp_path / "eu"), "region", "snapshot", "now", "orders"]
            )
            assert took == 0
            assert capsys.readouterr().out.splitlines() == [
                "segment 0: complete",
                "segment 1: complete",
            ]
            done = await eu.regions.snapshot_now("orders")
        assert done.complete
        listed = await eu.regions.snapshots("orders", limit=1)
        assert [each.snapshot_id for each in listed] == [x.snapshot_id for x in done.snapshots]
        assert [list(each.positions) for each in listed] == [["us"], ["us"]]
    with sync.open(tmp_path / "eu") as hr:
        assert hr.regions.snapshots("orders", limit=1) == listed
    run(["--catalog", str(tmp_path / "eu"), "region", "snapshot", "list", "orders", "--json"])
    lines = msgspec.json.decode(capsys.readouterr().out)
    assert lines[-1]["snapshot_id"] == listed[-1].snapshot_id
    assert lines[-1]["there_offsets"] == listed[-1].positions


def test_a_list_says_who_has_passed_a_snapshot(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        for _ in range(2):
            eu.publish(2)
            exchange(eu, us)
        first, second = list_snapshots(eu.log, "orders")
        eu.ack(floor=first.local + 1)
        exchange(eu, us)
        assert [each.passed_by for each in list_snapshots(eu.log, "orders")] == [(GROUP,), ()]
        assert first.local < second.local
        eu.ack(floor=head_of(eu))
        exchange(eu, us)
        (newest,) = list_snapshots(eu.log, "orders", 1)
        assert (newest.snapshot_id, newest.passed_by) == (second.snapshot_id, (GROUP,))


def test_who_asks_is_told_why_there_is_none(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us", timeout_ms=0) as (eu, us):
        with pytest.raises(LinkError, match="no group of stream 'orders' is replicated by snap"):
            take_snapshots(eu.log, "orders")
        enable(eu)
        exchange(eu, us)
        with pytest.raises(LinkError, match="no agent runs here"):
            take_snapshots(eu.log, "orders")
        with pytest.raises(InvalidInputError, match="timeout_s"):
            take_snapshots(eu.log, "orders", timeout_s=0)
        with pytest.raises(InvalidInputError, match="limit"):
            list_snapshots(eu.log, "orders", 0)
        set_state(us.log, "eu", "paused")
        before = eu.state().asked
        with asking(eu) as reports:
            hear(eu, before)
        assert reports[0].snapshots[0].outcome == "a member cannot be reached: us"
        set_state(us.log, "eu", "active")
        before = eu.state().asked
        with asking(eu) as reports:
            hear(eu, before)
            assert eu.state().pending
            eu.agent.step()
        assert reports[0].snapshots[0].outcome == "a member did not answer in time: us"


def test_who_asked_an_agent_that_died_is_told(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        exchange(eu, us)
        before = eu.state().asked
        with asking(eu) as reports:
            hear(eu, before)
            assert eu.state().pending
            eu.restart()
            eu.agent.step()
        assert reports[0].snapshots[0].outcome == "the agent was started anew meanwhile"
        assert not reports[0].complete
        exchange(eu, us)  # us answers what nobody waits for
