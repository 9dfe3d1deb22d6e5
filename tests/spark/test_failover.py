"""Queries of Spark over a catalog that went back: nothing in the log is skipped unsaid."""

from __future__ import annotations

import asyncio
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


def test_a_query_that_read_what_was_lost_says_so_or_goes_on_with_what_is_there(pair: Pair) -> None:
    primary, standby, url = pair
    publish(url, range(10))
    strict = [Engine(options(url)) for _ in range(2)]
    lenient = [Engine(options(url, failOnDataLoss="false")) for _ in range(2)]
    planned = Engine(options(url, failOnDataLoss="false"))
    behind = Engine(options(url))
    for engine in (*strict, *lenient, planned, behind):
        assert through(engine) == list(range(10))
    asyncio.run(until(lambda: caught_up(primary), "the standby"))
    standby.stop()
    publish(url, range(10, 20))  # of these the standby knows nothing
    for engine in (*strict, *lenient):
        assert through(engine) == list(range(10, 20))
    assert planned.plan()
    gone_back(primary, standby)
    publish(url, range(20, 50))  # the heads are beyond what was read
    for engine in (strict[1], lenient[1], behind):
        engine.start()
    for engine in strict:
        with pytest.raises(DataLossError, match="went back since and had nothing from"):
            through(engine)
    for engine in (*lenient, behind):
        assert through(engine) == list(range(20, 50))
    planned.start()  # its batch is read as far as it is there
    assert values(planned.batches[-1]) == []
    assert through(planned) == list(range(20, 50))
    publish(url, range(50, 60))
    for engine in (*lenient, planned, behind):
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
