"""When the event loop commits and reads by itself, and when it never does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace.sync
from headrace.catalog import Catalog
from headrace.catalog.committer import Committer, Operation, nobody
from headrace.host import loads
from headrace.host.loads import HELD_UP_S, SEEN_MIN, WINDOW, Loads, Quick
from tests.api.test_client import rows_of, run, table_of

SLOW_S = 10 * HELD_UP_S
QUICK_S = HELD_UP_S / 2


def judge(*durations: float, seen_min: int = 0) -> Quick:
    quick = Quick(seen_min=seen_min)
    for took_s in durations:
        quick.add(took_s)
    return quick


# --- the slow ones count --------------------------------------------------------------------


def test_a_disk_that_is_slow_every_tenth_time_is_for_a_thread_whatever_its_average() -> None:
    assert not judge(*([QUICK_S / 100] * 9 + [1.01 * HELD_UP_S]) * 20).on


def test_one_in_a_hundred_that_was_held_up_changes_nothing() -> None:
    assert judge(*[QUICK_S] * 100, 100.0).on
    assert not judge(*[QUICK_S] * 100, 100.0, QUICK_S, SLOW_S).on


def test_a_disk_that_became_quick_is_trusted_again() -> None:
    quick = judge(*[SLOW_S] * WINDOW)
    for _ in range(WINDOW - 2):
        quick.add(QUICK_S)
        assert not quick.on
    quick.add(QUICK_S)
    assert quick.on


def test_commits_are_for_a_thread_until_enough_were_seen() -> None:
    assert not judge(*[QUICK_S] * (SEEN_MIN - 1), seen_min=SEEN_MIN).on
    assert judge(*[QUICK_S] * SEEN_MIN, seen_min=SEEN_MIN).on
    assert judge(seen_min=0).on


def commit_here(policy: Loads, *, sync: bool) -> bool:
    return policy.commit([Operation(lambda tx: tx.now_us(), (), sync, nobody)], sync=sync)


def test_synced_commits_are_judged_by_themselves(catalog: Catalog) -> None:
    policy = Loads(catalog)
    assert not commit_here(policy, sync=False)
    for _ in range(SEEN_MIN):
        policy.committed(SLOW_S, sync=True)
        policy.committed(QUICK_S, sync=False)
    assert not commit_here(policy, sync=True)
    assert commit_here(policy, sync=False) == catalog.quick


def test_reads_that_turn_out_to_be_slow_are_for_a_thread(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Loads(catalog)
    assert policy.read(lambda: 5) == 5
    assert policy.may_read == catalog.quick
    monkeypatch.setattr(loads, "HELD_UP_S", -1.0)
    policy.read(lambda: None)
    policy.read(lambda: None)
    assert not policy.may_read


CROWDED = """
import os, subprocess, sys, time

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(flush=True)
if sys.argv[1:] == ["spin"]:
    while True:
        pass
from headrace.host.loads import Stopwatch

beside = [sys.executable, "-c", sys.orig_argv[2], "spin"]
others = [subprocess.Popen(beside, stdout=subprocess.PIPE) for _ in range(2)]
try:
    for other in others:
        other.stdout.readline()
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        watch, began_s, began_cpu_s = Stopwatch(), time.perf_counter(), time.process_time()
        while time.process_time() - began_cpu_s < 0.05:
            pass
        held_up_s, took_s = watch.held_up_s(), time.perf_counter() - began_s
        if held_up_s < 0.8 * took_s:
            break
    print(held_up_s, took_s)
finally:
    for other in others:
        other.kill()
