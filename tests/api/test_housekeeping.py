"""Housekeeping: one of the programs on a catalog applies what the policies say."""

from __future__ import annotations

import headrace
from headrace import testing
from headrace.api import housekeeping
from headrace.catalog.streams import Limits, StreamConfig
from headrace.log.events import Event
from headrace.log.log import Log

KEEP_ONE = StreamConfig(subjects=("a.>",), retention=Limits(events=1))


def fill(log: Log) -> None:
    log.create_stream("a", KEEP_ONE)
    for number in range(3):
        log.append("a", Event(subject="a.b", value=str(number).encode()))


def test_a_round_trims_what_the_policy_lets_go(log: Log) -> None:
    fill(log)
    assert housekeeping.tidy(log, "one", 60_000)
    assert log.stream("a").segments[0].tail == 2


def test_while_one_keeps_house_another_does_not(log: Log) -> None:
    fill(log)
    assert housekeeping.tidy(log, "one", 60_000)
    log.append("a", Event(subject="a.b", value=b"more"))
    assert not housekeeping.tidy(log, "two", 60_000)
    assert log.stream("a").segments[0].tail == 2
    assert housekeeping.tidy(log, "one", 60_000)
    assert log.stream("a").segments[0].tail == 3


def test_an_open_log_keeps_house_by_itself(catalog_url: str) -> None:
    async def main() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("a", ["a.>"], retention=Limits(events=1))
            for number in range(3):
                await hr.publish("a.b", str(number).encode())
            await testing.driven_clock().advance(housekeeping.EVERY_S - 1)
            assert (await hr.stream("a")).segments[0].tail == 0
            await testing.driven_clock().advance(1)
            assert (await hr.stream("a")).segments[0].tail == 2

    testing.run(main())
