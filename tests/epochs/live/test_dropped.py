"""Live publishers and subscriptions that nobody closed: they warn, and end all the same."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest

import headrace.sync
from headrace.epochs.live import addresses
from tests.epochs.live.support import programs, rows, run, values
from tests.support import until, wait_until


def test_a_publisher_that_was_dropped_warns_and_its_subscribers_hear_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with programs(tmp_path, 2) as (one, other), other.subscription() as heard:
            publisher = await one.publisher("eu").__aenter__()
            await publisher.wait_for_subscribers(1)
            server, _ = await one.hr._live.server()
            assert server.publishers
            with pytest.warns(ResourceWarning, match="'eu' of 'days'.*never closed"):  # noqa: PT031
                del publisher
                gc.collect()
            await until(lambda: heard.end == "aborted")
            await until(lambda: not server.publishers and not server._by_name)
            stream = await one.hr.stream("days")
            catalog = one.hr.log.catalog
            await until(lambda: not catalog.read(lambda tx: addresses.all_of(tx, stream.id)))
            async with one.publisher("eu"):  # the name is free
                pass

    run(main())


def test_a_subscription_that_was_dropped_warns_and_holds_nobody_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with programs(tmp_path, 2) as (one, other), one.publisher("eu") as publisher:
            listening = await other.subscription(batches_max=1).__aenter__()
            await publisher.wait_for_subscribers(1)
            callbacks = other.hr.log.catalog.notifier._callbacks
            with pytest.warns(ResourceWarning, match="'days'.*never closed"):  # noqa: PT031
                del listening
                gc.collect()
            await until(lambda: not publisher.subscribers)
            await until(lambda: not any(name.startswith("bucket:live") for name in callbacks))
            for time in range(50):
                await publisher.append(time, rows("x"), advance_to=time + 1)
            await publisher.close()

    run(main())


def test_who_iterates_keeps_a_subscription_and_whoever_closed_is_not_warned(tmp_path: Path) -> None:
    async def main() -> None:
        async with programs(tmp_path, 1) as (one,), one.publisher("eu") as publisher:
            epochs = aiter(await one.subscription().__aenter__())
            gc.collect()
            await publisher.wait_for_subscribers(1)
            await publisher.append(0, rows("a"), advance_to=1)
            assert await values(await anext(epochs)) == ["a"]
            await publisher.close()
            assert [each async for each in epochs] == []

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(main())
        gc.collect()


def test_blocking_ones_that_were_dropped_warn_as_well(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("days", ["days.>"], epochs=headrace.Epochs(stored=False))
        made = [hr.live_publisher("days", "eu").__enter__()]
        heard = hr.live_epochs("days").__enter__()
        wait_until(lambda: made[0].subscribers == 1, "the subscription")
        with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031
            del heard
            gc.collect()
        wait_until(lambda: made[0].subscribers == 0, "its end")
        with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031
            made.clear()
            gc.collect()
        wait_until(lambda: _is_free(hr), "the name")


def _is_free(hr: headrace.sync.Headrace) -> bool:
    try:
        with hr.live_publisher("days", "eu"):
            return True
    except headrace.HeadraceError:
        return False
