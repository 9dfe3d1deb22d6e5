"""Housekeeping: one of the programs on a catalog applies what the policies say."""

from __future__ import annotations

import asyncio

import pytest

import headrace
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


def test_an_open_log_keeps_house_by_itself(
    catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping.Housekeeper.__init__, "__defaults__", (0.05,))

    async def main() -> int:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("a", ["a.>"], retention=Limits(events=1))
            for number in range(3):
                await hr.publish("a.b", str(number).encode())
            async with asyncio.timeout(20):
                while (tail := (await hr.stream("a")).segments[0].tail) < 2:
                    await asyncio.sleep(0.01)
            return tail

    assert asyncio.run(main()) == 2
