"""Regions as real processes that are killed: every log ends up the same, groups stay exact."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headrace
from headrace.catalog.streams import StreamConfig
from headrace.regions import moving
from headrace.regions.records import AGENT_LEASE
from headrace.regions.runtime.neighbours import Neighbours
from tests.regions.runtime.test_groups import PARTITIONED, consume, in_loop, two_regions
from tests.regions.runtime.world import Place, assert_same, graph, linked
from tests.support import until, wait_until

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ``headrace region run`` on a catalog; what still runs is killed after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(url: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headrace", "--catalog", url, "region", "run"]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_killed_in_the_middle_both_regions_hold_everything_once(
    tmp_path: Path, start: Start
) -> None:
    rng = random.Random(11)
    eu, us = Place("eu", str(tmp_path / "eu")), Place("us", str(tmp_path / "us"))
    linked([eu, us])
    linked([eu, us], "scaled", writers="eu", config=StreamConfig(subjects=("scaled.>",)))
    running = {place.name: start(place.url) for place in (eu, us)}
    try:
        for turn in range(40):
            for place in (eu, us):
                place.publish(rng.randrange(1, 40))
            eu.publish(rng.randrange(1, 40), stream="scaled")
            if turn % 8 == 7:
                scale(eu, rng)
            if turn % 13 == 12:
                victim = rng.choice([eu, us])
                running[victim.name].send_signal(signal.SIGKILL)
                running[victim.name].wait()
                running[victim.name] = start(victim.url)
            time.sleep(rng.random() * 0.05)
        wait_until(lambda: eu.lane_ends() == us.lane_ends(), "the copies", 60)
        assert_same([eu, us])
        wait_until(lambda: eu.lane_ends("scaled") == us.lane_ends("scaled"), "the splits", 60)
        assert_same([eu, us], "scaled")
        assert graph(eu, "scaled") == graph(us, "scaled")
    finally:
        eu.close()
        us.close()


def scale(place: Place, rng: random.Random) -> None:
    """Split a segment of the stream, or merge two."""
    segments = place.log.stream("scaled").open_segments
    at = rng.randrange(len(segments))
    if len(segments) > 3:
        at = min(at, len(segments) - 2)
        place.log.merge("scaled", [segments[at].number, segments[at + 1].number])
    else:
        place.log.split("scaled", segments[at].number)


@in_loop
async def test_a_group_switched_between_killed_processes_is_exact(
    tmp_path: Path, start: Start
) -> None:
    """Members consume with acks out of order; agents are killed before the switch and restarted."""
    near = Neighbours()
    random.seed(5)
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        await eu.groups.create_static("orders", "billing", max_members=4, members=["m1", "m2"])
        await eu.regions.enable("orders", "billing", home="eu")
        processes = [start(str(tmp_path / name)) for name in ("eu", "us")]

        async def publish(client: headrace.Headrace, name: str, count: int) -> None:
            for at in range(count):
                await client.publish(f"orders.{at % 7}", f"{name}-{at}".encode(), key=str(at % 11))

        await asyncio.gather(publish(eu, "eu", 80), publish(us, "us", 80))
        acked, left = await consume(eu, 120, lambda: random.random() < 0.7, ("m1", "m2"))
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        processes = [start(str(tmp_path / name)) for name in ("eu", "us")]
        tokens = {client: client.log.catalog.leases.get(AGENT_LEASE) for client in (eu, us)}

        def runs_anew(client: headrace.Headrace) -> bool:
            lease, before = client.log.catalog.leases.get(AGENT_LEASE), tokens[client]
            return lease is not None and (before is None or lease.token > before.token)

        await until(lambda: runs_anew(eu) and runs_anew(us), timeout_s=60)
        report = await asyncio.to_thread(moving.switch, eu.log, "orders.billing", "us", near)
        assert report.target == "us"
        rest, _ = await consume(us, 160 - len(acked), lambda: True, ("m1", "m2"))
        assert (await us.regions.check("orders", deep=True)).agrees
    near.close()
    everything = [b"%s-%d" % (name, at) for name in (b"eu", b"us") for at in range(80)]
    assert sorted(acked + rest) == sorted(everything)
    assert set(left) <= set(rest)
