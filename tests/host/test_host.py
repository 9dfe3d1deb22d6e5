"""The host: tasks whose failures are told, an end in order, and news that reaches the loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import headrace
from headrace.errors import CatalogClosedError, HeadraceError
from headrace.host import Host, Stage
from headrace.testing import driven_clock, run


@asynccontextmanager
async def host_on(folder: Path) -> AsyncIterator[Host]:
    async with headrace.open(folder, housekeeping=False) as hr:
        yield hr.host


def bare() -> Host:
    """One without a log, which clock, timers and tasks do not need."""
    host = Host()
    host.start()
    return host


async def fail(error: BaseException) -> None:
    raise error


# -- time -------------------------------------------------------------------------------


def test_time_timers_and_waits_run_by_one_clock() -> None:
    async def main() -> None:
        host, clock = bare(), driven_clock()
        begin_ms, begin_s = host.now_ms(), host.now_s()
        seen: list[str] = []
        host.after(2, lambda: seen.append("timer"))
        cleared = host.after(2, lambda: seen.append("cleared"))
        cleared.clear()
        sleeping = host.spawn(host.sleep(3))
        await clock.advance(2.5)
        assert (host.now_ms() - begin_ms, host.now_s() - begin_s) == (2500, 2.5)
        assert seen == ["timer"]
        assert not sleeping.done()
        await clock.advance(0.5)
        assert sleeping.done()

    run(main())


def test_heartbeats_meet_at_common_moments_and_are_never_late() -> None:
    async def main() -> None:
        host, clock = bare(), driven_clock()
        moments = set()
        for _ in range(20):
            await clock.advance(0.137)
            wait_s = host.beat_s(5000)
            assert 4.5 <= wait_s <= 5
            moments.add(round(host.now_ms() + wait_s * 1000))
        assert all(moment % 500 == 0 for moment in moments)
        assert len(moments) <= 7
        assert host.beat_s(1) == 0.001

    run(main())


@pytest.mark.parametrize("comes", [True, False])
def test_a_wait_for_an_event_ends_with_it_or_with_the_time(comes: bool) -> None:
    async def main() -> None:
        host, event = bare(), asyncio.Event()
        begin_s = host.now_s()
        if comes:
            host.after(1, event.set)
        assert await host.wait(event, 5) is comes
        assert host.now_s() - begin_s == (1 if comes else 5)

    run(main(), autojump=True)


# -- tasks ------------------------------------------------------------------------------


def test_a_failure_that_nobody_waits_for_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        host = bare()
        host.tasks("readers").spawn(fail(LookupError("gone astray")))
        host.spawn(fail(CatalogClosedError("the program is ending")))
        await driven_clock().settle()

    with caplog.at_level(logging.ERROR):
        run(main())
    assert [record.getMessage() for record in caplog.records] == ["readers: gone astray"]


def test_a_failure_that_is_awaited_is_for_whoever_does(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        task = bare().spawn(fail(LookupError("gone astray")), awaited=True)
        with pytest.raises(LookupError):
            await task

    run(main())
    assert not caplog.records


def test_the_tasks_of_a_part_end_with_it() -> None:
    async def main() -> None:
        host = bare()
        tasks, ended = host.tasks("part"), list[int]()

        async def work(number: int) -> None:
            try:
                await host.sleep(100)
            finally:
                ended.append(number)

        for number in range(3):
            tasks.spawn(work(number))
        await driven_clock().settle()
        assert len(tasks) == 3
        await tasks.close()
        assert ended == [0, 1, 2]
        assert len(tasks) == 0

    run(main())


def test_nothing_of_a_program_runs_on_after_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        seen: list[str] = []
        async with host_on(tmp_path / "data") as host:
            part = host.tasks("part")
            tasks = [part.spawn(host.sleep(10)), host.spawn(host.sleep(10))]
            host.after(10, lambda: seen.append("a timer"))
        assert all(task.cancelled() for task in tasks)
        await driven_clock().advance(20)
        assert not seen
        with pytest.raises(CatalogClosedError):
            await host.in_thread(print)

    run(main())


# -- the end ----------------------------------------------------------------------------


class Service:
    def __init__(self, name: str, ended: list[str], error: HeadraceError | None = None) -> None:
        self.name = name
        self.ended = ended
        self.error = error

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.ended.append(self.name)
        if self.error is not None:
            raise self.error


def test_services_end_stage_by_stage_and_within_one_in_their_order(tmp_path: Path) -> None:
    async def main() -> list[str]:
        ended: list[str] = []
        async with host_on(tmp_path / "data") as host:
            kept = []
            for stage in (Stage.CHORES, Stage.MEMBERS, Stage.APPENDERS, Stage.LEADERS):
                for number in (1, 2):
                    kept.append(Service(f"{stage.name} {number}", ended))
                    host.serve(stage, kept[-1])
            host.serve(Stage.MEMBERS, Service("one that is forgotten", ended))
        return ended

    stages = ("APPENDERS", "MEMBERS", "LEADERS", "CHORES")
    assert run(main()) == [f"{stage} {number}" for stage in stages for number in (1, 2)]


def test_a_service_that_fails_does_not_keep_the_rest_open(tmp_path: Path) -> None:
    async def main() -> None:
        ended: list[str] = []
        failing = Service("member", ended, HeadraceError("an ack does not count"))
        other = Service("chores", ended)
        hr = headrace.open(tmp_path / "data", housekeeping=False)
        await hr.__aenter__()
        hr.host.serve(Stage.MEMBERS, failing)
        hr.host.serve(Stage.CHORES, other)
        with pytest.raises(HeadraceError, match="does not count"):
            await hr.close()
        assert ended == ["member", "chores"]
        assert not hr.host.is_open

    run(main())


def test_appends_that_were_not_stored_are_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        failing = Service("appender", [], HeadraceError("no room"))
        async with host_on(tmp_path / "data") as host:
            host.serve(Stage.APPENDERS, failing)

    run(main())
    assert "appends were not stored: no room" in caplog.text


# -- news -------------------------------------------------------------------------------


def test_news_reaches_the_loop_from_any_thread_until_it_is_no_longer_wanted(
    catalog_url: str,
) -> None:
    async def main() -> None:
        async with headrace.open(catalog_url, housekeeping=False) as hr:
            heard, threads = asyncio.Event(), set[int]()

            def hear() -> None:
                threads.add(threading.get_ident())
                heard.set()

            stop = await hr.in_thread(hr.host.on_news, "channel", hear)
            for _ in range(3):
                await hr.in_thread(hr.log.catalog.write, lambda tx: tx.notify("channel"))
                async with asyncio.timeout(20):
                    await heard.wait()
                heard.clear()
            assert threads == {threading.get_ident()}
            stop()
            await hr.in_thread(hr.log.catalog.write, lambda tx: tx.notify("channel"))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not heard.is_set()

    asyncio.run(main())


def test_a_callback_that_fails_does_not_keep_news_from_others(tmp_path: Path) -> None:
    async def main() -> tuple[list[str], list[type[BaseException]]]:
        async with host_on(tmp_path / "data") as host:
            told, failures = list[str](), list[type[BaseException]]()
            host.loop.set_exception_handler(lambda _, c: failures.append(type(c["exception"])))
            host.on_news("channel", lambda: told.remove("missing"))
            host.on_news("channel", lambda: told.append("the other"))
            host.log.catalog.notifier.news(["channel"])
            await asyncio.sleep(0)
            return list(told), list(failures)

    assert run(main()) == (["the other"], [ValueError])


def test_news_that_comes_at_once_is_told_once_and_news_after_it_again(tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with host_on(tmp_path / "data") as host:
            told: list[int] = []
            notifier = host.log.catalog.notifier
            host.on_news("channel", lambda: told.append(1))
            for count in (3, 1):
                for _ in range(count):
                    notifier.news(["channel", "another"])
                await asyncio.sleep(0)
            return list(told)

    assert run(main()) == [1, 1]
