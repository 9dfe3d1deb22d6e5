"""From open to close: closing beside others, cancelled openings, what is dropped, other loops."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace.sync
from headrace.catalog import epoch_subscriptions, epochs, leases
from headrace.errors import CatalogClosedError, InvalidInputError, WrongLoopError
from tests.api.test_client import run, values_of
from tests.support import PATIENCE_S, until, wait_until

CLOSE_S = 1.0
LEFT = 500
"""``python -m bench.unbreakable`` leaves 10,000 and times the publish beside them."""


async def opened(folder: Path) -> headrace.Headrace:
    hr = await headrace.open(folder).__aenter__()
    await hr.create_stream("s", ["s.>"])
    return hr


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_closing_beside_publishers_takes_no_more_and_keeps_what_it_took(catalog_url: str) -> None:
    stored: list[bytes] = []
    refused: list[CatalogClosedError] = []

    async def publishing(hr: headrace.Headrace, who: int) -> None:
        for number in range(10**9):
            try:
                await hr.publish("s.x", b"%d %d" % (who, number))
            except CatalogClosedError as error:
                refused.append(error)
                return
            stored.append(b"%d %d" % (who, number))

    async def work() -> None:
        hr = await headrace.open(catalog_url).__aenter__()
        await hr.create_stream("s", ["s.>"])
        tasks = [asyncio.create_task(publishing(hr, who)) for who in range(20)]
        await until(lambda: len(stored) >= 100)
        began_s = time.monotonic()
        await hr.close()
        assert time.monotonic() - began_s < CLOSE_S
        await asyncio.gather(*tasks)
        async with headrace.open(catalog_url) as again:
            assert sorted(await values_of(again, "s")) == sorted(stored)

    run(work())
    assert len(refused) == 20
    assert "clos" in str(refused[0])


def test_closing_beside_a_blocking_publisher_returns(tmp_path: Path) -> None:
    stored: list[int] = []

    def publishing(hr: headrace.sync.Headrace) -> None:
        with suppress(CatalogClosedError):
            for number in range(10**9):
                hr.publish("s.x", b"%d" % number)
                stored.append(number)

    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("s", ["s.>"])
        thread = threading.Thread(target=publishing, args=(hr,), daemon=True)
        thread.start()
        wait_until(lambda: len(stored) > 10, "some events")
        began_s = time.monotonic()
    assert time.monotonic() - began_s < CLOSE_S
    thread.join(5)
    assert not thread.is_alive()
    with headrace.sync.open(tmp_path / "d") as hr:
        values = [v for b in hr.read("s") for v in b.column("value").to_pylist()]
    assert values == [b"%d" % number for number in stored]


def test_closing_closes_sessions_members_and_reads(tmp_path: Path) -> None:
    async def work() -> None:
        hr = await opened(tmp_path / "d")
        await hr.create_stream("p", ["p.>"], partitions=1)
        await hr.groups.create_static("p", "g", max_members=1, members=["m"])
        session = await hr.session("worker").__aenter__()
        await session.subscribe("$share/g/s.>", start="earliest")
        await session.subscribe("s.>")
        member = await hr.join("p", "g", "m").__aenter__()

        async def consume(source: Any) -> None:
            async for _ in source:
                pass

        ends = [
            asyncio.create_task(consume(source))
            for source in (session, member, hr.read("s", follow=True))
        ]
        await until(lambda: session.units and member.status.partitions, "all to be at work")
        await hr.close()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*ends, return_exceptions=True)
        async with headrace.open(tmp_path / "d") as again:
            assert [each.node for each in await again.sessions()] == [None]
            assert (await again.groups.active("p", "g")).active == ()

    run(work())


def test_a_log_can_be_closed_twice_at_once_and_again(tmp_path: Path) -> None:
    async def work() -> None:
        hr = await opened(tmp_path / "d")
        publishing = [asyncio.create_task(hr.publish("s.x", b"%d" % n)) for n in range(50)]
        await asyncio.sleep(0)
        await asyncio.gather(hr.close(), hr.close(), hr.close())
        assert [task.result().offset for task in publishing] == list(range(50))
        await hr.close()
        with pytest.raises(CatalogClosedError):
            await hr.publish("s.x", b"late")

    run(work())


def test_a_close_that_is_cancelled_goes_on_and_leaves_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        before = threading.active_count()
        for turns in range(12):
            hr = await headrace.open(tmp_path / "d").__aenter__()
            if not turns:
                await hr.create_stream("s", ["s.>"])
            await hr.session().__aenter__()
            publishing = asyncio.create_task(hr.publish("s.x", b"%d" % turns))
            await asyncio.sleep(0)
            closing = asyncio.create_task(hr.close())
            for _ in range(turns * 3 + 1):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            with pytest.raises(CatalogClosedError):
                await hr.publish("s.x", b"late")
            await hr.close()
            await publishing
        await asyncio.to_thread(
            wait_until, lambda: threading.active_count() <= before + 1, "the threads' end"
        )
        async with headrace.open(tmp_path / "d") as again:
            assert await values_of(again, "s") == [b"%d" % n for n in range(12)]

    run(work())


# -- opening -------------------------------------------------------------------------------


def test_an_opening_that_is_cancelled_leaves_no_threads_and_no_files(tmp_path: Path) -> None:
    async def first() -> None:
        await (await opened(tmp_path / "d")).close()

    async def cancelling() -> None:
        for turn in range(60):
            opening = asyncio.create_task(headrace.open(tmp_path / "d").__aenter__())
            await asyncio.sleep(turn * 0.00005)
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled():
                await opening.result().close()

    run(first())
    gc.collect()
    before = threading.active_count(), descriptors()
    run(cancelling())
    gc.collect()
    wait_until(lambda: threading.active_count() <= before[0], "the threads' end")
    wait_until(lambda: descriptors() <= before[1], "the descriptors' end")


@pytest.mark.parametrize("url", [None, 5, b"data", 1.5, "", "a\0b", ["d"], "\ud800"])
def test_what_is_no_place_is_refused_and_makes_no_folder(
    url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="url"), headrace.sync.open(url):
        pass
    if url is not None:
        with (
            pytest.raises(InvalidInputError, match="store"),
            headrace.sync.open("d", store=url),
        ):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_memory_is_remembered_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with headrace.sync.open("m", store="memory://"):
        pass
    with headrace.sync.open("m") as hr:
        assert hr.client.log.store is not None
        assert hr.client.log.store.url == "memory://"
    assert [each.name for each in tmp_path.iterdir()] == ["m"]


# -- other loops ---------------------------------------------------------------------------


def on_another_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> BaseException | None:
    """What a call raises in a thread with an event loop of its own."""
    found: list[BaseException | None] = [None]

    def call() -> None:
        try:
            asyncio.run(asyncio.wait_for(work(), 5))
        except BaseException as error:
            found[0] = error

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(10)
    return found[0]


def calls(hr: headrace.Headrace) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
    async def session() -> None:
        async with hr.session():
            pass

    async def member() -> None:
        async with hr.join("s", "g", "m"):
            pass

    async def transaction() -> None:
        async with hr.transaction() as tx:
            tx.publish("s.x", b"1")

    async def appender() -> None:
        async with hr.appender("s") as appending:
            await appending.append([headrace.Event(subject="s.x", value=b"")])

    return [
        *(lambda: hr.publish("s.x", b"1"), lambda: hr.append("s", []), hr.streams, session),
        *(lambda: anext(hr.read("s")), member, transaction, appender, hr.shared_groups.list),
        *(lambda: hr.groups.list("s"),),
    ]


def test_a_log_is_used_on_the_loop_it_was_opened_on(tmp_path: Path) -> None:
    async def work() -> None:
        hr = await opened(tmp_path / "d")
        for call in [*calls(hr), hr.close]:
            error = await asyncio.to_thread(on_another_loop, call)
            assert isinstance(error, WrongLoopError), (call, error)
        await hr.publish("s.x", b"1")
        async with asyncio.timeout(PATIENCE_S):
            await hr.close()

    run(work())


def test_a_log_whose_loop_is_closed_says_so_and_can_be_closed(tmp_path: Path) -> None:
    hr = asyncio.run(opened(tmp_path / "d"))
    before = threading.active_count()
    for call in calls(hr):
        assert isinstance(on_another_loop(call), WrongLoopError)
    assert on_another_loop(hr.close) is None
    wait_until(lambda: threading.active_count() < before, "the threads' end")
    run(hr.close())


def test_without_asyncio_there_is_one_clear_error(tmp_path: Path) -> None:
    opening = headrace.open(tmp_path / "d").__aenter__()
    with pytest.raises(WrongLoopError, match="asyncio"):
        opening.send(None)  # as trio would: no event loop of asyncio runs
    hr = headrace.open(tmp_path / "d")
    with pytest.raises(CatalogClosedError):
        hr.publish("s.x", b"").send(None)
    assert not (tmp_path / "d").exists()


# -- what is dropped -----------------------------------------------------------------------


def test_follow_reads_that_were_left_cost_a_publish_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        hr = await opened(tmp_path / "d")
        await hr.publish("s.x", b"1")
        for _ in range(LEFT):
            async for _batch in hr.read("s", follow=True):
                break
        gc.collect()
        notifier = hr.log.catalog.notifier
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: not any(notifier._callbacks.values()))
        await hr.close()

    run(work())


def test_a_read_that_follows_and_was_never_closed_warns(tmp_path: Path) -> None:
    async def work() -> None:
        hr = await opened(tmp_path / "d")
        await hr.publish("s.x", b"1")
        async with hr.read("s", follow=True) as reading:
            await anext(reading)
        gc.collect()  # what other tests left
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del reading
            gc.collect()
        reading = hr.read("s", follow=True)
        await anext(reading)
        with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031
            del reading
            gc.collect()
        await hr.close()

    run(work())


def test_a_session_that_was_dropped_warns_and_ends(tmp_path: Path) -> None:
    async def work() -> None:
        hr = await opened(tmp_path / "d")
        session = await hr.session("dropped").__aenter__()
        await session.subscribe("s.>")
        await session.subscribe("$share/g/s.>")
        await until(lambda own=session: own.units, "a segment of the group")  # type: ignore[misc]
        with pytest.warns(ResourceWarning, match="dropped"):  # noqa: PT031
            del session
            gc.collect()

        async def offline() -> bool:
            return (await hr.sessions())[0].node is None

        async with asyncio.timeout(PATIENCE_S):
            await until(offline)
        await hr.close()

    run(work())


def test_a_log_that_was_dropped_warns_and_its_threads_end(tmp_path: Path) -> None:
    before = threading.active_count()

    async def work() -> None:
        hr = await opened(tmp_path / "d")
        await hr.publish("s.x", b"1")
        with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031
            del hr
            gc.collect()
        await asyncio.to_thread(
            wait_until, lambda: threading.active_count() <= before + 1, "the threads' end"
        )

    run(work())


def test_a_log_that_was_dropped_after_its_loop_ended_warns_and_its_threads_end(
    tmp_path: Path,
) -> None:
    before = threading.active_count(), descriptors()
    hr = asyncio.run(opened(tmp_path / "d"))
    with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031
        del hr
        gc.collect()
    wait_until(lambda: threading.active_count() <= before[0], "the threads' end")
    wait_until(lambda: descriptors() <= before[1], "the descriptors' end")


def test_a_blocking_log_that_was_dropped_warns_and_its_threads_end(tmp_path: Path) -> None:
    before = threading.active_count(), descriptors()
    hr = headrace.sync.open(tmp_path / "d").__enter__()
    hr.create_stream("s", ["s.>"])
    with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031
        del hr
        gc.collect()
    wait_until(lambda: threading.active_count() <= before[0], "the threads' end")
    wait_until(lambda: descriptors() <= before[1], "the descriptors' end")


def blocking_calls(hr: headrace.sync.Headrace) -> list[Callable[[], object]]:
    def entered(make: Callable[[], Any]) -> Callable[[], object]:
        return lambda: make().__enter__()

    return [
        *(
            hr.streams,
            hr.sessions,
            hr.sweep,
            lambda: hr.stream("s"),
            lambda: hr.publish("s.x", b""),
        ),
        *(lambda: hr.append("s", []), lambda: list(hr.read("s")), lambda: next(hr.tail("s"))),
        *(entered(hr.session), entered(lambda: hr.join("s", "g", "m")), entered(hr.transaction)),
        *(lambda: hr.groups.list("s"), lambda: hr.shared_groups.list()),
        *(lambda: hr.appender("s").append([headrace.Event(subject="s.x", value=b"")]),),
    ]


def test_a_blocking_log_that_was_never_entered_leaves_nothing(tmp_path: Path) -> None:
    before = descriptors()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logs = [headrace.sync.open(tmp_path / "d") for _ in range(20)]
        for call in blocking_calls(logs[0]):
            with pytest.raises(CatalogClosedError, match="not open"):
                call()
        del logs, call
        gc.collect()
    assert descriptors() <= before


async def left(hr: headrace.Headrace, kind: str) -> str:
    """Open something and forget it; the name of the lease that it had."""
    match kind:
        case "member":
            member = await hr.join("p", "g", "m").__aenter__()
            await member.settled()
            return member.running.pin
        case "reader":
            group = await hr.reader_groups.get("r")
            reader = await group.reader("r1").__aenter__()
            return reader.name.lease("r1")
        case "epoch publisher":
            publisher = await hr.epoch_publisher("e", "eu").__aenter__()
            return epochs.lease_name(publisher.where.stream.id, "eu")
        case _:
            await hr.epochs("e", name="report").__aenter__()
            return epoch_subscriptions.lease_name("report")


@pytest.mark.parametrize("kind", ["member", "reader", "epoch publisher", "epochs"])
def test_what_was_dropped_warns_and_gives_back_what_it_held(tmp_path: Path, kind: str) -> None:
    async def work() -> None:
        hr = await opened(tmp_path / "d")
        await hr.create_stream("p", ["p.>"], partitions=1)
        await hr.create_stream("e", ["e.>"], epochs=headrace.Epochs())
        await hr.groups.create_static("p", "g", max_members=1, members=["m"])
        await hr.reader_groups.create("r", streams=["s"])
        with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031
            lease = await left(hr, kind)
            gc.collect()
        async with asyncio.timeout(3):  # leases last 5 s and longer
            await until(lambda: hr.log.catalog.read(lambda tx: leases.get(tx, lease)) is None)
        await hr.close()

    run(work())


def test_who_iterates_keeps_a_member_and_whoever_closed_is_not_warned(tmp_path: Path) -> None:
    async def work() -> None:
        hr = await opened(tmp_path / "d")
        await hr.create_stream("p", ["p.>"], partitions=1)
        await hr.groups.create_static("p", "g", max_members=1, members=["m"])
        await hr.publish("p.x", b"1")
        deliveries = aiter(await hr.join("p", "g", "m").__aenter__())
        gc.collect()
        await (await anext(deliveries)).ack()
        await hr.close()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(work())
        gc.collect()


def test_closing_gives_back_what_readers_and_epochs_held(tmp_path: Path) -> None:
    async def ended(source: Any) -> str:
        try:
            async for _ in source:
                pass
        except CatalogClosedError:
            return "closed"
        return "ended"

    async def work() -> None:
        hr = await opened(tmp_path / "d")
        await hr.create_stream("e", ["e.>"], epochs=headrace.Epochs())
        group = await hr.reader_groups.create("r", streams=["s"])
        reader = await group.reader("r1").__aenter__()
        publisher = await hr.epoch_publisher("e", "eu").__aenter__()
        named = await hr.epochs("e", name="report").__aenter__()
        ends = [asyncio.create_task(ended(source)) for source in (reader, named)]
        await asyncio.sleep(0)
        began_s = time.monotonic()
        await asyncio.gather(hr.close(), hr.close())
        assert time.monotonic() - began_s < CLOSE_S
        async with asyncio.timeout(PATIENCE_S):
            assert set(await asyncio.gather(*ends)) <= {"closed", "ended"}
        with pytest.raises(CatalogClosedError):
            await publisher.advance_to(1)
        async with headrace.open(tmp_path / "d") as again:
            held = again.log.catalog.read(
                lambda tx: tx.rows("SELECT name FROM leases WHERE owner <> ''")
            )
            assert held == []

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(work())
        gc.collect()
