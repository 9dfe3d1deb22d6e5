"""Queries of Spark over a catalog that went back: nothing in the log is skipped unsaid."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import headrace
from headrace.errors import DataLossError, HeadraceError
from tests.postgres_server import PostgresMachine, caught_up, gone_back, primary_and_standby
from tests.spark.engine import Engine
from tests.support import until

Pair = tuple[PostgresMachine, PostgresMachine, str]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with primary_and_standby() as made:
        yield made


def publish(url: str, numbers: range) -> None:
    async def run() -> None:
        async with headrace.open(url, housekeeping=False) as hr:
            if not await hr.streams():
                await hr.create_stream("s", subjects=["s.>"], partitions=2)
            for number in numbers:
                await hr.publish("s.x", str(number).encode(), key=str(number % 3))

    asyncio.run(run())


def values(rows: list[dict[str, object]]) -> list[int]:
    return sorted(int(bytes(row["value"])) for row in rows)  # type: ignore[call-overload]


def through(engine: Engine) -> list[int]:
    """All that there is; a server that is away is waited for."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return values(engine.run())
        except DataLossError:
            raise
        except HeadraceError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def options(url: str, **more: str) -> dict[str, str]:
    return {"catalog": url, "subscribe": "s", "startingOffsets": "earliest", **more}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_query_that_read_what_was_lost_says_so_or_goes_on_with_what_is_there(
    pair: Pair, restarts: bool
) -> None:
    primary, standby, url = pair
    publish(url, range(10))
    strict = Engine(options(url))
    lenient = Engine(options(url, failOnDataLoss="false"))
    behind = Engine(options(url))
    for engine in (strict, lenient, behind):
        assert through(engine) == list(range(10))
    asyncio.run(until(lambda: caught_up(primary), "the standby"))
    standby.stop()
    publish(url, range(10, 20))  # of these the standby knows nothing
    for engine in (strict, lenient):
        assert through(engine) == list(range(10, 20))
    gone_back(primary, standby)
    publish(url, range(20, 50))  # the heads are beyond what was read
    if restarts:
        for engine in (strict, lenient, behind):
            engine.start()
    with pytest.raises(DataLossError, match="went back since and had nothing from"):
        through(strict)
    assert through(lenient) == list(range(20, 50))
    assert through(behind) == list(range(20, 50))  # it has read nothing of what was lost
    publish(url, range(50, 60))
    for engine in (lenient, behind):
        engine.start()
        assert through(engine) == list(range(50, 60))


def test_a_query_goes_on_after_a_promotion_that_lost_nothing(pair: Pair) -> None:
    primary, standby, url = pair
    publish(url, range(10))
    engine = Engine(options(url))
    assert through(engine) == list(range(10))
    asyncio.run(until(lambda: caught_up(primary), "the standby"))
    primary.kill()
    standby.promote()
    publish(url, range(10, 30))
    assert through(engine) == list(range(10, 30))
    engine.start()
    publish(url, range(30, 40))
    assert through(engine) == list(range(30, 40))


def test_a_batch_that_was_planned_before_is_read_as_far_as_it_is_there(pair: Pair) -> None:
    primary, standby, url = pair
    publish(url, range(10))
    engine = Engine(options(url, failOnDataLoss="false"))
    assert through(engine) == list(range(10))
    publish(url, range(10, 14))
    asyncio.run(until(lambda: caught_up(primary), "the standby"))
    standby.stop()
    publish(url, range(14, 20))
    assert engine.plan()
    gone_back(primary, standby)
    publish(url, range(20, 40))
    done = threading.Event()
    found: list[int] = []

    def run() -> None:
        engine.start()
        found.extend(values(engine.batches[-1]))
        found.extend(through(engine))
        done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(60)
    assert sorted(found) == [*range(10, 14), *range(20, 40)]
