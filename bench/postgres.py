"""PostgreSQL with fsync on, against bare psycopg that commits the same bytes.

The server is one of its own, on this machine, over TCP.  Round trips are counted over a wire that
delays every packet.  ``python -m bench.postgres --quick`` leaves out what takes long.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg

import headrace
from bench.harness import Result, at_least, at_most, percentile, ratio_of_rounds, save, show
from bench.publish import batch
from headrace.catalog.streams import StreamConfig
from headrace.log.open import open_log
from tests.postgres_server import PostgresMachine, postgres_machine, wire_to

SINGLES = 400
BULKS = 60
ACKS = 400
ROUNDS = 5
PROCESSES = 8
TOGETHER_S = 3.0
TRIP_S = 0.02
VALUE = os.urandom(100)
TRIM_BATCHES = 1_000_000
FAR_S, FAR_LOSS = 0.2, 0.01
FAR_OTHERS, FAR_ROUNDS = 3, 2


def database(machine: PostgresMachine, name: str) -> str:
    machine.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    machine.execute(f"CREATE DATABASE {name}")
    return f"{machine.url.removesuffix('postgres')}{name}"


class Bare:
    """The floor: one prepared INSERT with commit at a time."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS bare (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "data BYTEA)"
        )
        self.connection.execute("ALTER TABLE bare ALTER COLUMN data SET STORAGE EXTERNAL")

    def rate(self, data: bytes, count: int) -> float:
        begun_s = time.perf_counter()
        for _ in range(count):
            self.connection.execute(
                "INSERT INTO bare (data) VALUES (%s)", (data,), prepare=True, binary=True
            )
        return count / (time.perf_counter() - begun_s)


Call = Callable[[], Awaitable[object]]


def rate_of(loop: asyncio.AbstractEventLoop, call: Call, n: int) -> float:
    async def run() -> float:
        begun_s = time.perf_counter()
        for _ in range(n):
            await call()
        return n / (time.perf_counter() - begun_s)

    return loop.run_until_complete(run())


@contextmanager
def opened(url: str) -> Iterator[tuple[asyncio.AbstractEventLoop, headrace.Headrace]]:
    loop = asyncio.new_event_loop()
    hr = headrace.open(url, housekeeping=False)
    loop.run_until_complete(hr.__aenter__())
    try:
        yield loop, hr
    finally:
        loop.run_until_complete(hr.close())
        loop.close()


