"""Appending in a plain loop: in order, bounded, durable at a flush, and never past a failure."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
import headrace.sync
from headrace.catalog.sqlite_writer import LOCK_FILE
from headrace.errors import (
    AppenderClosedError,
    InvalidEventError,
    UnknownStreamError,
)
from headrace.host.pipelined import WAITING_APPENDS
from tests.api.test_client import rows_of, run, table_of

APPENDS = 100
ROWS = 50


def numbered(number: int, rows: int = ROWS) -> pa.Table:
    """Events of a few keys; each value tells the append and the row."""
    return table_of(
        [f"a.{row % 3}" for row in range(rows)],
        [b"%d %d" % (number, row) for row in range(rows)],
        [f"k{row % 7}" for row in range(rows)],
    )


async def values_of(hr: headrace.Headrace, stream: str = "a") -> list[bytes]:
    return [row["value"] for row in await rows_of(hr, stream)]


async def check_order(hr: headrace.Headrace, appends: int) -> None:
    """All events of these appends are there once, and those of each key in their order."""
    by_key: dict[str, list[tuple[int, ...]]] = {}
    for row in await rows_of(hr, "a"):
        by_key.setdefault(row["key"], []).append(tuple(map(int, row["value"].split())))
    wanted = [(number, row) for number in range(appends) for row in range(ROWS)]
    assert sorted(spot for spots in by_key.values() for spot in spots) == wanted
    for spots in by_key.values():
        assert spots == sorted(spots)


@pytest.mark.parametrize("segments", [1, 4])
def test_a_plain_loop_shares_commits_and_keeps_its_order(catalog_url: str, segments: int) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url, housekeeping=False) as hr:
            await hr.create_stream("a", subjects=["a.>"], segments=segments)
            before = hr.log.catalog.statistics()["commits"]
            async with hr.appender("a") as appender:
                for number in range(APPENDS):
                    await appender.append(numbered(number))
            assert hr.log.catalog.statistics()["commits"] - before < APPENDS / 4
            await check_order(hr, APPENDS)

    run(work())


def test_what_was_flushed_is_durable_and_more_may_follow(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr, headrace.open(catalog_url) as other:
            await hr.create_stream("a", subjects=["a.>"], segments=2)
            appender = hr.appender("a")
            await appender.flush()
            for number in range(10):
                await appender.append(numbered(number))
                if number % 4 == 3:
                    await appender.flush()
                    assert len(await values_of(other)) == (number + 1) * ROWS
            await appender.append(headrace.Event(subject="a.x", value=b"10 0", key="k0"))
            await appender.append([])
            await appender.close()
            assert len(await values_of(other)) == 10 * ROWS + 1
            with pytest.raises(AppenderClosedError, match="make another"):
                await appender.append(numbered(11))

    run(work())


def test_order_is_kept_while_segments_split_and_merge(catalog_url: str) -> None:
    async def work() -> None:
        async with (
            headrace.open(catalog_url) as hr,
            headrace.open(catalog_url) as other,
            hr.appender("a") as appender,
        ):
            await hr.create_stream("a", subjects=["a.>"], segments=1)

            async def scale() -> None:
                # Another program scales, so that the appender's routes are stale every time.
                at = 0
                for _ in range(3):
                    halves = (await other.split("a", at)).opened
                    (at,) = (await other.merge("a", halves)).opened

            scaling = asyncio.create_task(scale())
            number = 0
            while number < APPENDS or not scaling.done():
                await appender.append(numbered(number))
                number += 1
                await asyncio.sleep(0)
            await scaling
            await appender.flush()
            await check_order(hr, number)

    run(work())


def test_bad_events_raise_at_their_call_and_change_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("a", subjects=["a.>"], segments=2)
            async with hr.appender("a") as appender:
                await appender.append(numbered(0))
                for subject in ("a..b", "elsewhere.b"):
                    with pytest.raises(InvalidEventError):
                        await appender.append(table_of(["a.b", subject], [b"", b""]))
                await appender.append(numbered(1))
            await check_order(hr, 2)
            with pytest.raises(UnknownStreamError):
                await hr.appender("nowhere").append(numbered(0))

    run(work())


def test_nothing_behind_a_failure_is_written(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr, headrace.open(catalog_url) as other:
            await hr.create_stream("a", subjects=["a.>"], segments=2)
            appender = hr.appender("a")
            await appender.append(numbered(0))
            await appender.flush()
            # The first has not heard of it.
            await other.delete_stream("a")
            await appender.append(numbered(1))
            await appender.append(numbered(2))
            with pytest.raises(UnknownStreamError) as raised:
                await appender.flush()
            assert raised.value.__notes__ == [
                "2 appends were on their way and are not known to be stored"
            ]
            await other.create_stream("a", subjects=["a.>"])
            for call in (appender.append(numbered(3)), appender.flush(), appender.close()):
                with pytest.raises(UnknownStreamError):
                    await call
            assert await values_of(other) == []
            with pytest.raises(UnknownStreamError):
                await fail_in_a_block(hr, other)

    run(work())


async def fail_in_a_block(hr: headrace.Headrace, other: headrace.Headrace) -> None:
    async with hr.appender("a") as appender:
        await appender.append(numbered(0))
        await appender.flush()
        await other.delete_stream("a")
        await appender.append(numbered(1))


async def give_up(hr: headrace.Headrace) -> None:
    async with hr.appender("a") as appender:
        await appender.append(numbered(0))
        raise RuntimeError("changed my mind")


def test_the_error_of_a_block_is_not_hidden(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr, headrace.open(tmp_path / "d") as other:
            await hr.create_stream("a", subjects=["a.>"])
            with pytest.raises(RuntimeError, match="changed my mind"):
                await give_up(hr)
            await check_order(hr, 1)
            await other.delete_stream("a")
            with pytest.raises(RuntimeError, match="changed my mind"):
                await give_up(hr)

    run(work())


def test_a_loop_waits_when_nothing_can_be_stored(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d", housekeeping=False) as hr:
            await hr.create_stream("a", subjects=["a.>"])
            appender = hr.appender("a")
            await appender.append(numbered(0))
            await appender.flush()
            # As another process does that is writing.
            with open(tmp_path / "d" / LOCK_FILE) as gate:
                fcntl.flock(gate, fcntl.LOCK_EX)
                given = 1
                with suppress(TimeoutError):
                    while given <= 2 * WAITING_APPENDS + 1:
                        await asyncio.wait_for(appender.append(numbered(given)), 0.5)
                        given += 1
                assert WAITING_APPENDS < given <= 2 * WAITING_APPENDS + 1
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(appender.flush(), 0.05)
            # The one that was given up in its turn was not appended.
            await appender.close()
            await check_order(hr, given)

    run(work())


def test_closing_the_log_finishes_what_is_on_its_way(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("a", subjects=["a.>"])
            for number in range(3):
                await hr.appender("a").append(numbered(number))
        async with headrace.open(tmp_path / "d") as hr:
            assert len(await values_of(hr)) == 3 * ROWS

    run(work())


def test_scripts_have_it_too(catalog_url: str) -> None:
    with headrace.sync.open(catalog_url) as hr:
        hr.create_stream("a", subjects=["a.>"], segments=2)
        with hr.appender("a") as appender:
            appender.append(numbered(0))
            appender.flush()
            for number in range(1, 20):
                appender.append(numbered(number))
        hr.run(check_order(hr.client, 20))
        with pytest.raises(AppenderClosedError):
            appender.append(numbered(20))
        appender.close()


def test_threads_may_share_one(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d") as hr, hr.appender("a") as appender:
        hr.create_stream("a", subjects=["a.>"])

        def give(thread: int) -> None:
            for number in range(APPENDS):
                event = headrace.Event(subject="a.x", value=b"%d" % number, key=f"k{thread}")
                appender.append(event)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(give, range(4)))
        appender.flush()
        rows = [row for batch in hr.read("a") for row in batch.to_pylist()]
        for thread in range(4):
            own = [int(row["value"]) for row in rows if row["key"] == f"k{thread}"]
            assert own == list(range(APPENDS))


_WRITER = """
import asyncio, sys, headrace
from tests.api.test_appender import numbered

async def main():
    async with headrace.open(sys.argv[1]) as hr, hr.appender("a") as appender:
        number = 0
        while True:
            await appender.append(numbered(number))
            number += 1
            if number % 20 == 0:
                await appender.flush()
                print(number, flush=True)

asyncio.run(main())
"""


def test_after_a_kill_the_log_holds_what_was_given_first(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("a", subjects=["a.>"], segments=2)
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path / "d")], stdout=subprocess.PIPE, text=True
        )
        with writer:
            assert writer.stdout is not None
            flushed = [int(writer.stdout.readline()) for _ in range(10)][-1]
            writer.send_signal(signal.SIGKILL)
            flushed = max([flushed, *map(int, writer.stdout.read().split())])
        stored = sum(segment.head for segment in hr.stream("a").segments)
        assert stored % ROWS == 0
        assert stored // ROWS >= flushed
        hr.run(check_order(hr.client, stored // ROWS))
