"""Trimmed rows: since is exact, can be started from, and the progress log goes behind the rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import headrace
from headrace.api import housekeeping
from headrace.catalog import epochs as stored
from headrace.catalog import leases
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.runtime import kept, starting
from headrace.epochs.runtime.progress_log import ProgressLog
from headrace.errors import CatalogUnavailableError, EpochsAbortedError, HistoryGoneError
from headrace.groups.progress import audit


@asynccontextmanager
async def opened(
    url: str, length: int = 0, segments: int = 1, **options: Any
) -> AsyncIterator[headrace.Headrace]:
    async with headrace.open(url, housekeeping=False) as hr:
        epochs = headrace.Epochs(length=length)
        await hr.create_stream("a", ["a.>"], segments=segments, epochs=epochs, **options)
        yield hr


async def given(hr: headrace.Headrace, **options: Any) -> list[tuple[Any, list[bytes]]]:
    found = []
    async with hr.epochs("a", **options) as epochs:
        async for epoch in epochs:
            found.append((epoch.time, sorted((await epoch.table())["value"].to_pylist())))
    return found


async def since(hr: headrace.Headrace) -> Frontier:
    return await hr.in_thread(lambda: kept.since_of(hr.log, hr.log.stream("a")))


async def trim(hr: headrace.Headrace, **cuts: int) -> None:
    """Rows of segments (``s0=3``) go."""
    before = {int(name[1:]): cut for name, cut in cuts.items()}
    await hr.in_thread(hr.log.trim, "a", before)


async def tidy(hr: headrace.Headrace) -> tuple[int, int]:
    """A round of housekeeping; which lines are left."""
    assert await hr.in_thread(housekeeping.tidy, hr.log, "test", 60_000)
    return await hr.in_thread(lambda: ProgressLog(hr.log, hr.log.stream("a")).bounds())


async def test_a_token_that_is_just_gone_and_one_that_is_just_there(catalog_url: str) -> None:
    async with opened(catalog_url) as hr:
        async with hr.epoch_publisher("a", "eu") as pub:
            for time in range(6):
                await pub.publish(time, "a.x", b"%d" % time, advance_to=time + 1)
            await pub.close()
        async with hr.epochs("a", start="earliest") as epochs:
            tokens = [epoch.token async for epoch in epochs]  # tokens[n]: from n + 1 on
        assert await since(hr) == (0,)
        await trim(hr, s0=3)
        for round in ("as trimmed", "lines trimmed", "looked at again"):
            assert await since(hr) == (3,), round
            for start in (tokens[1], 2, 0):
                with pytest.raises(HistoryGoneError, match="start from") as gone:
                    await given(hr, start=start)
                assert gone.value.since == (3,)
            wanted = [(3, [b"3"]), (4, [b"4"]), (5, [b"5"])]
            for options in (
                {"start": tokens[2]},
                {"start": gone.value.since},
                {"start": 1, "at_least": True},
                {"start": "earliest"},
            ):
                assert await given(hr, **options) == wanted, options
            assert await given(hr, start=tokens[3]) == wanted[1:]
            tail, head = await tidy(hr)
            assert (tail, head) == (4, 8)  # joined, six epochs, closed
        await trim(hr, s0=6)
        assert await since(hr) == (6,)
        assert (await tidy(hr))[0] == 7  # the last line stays: it says that the stream is closed
        assert await given(hr, start="earliest") == []
        assert await given(hr, start="open") == []


async def test_a_partial_order_half_gone(catalog_url: str) -> None:
    async with opened(catalog_url, length=2) as hr:
        async with hr.epoch_publisher("a", "eu") as pub:
            for time in ((0, 0), (0, 3), (2, 1), (1, 4), (3, 0)):
                await pub.publish(time, "a.x", str(time).encode())
            await pub.close()
        await trim(hr, s0=3)  # left: (1, 4) and (3, 0)
        for _ in range(2):
            assert await since(hr) == ((0, 4), (1, 2), (3, 0))
            for start in ((0, 0), (2, 1), (0, 3), (1, 1)):
                with pytest.raises(HistoryGoneError) as gone:
                    await given(hr, start=[start])
            assert [time for time, _ in await given(hr, start=gone.value.since)] == [(1, 4), (3, 0)]
            assert await given(hr, start=[(1, 2)]) == [((1, 4), [b"(1, 4)"])]
            assert await given(hr, start=[(3, 0)]) == [((3, 0), [b"(3, 0)"])]
            with pytest.raises(HistoryGoneError):  # one half of it is there, the other is not
                await given(hr, start=[(0, 3), (3, 0)])
            took = await given(hr, start=[(0, 3), (3, 0)], at_least=True)
            assert [time for time, _ in took] == [(1, 4), (3, 0)]
            await tidy(hr)


async def test_an_open_epoch_keeps_its_lines_and_is_not_given_short(catalog_url: str) -> None:
    async with opened(catalog_url) as hr, hr.epoch_publisher("a", "eu") as pub:
        await pub.publish(0, "a.x", b"0")
        await pub.publish(5, "a.x", b"early")
        for time in range(4):
            await pub.publish(time, "a.x", b"%d" % time, advance_to=time + 1)
        await trim(hr, s0=1)
        assert await since(hr) == (1,)
        await trim(hr, s0=4)  # the early row of 5, too
        assert await since(hr) == (6,)
        assert (await tidy(hr))[0] <= 2  # its line may be asked for by a take-back
        for start in ("open", 3, 5):
            with pytest.raises(HistoryGoneError) as gone:
                await given(hr, start=start)
            assert gone.value.since == (6,)
        await pub.publish(6, "a.x", b"6", advance_to=7)
        assert await given(hr, start="open", at_least=True, until=7) == []
        assert await given(hr, start=gone.value.since, until=7) == [(6, [b"6"])]


async def test_segments_that_are_trimmed_apart(catalog_url: str) -> None:
    async with opened(catalog_url, segments=2) as hr:
        async with hr.epoch_publisher("a", "eu") as pub:
            places = []
            for time in range(40):
                place = await pub.publish(time, "a.x", b"x", key=f"k{time}", advance_to=time + 1)
                places.append((place.segment, place.offset))
            await pub.close()
        cuts = {0: 0, 1: 0}
        for segment, cut in ((0, 3), (1, 7), (1, 8), (0, 4), (0, 12), (1, 15)):
            cuts[segment] = cut
            await trim(hr, **{f"s{segment}": cut})
            wanted = 1 + max(
                time for time, (its, offset) in enumerate(places) if offset < cuts[its]
            )
            assert await since(hr) == (wanted,)
            first = min(time for time, (its, offset) in enumerate(places) if offset >= cuts[its])
            tail, _ = await tidy(hr)
            assert tail == first + 1  # line 0 tells that the publisher joined
            assert await since(hr) == (wanted,)
            times = [time for time, _ in await given(hr, start="earliest")]
            assert times == list(range(wanted, 40))


async def test_how_a_stream_ended_is_told_when_all_rows_are_gone(catalog_url: str) -> None:
    async with opened(catalog_url) as hr:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.publish(1, "a.x", b"x", advance_to=2)
            await pub.abort("the source is broken")
        await trim(hr, s0=1)
        await tidy(hr)
        with pytest.raises(EpochsAbortedError, match="the source is broken"):
            await given(hr, start="earliest")


async def test_what_leaving_raises_is_heard_unless_the_block_raises(
    catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(catalog_url) as hr:

        def broken(*_: object) -> bool:
            raise CatalogUnavailableError("the catalog is gone")

        with pytest.raises(CatalogUnavailableError):
            async with hr.epoch_publisher("a", "eu"):
                monkeypatch.setattr("headrace.catalog.leases.release", broken)
        with pytest.raises(ZeroDivisionError):
            async with hr.epoch_publisher("a", "us"):
                raise ZeroDivisionError
        monkeypatch.undo()
        async with hr.epoch_publisher("a", "uk") as pub:
            name = stored.lease_name(pub.where.stream.id, "uk")
            await hr.in_thread(lambda: hr.log.catalog.write(lambda tx: leases.fence(tx, name)))


async def tails(hr: headrace.Headrace) -> list[int]:
    return await hr.in_thread(lambda: [one.tail for one in hr.log.stream("a").segments])


async def test_a_named_subscription_holds_rows_back_from_before_its_start(
    catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(catalog_url, segments=2, retention=headrace.Groups()) as hr:
        async with hr.epoch_publisher("a", "eu") as pub:
            places = []
            for time in range(20):
                place = await pub.publish(time, "a.x", b"x", key=f"k{time}", advance_to=time + 1)
                places.append(place)
        resolve, during = starting.resolve, []

        def slowly(*given: Any, **options: Any) -> starting.EpochBegin:
            housekeeping.tidy(hr.log, "test", 60_000)  # the start is being chosen
            during.append([one.tail for one in hr.log.stream("a").segments])
            return resolve(*given, **options)

        monkeypatch.setattr(starting, "resolve", slowly)
        async with hr.epochs("a", name="report", start="earliest") as epochs:
            assert during == [[0, 0]]
            async for epoch in epochs:
                await tidy(hr)
                assert epoch.time == 0 or await since(hr) == (epoch.time,)
                if epoch.time == 12:
                    break
                await epoch.ack()
        await tidy(hr)
        left = [0, 0]
        for place in places[:12]:
            left[place.segment] = place.offset + 1
        assert await tails(hr) == left
        assert (
            await hr.in_thread(lambda: hr.log.catalog.read(lambda tx: [*audit.examine(tx)])) == []
        )
        async with hr.epochs("a", name="report", until=20) as epochs:
            assert [epoch.time async for epoch in epochs] == list(range(12, 20))
        await hr.forget_epoch_subscription("report")
        await tidy(hr)
        assert await tails(hr) == left  # without any group nothing is consumed


async def test_a_subscription_whose_start_was_refused_holds_nothing(catalog_url: str) -> None:
    async with opened(catalog_url, retention=headrace.Groups()) as hr:
        async with hr.epoch_publisher("a", "eu") as pub:
            for time in range(4):
                await pub.publish(time, "a.x", b"x", advance_to=time + 1)
        await trim(hr, s0=2)
        with pytest.raises(HistoryGoneError):
            await given(hr, start=1, name="report")
        assert await hr.epoch_subscriptions() == ()
        took = await given(hr, start=1, name="report", at_least=True, until=4)
        assert [time for time, _ in took] == [2, 3]
        assert [one.frontier for one in await hr.epoch_subscriptions()] == [(2,)]
