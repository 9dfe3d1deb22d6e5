"""Times as places of a group: what history is, and what is still to come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

import headrace
from headrace.errors import InvalidPositionError, StartBeforeHistoryError
from headrace.groups.vacant import drop_vacant
from tests.groups.readers.runtime.support import send

SECOND = timedelta(seconds=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def run(catalog_url: str, work: Callable[[headrace.Headrace], Awaitable[None]]) -> None:
    """By the true clock, since events bear the time of who publishes them."""

    async def main() -> None:
        async with headrace.open(catalog_url, housekeeping=False) as hr:
            await work(hr)

    asyncio.run(asyncio.wait_for(main(), 120))


def made(hr: headrace.Headrace, stream: str = "orders") -> datetime:
    at_us = hr.log.stream(stream).created_us
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)


async def publish_at(hr: headrace.Headrace, *minutes: int, key: str = "k") -> None:
    for each in minutes:
        when = NOON + timedelta(minutes=each)
        await hr.publish("orders.n", b"%d" % each, key=key, timestamp=when)


async def held(hr: headrace.Headrace) -> list[str]:
    return [group.name for group in await hr.reader_groups.list()]


def test_a_time_before_a_stream_was_made_is_refused_with_the_first_there_is(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        groups = hr.reader_groups
        await hr.create_stream("orders", ["orders.>"], segments=2)
        await hr.create_stream("clicks", ["clicks.>"])
        await send(hr, *range(10))
        born = made(hr)
        for wanted in (born - SECOND, {"clicks": "latest", "orders": born - SECOND}):
            for given in ({"start": wanted}, {"end": wanted}):
                with pytest.raises(StartBeforeHistoryError) as refused:
                    await groups.create("g", streams=["orders", "clicks"], **given)  # type: ignore[arg-type]
                begins = made(hr, refused.value.stream)
                assert refused.value.history_start == begins.isoformat()
        assert await held(hr) == []
        group = await groups.create("g", streams=["orders"], start=born)
        assert (await group.lag()).events == 10
        revision = (await group.info()).revision
        with pytest.raises(StartBeforeHistoryError):
            await group.reset(born - SECOND)
        with pytest.raises(StartBeforeHistoryError):
            await group.add_streams(["clicks"], start=born - SECOND)
        assert (await group.info()).revision == revision

    run(catalog_url, work)


def test_events_that_are_older_than_their_stream_are_its_history(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        # Another segment of the stream may begin later.
        keys = ("a", "b", "c", "d")
        for minute, key in enumerate(keys):
            await publish_at(hr, minute, key=key)
        assert all(segment.head for segment in hr.log.stream("orders").segments)
        with pytest.raises(StartBeforeHistoryError, match="begins at 2026-01-01T12:00:00"):
            await hr.reader_groups.create("g", streams=["orders"], start=NOON - SECOND)
        group = await hr.reader_groups.create("g", streams=["orders"], start=NOON)
        assert (await group.lag()).events == len(keys)
        later = await hr.reader_groups.create(
            "later", streams=["orders"], start=NOON + timedelta(minutes=2)
        )
        assert (await later.lag()).events == 2

    run(catalog_url, work)


def test_where_something_was_trimmed_history_begins_at_the_first_event_that_is_kept(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"])
        await publish_at(hr, 0, 1, 2, 3)
        made_before = await hr.reader_groups.create("old", streams=["orders"], start=NOON)
        await hr.trim("orders", {0: 2})
        with pytest.raises(StartBeforeHistoryError, match="12:02:00") as refused:
            await hr.reader_groups.create("g", streams=["orders"], start=NOON)
        assert refused.value.history_start == "2026-01-01T12:02:00+00:00"
        with pytest.raises(StartBeforeHistoryError, match="12:02:00"):
            await made_before.reset(NOON)
        # What is made in the same way again stays as it is, whatever has gone meanwhile.
        again = await hr.reader_groups.create("old", streams=["orders"], start=NOON)
        assert again.name == "old"
        assert await held(hr) == ["old"]

    run(catalog_url, work)


def test_history_begins_after_segments_of_which_nothing_is_left(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"])
        await publish_at(hr, 0, 1)
        await hr.split("orders", 0)
        await publish_at(hr, 5)
        await hr.trim("orders", {0: 2})
        assert drop_vacant(hr.log, hr.log.stream("orders"), -1) == 1
        with pytest.raises(StartBeforeHistoryError, match="12:05:00"):
            await hr.reader_groups.create("g", streams=["orders"], start=NOON)

    run(catalog_url, work)


def test_a_time_that_is_still_to_come_is_refused_unless_there_are_events_of_then(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"])
        await send(hr, *range(5))
        group = await hr.reader_groups.create("g", streams=["orders"])
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        with pytest.raises(InvalidPositionError, match="lies in the future"):
            await group.reset(tomorrow)
        with pytest.raises(InvalidPositionError, match="lies in the future"):
            await hr.reader_groups.create("h", streams=["orders"], end=tomorrow)
        assert (await group.lag()).events == 5
        await hr.publish("orders.n", b"soon", timestamp=tomorrow + timedelta(hours=1))
        await group.reset(tomorrow)
        assert (await group.lag()).events == 1

    run(catalog_url, work)