def server_cpu_s(machine: PostgresMachine) -> float:
    """CPU time of all processes of the server."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.readlink(entry / "cwd") == str(machine.data):
                total += int((entry / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue
    return total


def publishing(machine: PostgresMachine) -> Iterator[Result]:
    url = database(machine, "speed")
    bare = Bare(url)
    with opened(url) as (loop, hr):
        run = loop.run_until_complete
        run(hr.create_stream("one", subjects=["one.>"]))
        run(hr.create_stream("four", subjects=["bench.>"], segments=4))
        single = partial(hr.publish, "one.x", VALUE)
        rate_of(loop, single, 100)
        bare.rate(VALUE, 100)
        ratio, floor, ours = ratio_of_rounds(
            lambda: bare.rate(VALUE, SINGLES), lambda: rate_of(loop, single, SINGLES), ROUNDS
        )
        detail = f"{ours:,.0f} of {floor:,.0f} per second"
        yield at_least("PostgreSQL: one publish at a time", ratio, 0.6, "x floor", detail)
        numbers = iter(range(1, 10**9))

        async def numbered() -> None:
            await hr.append("one", _event(), producer="p", sequence=next(numbers))

        rate_of(loop, numbered, 50)
        ratio, floor, ours = ratio_of_rounds(
            lambda: bare.rate(VALUE, SINGLES), lambda: rate_of(loop, numbered, SINGLES), ROUNDS
        )
        detail = f"{ours:,.0f} of {floor:,.0f} per second"
        yield at_least("PostgreSQL: with producer and sequence", ratio, 0.6, "x floor", detail)
        table = batch()
        blob = os.urandom(table.nbytes)
        whole = partial(hr.append, "four", table)
        rate_of(loop, whole, 10)
        ratio, floor, ours = ratio_of_rounds(
            lambda: bare.rate(blob, BULKS), lambda: rate_of(loop, whole, BULKS), ROUNDS
        )
        detail = f"{ours * 1000:,.0f} of {floor * 1000:,.0f} events per second"
        yield at_least("PostgreSQL: append of 1,000, 4 segments", ratio, 0.7, "x floor", detail)
        yield from _cpu(machine, bare, loop, single)
    bare.connection.close()


def _event() -> headrace.Event:
    return headrace.Event(subject="one.x", value=VALUE)


def _cpu(
    machine: PostgresMachine,
    bare: Bare,
    loop: asyncio.AbstractEventLoop,
    single: Callable[[], Awaitable[object]],
) -> Iterator[Result]:
    begun = server_cpu_s(machine)
    bare.rate(VALUE, 4 * SINGLES)
    middle = server_cpu_s(machine)
    rate_of(loop, single, 4 * SINGLES)
    ended = server_cpu_s(machine)
    floor, ours = (middle - begun) / (4 * SINGLES), (ended - middle) / (4 * SINGLES)
    detail = f"{ours * 1e6:.0f} of {floor * 1e6:.0f} us"
    yield at_most("PostgreSQL: server CPU of a publish", ours / floor, 2.0, "x floor", detail)


def acking(machine: PostgresMachine) -> Iterator[Result]:
    async def rate(url: str) -> float:
        async with headrace.open(url, housekeeping=False) as hr:
            await hr.create_stream("work", subjects=["work.>"], partitions=1)
            await hr.groups.create_static("work", "g", max_members=1, members=["m"])
            events = [
                headrace.Event(subject=f"work.{n}", value=b"x", key=str(n))
                for n in range(ACKS + 50)
            ]
            await hr.append("work", events)
            async with hr.join("work", "g", member="m") as member:
                done = 0
                begun_s = 0.0
                async for delivery in member:
                    await delivery.ack()
                    done += 1
                    if done == 50:
                        begun_s = time.perf_counter()
                    if done == ACKS + 50:
                        return ACKS / (time.perf_counter() - begun_s)
        raise AssertionError("the stream ended")

    rates = []
    for number in range(3):
        with tempfile.TemporaryDirectory() as folder:
            lite = asyncio.run(rate(str(Path(folder) / "c")))
        rates.append((lite, asyncio.run(rate(database(machine, f"acks{number}")))))
    ratio = statistics.median(ours / lite for lite, ours in rates)
    detail = ", ".join(f"{ours:,.0f} of {lite:,.0f}/s" for lite, ours in rates)
    detail += "; synced here, not there"
    yield at_least("PostgreSQL: awaited acks", ratio, 0.3, "x SQLite", detail)


# --- several processes -----------------------------------------------------------------------


def _bare_process(url: str, begin_s: float, queue: multiprocessing.Queue[float]) -> None:
    bare = Bare(url)
    _until(begin_s)
    count, end_s = 0, time.time() + TOGETHER_S
    while time.time() < end_s:
        bare.rate(VALUE, 5)
        count += 5
    queue.put(count / TOGETHER_S)


def _publishing_process(
    url: str, subject: str, begin_s: float, queue: multiprocessing.Queue[float]
) -> None:
    with opened(url) as (loop, hr):
        single = partial(hr.publish, subject, VALUE)
        rate_of(loop, single, 3)
        _until(begin_s)
        count, end_s = 0, time.time() + TOGETHER_S
        while time.time() < end_s:
            rate_of(loop, single, 5)
            count += 5
        queue.put(count / TOGETHER_S)


def _until(begin_s: float) -> None:
    while time.time() < begin_s:
        time.sleep(0.002)


def _together(target: Callable[..., None], arguments: list[tuple[object, ...]]) -> float:
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[float] = context.Queue()
    begin_s = time.time() + 3.0 + 0.9 * len(arguments)
    workers = [context.Process(target=target, args=(*each, begin_s, queue)) for each in arguments]
    for worker in workers:
        worker.start()
    total = sum(queue.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join()
    return total


def together(machine: PostgresMachine) -> Iterator[Result]:
    url = database(machine, "together")
    Bare(url).connection.close()
    log = open_log(url)
    for number in range(PROCESSES):
        log.create_stream(f"s{number}", StreamConfig(subjects=(f"s{number}.>",)))
    log.catalog.close()
    floor = _together(_bare_process, [(url,)] * PROCESSES)
    own = _together(_publishing_process, [(url, f"s{n}.x") for n in range(PROCESSES)])
    shared = _together(_publishing_process, [(url, "s0.x")] * PROCESSES)
    alone = _together(_publishing_process, [(url, "s0.x")])
    detail = f"{own:,.0f} of {floor:,.0f} per second"
    name = f"PostgreSQL: {PROCESSES} processes"
    yield at_least(f"{name}, a stream each", own / floor, 0.5, "x floor", detail)
    detail = f"{shared:,.0f} of {floor:,.0f} per second"
    yield at_least(f"{name}, one stream", shared / floor, 0.35, "x floor", detail)
    detail = f"{shared:,.0f}, alone {alone:,.0f} per second"
    yield at_least(f"{name} against one, one stream", shared / alone, 1.0, "x", detail)


def far(machine: PostgresMachine) -> Iterator[Result]:
    """What a publisher at 200 ms and 1 % loss costs the others of its stream."""
    url = database(machine, "far")
    log = open_log(url)
    log.create_stream("s0", StreamConfig(subjects=("s0.>",)))
    log.catalog.close()
    context = multiprocessing.get_context("spawn")
    ratios, shown = [], []
    with wire_to(machine) as (wire, through):
        wire.delay_s, wire.loss = FAR_S / 2, FAR_LOSS
        for _ in range(FAR_ROUNDS):
            without = _together(_publishing_process, [(url, "s0.x")] * FAR_OTHERS)
            queue: multiprocessing.Queue[list[float]] = context.Queue()
            stop = context.Event()
            arguments = (f"{through.removesuffix('postgres')}far", "s0.x", queue, stop)
            worker = context.Process(target=_latencies, args=arguments)
            worker.start()
            queue.get(timeout=60)
            beside = _together(_publishing_process, [(url, "s0.x")] * FAR_OTHERS)
            stop.set()
            mine = queue.get(timeout=60)
            worker.join()
            ratios.append(beside / without)
            shown.append(f"{beside:,.0f} of {without:,.0f}/s, {len(mine)} from afar")
    name = f"PostgreSQL: {FAR_OTHERS} publishers beside one at 200 ms and 1 % loss"
    yield at_least(name, statistics.median(ratios), 0.8, "x without", "; ".join(shown))


# --- round trips -----------------------------------------------------------------------------


def trips(machine: PostgresMachine) -> Iterator[Result]:
    """How many round trips calls take, over a wire of 20 ms."""
    url = database(machine, "trips")
    with opened(url) as (loop, hr):
        loop.run_until_complete(hr.create_stream("s", subjects=["s.>"], partitions=4))
        loop.run_until_complete(hr.groups.create_static("s", "g", max_members=4, members=["m"]))
    with wire_to(machine) as (wire, through):
        far = f"{through.removesuffix('postgres')}trips"
        wire.delay_s = TRIP_S / 2
        found = asyncio.run(_count(far))
    for name, most in (
        ("open", 8),
        ("publish", 1.5),
        ("publish with producer and sequence", 1.5),
        ("append of 1,000", 2.5),
        ("join to first delivery", 15),
        ("awaited ack", 1.5),
        ("session to first delivery", 25),
        ("commit to delivery elsewhere", 2.5),
    ):
        yield at_most(f"PostgreSQL, round trips: {name}", found[name], most, "trips")


async def _count(url: str) -> dict[str, float]:
    found: dict[str, float] = {}

    async def timed(name: str, call: Awaitable[object]) -> None:
        begun_s = time.perf_counter()
        await call
        found[name] = (time.perf_counter() - begun_s) / TRIP_S

    hr = headrace.open(url, housekeeping=False)
    await timed("open", hr.__aenter__())
    event = headrace.Event(subject="s.x", value=VALUE, key="k")
    for n in range(4):
        await hr.publish("s.x", VALUE, key="k")
        await hr.append("s", [event] * 1000)
        await hr.append("s", event, producer="p", sequence=n)
    await timed("publish", hr.publish("s.x", VALUE, key="k"))
    await timed("append of 1,000", hr.append("s", [event] * 1000))
    numbered = hr.append("s", event, producer="p", sequence=9)
    await timed("publish with producer and sequence", numbered)
    begun_s = time.perf_counter()
    async with hr.join("s", "g", member="m") as member:
        deliveries = aiter(member)
        delivery = await anext(deliveries)
        found["join to first delivery"] = (time.perf_counter() - begun_s) / TRIP_S
        await delivery.ack()
        delivery = await anext(deliveries)
        await timed("awaited ack", delivery.ack())
    begun_s = time.perf_counter()
    async with hr.session("worker") as session:
        await session.subscribe("$share/audit/s.>", start="earliest")
        await anext(aiter(session))
        found["session to first delivery"] = (time.perf_counter() - begun_s) / TRIP_S
    async with headrace.open(url, housekeeping=False) as other:
        reading = hr.read("s", start="latest", follow=True)
        waiting = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(20 * TRIP_S)
        delays = []
        await other.publish("s.y", b"warm", key="k")
        await waiting
        for _ in range(5):
            waiting = asyncio.ensure_future(anext(reading))
            await asyncio.sleep(10 * TRIP_S)
            begun_s = time.perf_counter()
            await other.publish("s.y", b"", key="k")
            committed_s = (time.perf_counter() + begun_s) / 2
            await waiting
            delays.append((time.perf_counter() - committed_s) / TRIP_S)
        await reading.close()
    found["commit to delivery elsewhere"] = statistics.median(delays)
    await hr.close()
    return found


# --- retention -------------------------------------------------------------------------------


def trimming(machine: PostgresMachine) -> Iterator[Result]:
    """Half of a million batches removed, with statistics, while somebody publishes."""
    url = database(machine, "trimming")
    log = open_log(url)
    log.create_stream("big", StreamConfig(subjects=("big.>",)))
    admin = psycopg.connect(url, autocommit=True)
    admin.execute("SET search_path TO headrace")
    admin.execute(
        "INSERT INTO batches (segment_id, start_offset, end_offset, bytes, total_bytes, max_ts_us, "
        "created_us, layout, checksum, data) SELECT s.id, n, n + 1, 100, (n + 1) * 100, n, n, 0, "
        "0, decode(repeat('00', 100), 'hex') FROM segments AS s, generate_series(0, %s) AS n",
        (TRIM_BATCHES - 1,),
    )
    admin.execute("UPDATE segments SET head = %s, bytes = %s", (TRIM_BATCHES, TRIM_BATCHES * 100))
    admin.execute("ANALYZE")
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[list[float]] = context.Queue()
    stop = context.Event()
    worker = context.Process(target=_latencies, args=(url, "big.x", queue, stop))
    worker.start()
    queue.get(timeout=60)
    begun_s = time.perf_counter()
    log.trim("big", {0: TRIM_BATCHES // 2})
    took_s = time.perf_counter() - begun_s
    stop.set()
    delays = queue.get(timeout=60)
    worker.join()
    log.catalog.close()
    admin.close()
    name = f"PostgreSQL: {TRIM_BATCHES // 2:,} of {TRIM_BATCHES:,} batches trimmed"
    yield at_most(name, took_s, 10.0, "s")
    detail = f"{len(delays):,} publishes meanwhile"
    slow = percentile(delays, 0.99) * 1000
    yield at_most("PostgreSQL: publish meanwhile, p99", slow, 50.0, "ms", detail)


def _latencies(
    url: str, subject: str, queue: multiprocessing.Queue[list[float]], stop: object
) -> None:
    with opened(url) as (loop, hr):
        single = partial(hr.publish, subject, VALUE)
        rate_of(loop, single, 3)
        queue.put([])
        found = []
        while not stop.is_set():  # type: ignore[attr-defined]
            begun_s = time.perf_counter()
            rate_of(loop, single, 1)
            found.append(time.perf_counter() - begun_s)
        queue.put(found)


def run(*, quick: bool = False) -> list[Result]:
    parts = (
        [publishing, acking, trips]
        if quick
        else [publishing, acking, together, far, trips, trimming]
    )
    with postgres_machine(max_connections="200") as machine:
        return [result for part in parts for result in part(machine)]


def main(arguments: list[str]) -> int:
    results = run(quick="--quick" in arguments)
    show(results)
    print(f"written to bench/results/{save(results).name}")
    return 0 if all(result.ok is not False for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