"""
"""Computes for 50 ms with two rivals on its CPU, until they did take it away for a while."""


def test_time_that_others_have_the_cpu_does_not_count_but_work_does() -> None:
    # A process of its own, with one thread: to hand over the GIL is to wait, and counts.
    ran = subprocess.run(
        [sys.executable, "-c", CROWDED], check=True, text=True, stdout=subprocess.PIPE
    )
    held_up_s, took_s = map(float, ran.stdout.split())
    assert HELD_UP_S < held_up_s < 0.8 * took_s


def test_time_that_is_waited_counts() -> None:
    watch = loads.Stopwatch()
    time.sleep(0.02)
    assert watch.held_up_s() >= 0.02
    assert watch.waited_s() > 0


# --- on which thread ------------------------------------------------------------------------


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[headrace.Headrace], set[int]]:
    """Tells on which threads a program commits and reads from now on."""
    monkeypatch.setattr(loads, "HELD_UP_S", 60.0)
    monkeypatch.setattr(loads, "SEEN_MIN", 0)

    def watch(hr: headrace.Headrace) -> set[int]:
        seen: set[int] = set()
        catalog = hr.log.catalog
        read, process = catalog.read, Committer._process

        def watched_read(*args: Any, **how: Any) -> Any:
            seen.add(threading.get_ident())
            return read(*args, **how)

        def watched_process(*args: Any, **how: Any) -> Any:
            seen.add(threading.get_ident())
            return process(*args, **how)

        monkeypatch.setattr(catalog, "read", watched_read)
        monkeypatch.setattr(Committer, "_process", watched_process)
        return seen

    return watch


async def do_everything(hr: headrace.Headrace) -> None:
    """Publish, append, read, follow and consume in every way."""
    await hr.create_stream("a", subjects=["a.>"], partitions=2)
    tail = hr.tail("a")
    heard = asyncio.create_task(anext(aiter(tail)))
    await hr.publish("a.1", b"0")
    await hr.publish("a.1", b"1", producer="p", sequence=1)
    await hr.append("a", table_of(["a.1"] * 3, [b"2", b"3", b"4"]))
    await hr.append("a", table_of(["a.1"], [b"5"]), producer="p", sequence=2)
    async with hr.appender("a") as appender:
        for at in range(20):
            await appender.append(table_of(["a.1"], [b"%d" % (6 + at)]))
    async with hr.transaction() as tx:
        tx.publish("a.1", b"26")
        tx.append("a", table_of(["a.1"], [b"27"]))
    assert [row["value"] for row in await rows_of(hr, "a")] == [b"%d" % at for at in range(28)]
    await heard
    await tail.close()
    await hr.groups.create_static("a", "g", max_members=2, members=["m"])
    async with hr.join("a", "g", member="m") as member:
        for at in range(10):
            delivery = await anext(aiter(member))
            if at % 2:
                await delivery.ack()
            else:
                async with delivery.transaction() as output:
                    output.publish("a.3", b"")
    async with hr.session("s") as session:
        await session.subscribe("$share/h/a.>")
        for _ in range(10):
            await hr.publish("a.4", b"")
            await (await anext(aiter(session))).ack()


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_the_event_loop_commits_and_reads_nothing_when_told_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_threads: Callable[[headrace.Headrace], set[int]],
    way: str,
) -> None:
    if way == "environment":
        monkeypatch.setenv("HEADRACE_LOOP_IO", "0")

    async def work() -> None:
        async with headrace.open(tmp_path / "d", loop_io=way == "environment") as hr:
            seen = on_threads(hr)
            await do_everything(hr)
            assert seen
            assert threading.get_ident() not in seen

    run(work())


def test_the_event_loop_commits_and_reads_where_that_is_quick(
    tmp_path: Path, on_threads: Callable[[headrace.Headrace], set[int]]
) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            seen = on_threads(hr)
            await do_everything(hr)
            assert threading.get_ident() in seen

    run(work())


@pytest.mark.parametrize("loop_io", [False, True])
def test_scripts_may_switch_it_off_too(
    tmp_path: Path, on_threads: Callable[[headrace.Headrace], set[int]], loop_io: bool
) -> None:
    with headrace.sync.open(tmp_path / "d", loop_io=loop_io) as hr:
        seen = on_threads(hr.client)
        hr.run(do_everything(hr.client))
        hr.publish("a.5", b"")
        assert (hr.loop._thread_id in seen) == loop_io  # type: ignore[attr-defined]
