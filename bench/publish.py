"""Durable publishing against a bare SQLite loop that commits the same bytes.

``python -m bench.publish`` prints the figures.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

import headrace
import headrace.sync
from bench.harness import Result, at_least, at_most, ratio_of_rounds, show, timed

ROWS = 1000
VALUE_BYTES = 100
SEGMENTS = 4
BATCHES = 200
ROUNDS = 9
SINGLES = 400
PUBLISHERS = 32
WARM_UP = 1500


def batch() -> pa.RecordBatch:
    """1000 events of 100 random bytes with as many keys."""
    return pa.record_batch(
        {
            "subject": pa.array([f"bench.eu.{row}" for row in range(ROWS)]),
            "key": pa.array([f"key-{row}" for row in range(ROWS)]),
            "value": pa.array([os.urandom(VALUE_BYTES) for _ in range(ROWS)], pa.binary()),
        }
    )


def bare(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS blobs (id INTEGER PRIMARY KEY, data BLOB)")
    return connection


def commit_blobs(connection: sqlite3.Connection, blobs: list[bytes]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for blob in blobs:
        connection.execute("INSERT INTO blobs (data) VALUES (?)", (blob,))
    connection.execute("COMMIT")


def stored_blobs(folder: Path, count: int) -> list[bytes]:
    """The blobs of the last append, as the log stored them."""
    with sqlite3.connect(folder / "headrace.db") as connection:
        rows = connection.execute("SELECT data FROM batches ORDER BY id DESC LIMIT ?", (count,))
        return [row[0] for row in rows]


async def _log(folder: Path, work: object) -> float:
    async with headrace.open(folder) as hr:
        await hr.create_stream("bench", subjects=["bench.>"], segments=SEGMENTS)
        return await work(hr)  # type: ignore[operator,no-any-return]


def publish_batches(folder: Path) -> list[Result]:
    data = batch()

    async def in_turn(hr: headrace.Headrace) -> float:
        started = time.perf_counter()
        for _ in range(BATCHES):
            await hr.append("bench", data)
        return BATCHES * ROWS / (time.perf_counter() - started)

    def at_once(lanes: int) -> Callable[[headrace.Headrace], Awaitable[float]]:
        async def run(hr: headrace.Headrace) -> float:
            async def lane() -> None:
                for _ in range(BATCHES // lanes):
                    await hr.append("bench", data)

            started = time.perf_counter()
            await asyncio.gather(*(lane() for _ in range(lanes)))
            return BATCHES // lanes * lanes * ROWS / (time.perf_counter() - started)

        return run

    async def in_a_loop(hr: headrace.Headrace) -> float:
        started = time.perf_counter()
        async with hr.appender("bench") as appender:
            for _ in range(BATCHES):
                await appender.append(data)
        return BATCHES * ROWS / (time.perf_counter() - started)

    def script(place: Path, *, waits: bool) -> float:
        with headrace.sync.open(place) as hr:
            hr.create_stream("bench", subjects=["bench.>"], segments=SEGMENTS)
            started = time.perf_counter()
            if waits:
                for _ in range(BATCHES):
                    hr.append("bench", data)
            else:
                with hr.appender("bench") as appender:
                    for _ in range(BATCHES):
                        appender.append(data)
            return BATCHES * ROWS / (time.perf_counter() - started)

    ways: dict[str, Callable[[Path], float]] = {
        # As the bare loop does it: a commit for every batch, and the next batch after that.
        "one at a time": lambda place: asyncio.run(_log(place, in_turn)),
        "from a script": partial(script, waits=True),
        # These share commits, which the bare loop does not.
        "four in flight": lambda place: asyncio.run(_log(place, at_once(4))),
        "sixteen in flight": lambda place: asyncio.run(_log(place, at_once(16))),
        "through an appender": lambda place: asyncio.run(_log(place, in_a_loop)),
        "from a script through an appender": partial(script, waits=False),
    }
    asyncio.run(_log(folder / "sample", lambda hr: hr.append("bench", data)))
    blobs = stored_blobs(folder / "sample", SEGMENTS)
    found = []
    for name, way in ways.items():
        count = iter(range(1000))

        def floor(name: str = name, count: object = count) -> float:
            connection = bare(folder / f"{name}-{next(count)}.db")  # type: ignore[call-overload]
            started = time.perf_counter()
            for _ in range(BATCHES):
                commit_blobs(connection, blobs)
            rate = BATCHES * ROWS / (time.perf_counter() - started)
            connection.close()
            return rate

        def ours(
            name: str = name, way: Callable[[Path], float] = way, count: object = count
        ) -> float:
            place = folder / f"{name}-{next(count)}"  # type: ignore[call-overload]
            rate = way(place)
            shutil.rmtree(place)
            return rate

        ratio, base, rate = ratio_of_rounds(floor, ours, ROUNDS)
        title = f"durable publish, 1000 x 100 B, 4 segments, {name}"
        detail = f"{rate:,.0f} against {base:,.0f} events/s"
        found.append(at_least(title, ratio, 0.6, "of bare SQLite", detail))
    return found


def bare_row(connection: sqlite3.Connection, blob: bytes) -> None:
    """The rows of one event and no more: take an offset, insert the blob at its place."""
    connection.execute("BEGIN IMMEDIATE")
    (head,) = connection.execute(
        "UPDATE segments SET head = head + 1 WHERE id = 1 RETURNING head"
    ).fetchone()
    connection.execute("INSERT INTO batches (segment, place, data) VALUES (1, ?, ?)", (head, blob))
    connection.execute("COMMIT")


def bare_log(path: Path) -> sqlite3.Connection:
    """The tables of :func:`bare_row`."""
    connection = bare(path)
    connection.execute("CREATE TABLE segments (id INTEGER PRIMARY KEY, head INTEGER)")
    connection.execute("INSERT INTO segments VALUES (1, 0)")
    connection.execute(
        "CREATE TABLE batches (id INTEGER PRIMARY KEY, segment INTEGER, place INTEGER, data BLOB)"
    )
    connection.execute("CREATE UNIQUE INDEX places ON batches (segment, place)")
    return connection


def _p50(work: Callable[[], object]) -> float:
    return statistics.median(timed(work) for _ in range(SINGLES))


def publish_single(folder: Path) -> Result:
    """One event after the other from a script, against the bare commit of its rows."""
    value = os.urandom(VALUE_BYTES)
    with headrace.sync.open(folder / "single") as hr:
        hr.create_stream("bench", subjects=["bench.>"], segments=SEGMENTS)

        def ours() -> object:
            return hr.publish("bench.eu.1", value, key="key-1")

        ours()
        (blob,) = stored_blobs(folder / "single", 1)
        connection = bare_log(folder / "single.db")

        def floor() -> None:
            bare_row(connection, blob)

        # Both logs grow to their size first: growing files takes longer to sync.
        for _ in range(WARM_UP):
            floor()
            ours()
        rounds = [(_p50(floor), _p50(ours)) for _ in range(ROUNDS)]
        connection.close()
    return at_most(
        "single durable publish, headrace.sync, p50",
        statistics.median(ours / base for base, ours in rounds),
        2.0,
        "x bare commit",
        f"{statistics.median(ours for _, ours in rounds) * 1e3:.3f} against "
        f"{statistics.median(base for base, _ in rounds) * 1e3:.3f} ms",
    )


def publish_together(folder: Path) -> list[Result]:
    """One publisher against 32 at once, on an event loop."""
    value = os.urandom(VALUE_BYTES)

    async def rounds(hr: headrace.Headrace) -> float:
        async def singles(count: int) -> list[float]:
            times = []
            for _ in range(count):
                started = time.perf_counter()
                await hr.publish("bench.eu.1", value, key="key-1")
                times.append(time.perf_counter() - started)
            return times

        await singles(WARM_UP)
        for _ in range(ROUNDS):
            started = time.perf_counter()
            medians.append(statistics.median(await singles(SINGLES)))
            lone_rates.append(SINGLES / (time.perf_counter() - started))
            started = time.perf_counter()
            await asyncio.gather(*(singles(SINGLES // 4) for _ in range(PUBLISHERS)))
            group_rates.append(PUBLISHERS * (SINGLES // 4) / (time.perf_counter() - started))
        return 0.0

    medians: list[float] = []
    lone_rates: list[float] = []
    group_rates: list[float] = []
    asyncio.run(_log(folder / "together", rounds))
    gain = statistics.median(many / one for many, one in zip(group_rates, lone_rates, strict=True))
    return [
        Result(
            "single durable publish, asyncio, p50",
            statistics.median(medians) * 1e3,
            "ms",
        ),
        at_least(
            "32 concurrent publishers",
            gain,
            10.0,
            "x one publisher",
            f"{statistics.median(group_rates):,.0f} against "
            f"{statistics.median(lone_rates):,.0f} events/s",
        ),
    ]


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        return [*publish_batches(folder), publish_single(folder), *publish_together(folder)]


if __name__ == "__main__":
    show(run())
