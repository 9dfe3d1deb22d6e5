"""One line for all that a program writes: nothing overtakes, and one failure is nobody else's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace.sync
from headrace.errors import DiskFullError, InvalidEventError
from headrace.host import loads
from headrace.host.packages import Package
from headrace.log import limits
from headrace.log.append import Stale, Write
from tests.api.test_client import rows_of, run, table_of


@pytest.fixture(params=["on the event loop", "on threads"])
def loop_io(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every commit that may be is made by the event loop, or none."""
    monkeypatch.setattr(loads, "HELD_UP_S", 60.0)
    monkeypatch.setattr(loads, "SEEN_MIN", 0)
    return bool(request.param == "on the event loop")


def one(number: int, key: str = "k") -> Any:
    return table_of(["a.x"], [b"%d" % number], [key])


async def numbers(hr: headrace.Headrace, key: str = "k") -> list[int]:
    return [int(row["value"]) for row in await rows_of(hr, "a") if row["key"] == key]


class Caller:
    """Writes numbered events of one key in any way, and waits only where there is no other way."""

    def __init__(self, hr: headrace.Headrace, seed: int) -> None:
        self.hr = hr
        self.rng = random.Random(seed)
        self.appenders = [hr.appender("a"), hr.appender("a")]
        self.calls: list[asyncio.Task[Any]] = []

    async def call(self, number: int) -> None:
        value, hr = b"%d" % number, self.hr
        match self.rng.randrange(6):
            case 0 | 1:
                self._start(hr.publish("a.x", value, key="k"))
            case 2:
                self._start(hr.append("a", one(number)))
            case 3:
                self._start(hr.append("a", one(number), producer="p", sequence=number))
            case 4:
                await asyncio.sleep(0)  # so that all calls so far have begun
                async with hr.transaction() as tx:
                    tx.append("a", one(number))
            case _:
                await asyncio.sleep(0)
                event = headrace.Event(subject="a.x", value=value, key="k")
                await self.rng.choice(self.appenders).append(event)

    def _start(self, call: Coroutine[Any, Any, Any]) -> None:
        self.calls.append(asyncio.create_task(call))

    async def ended(self) -> None:
        await asyncio.gather(*self.calls)
        for appender in self.appenders:
            await appender.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_key_keeps_the_order_of_calls_of_every_kind(
    catalog_url: str, loop_io: bool, seed: int
) -> None:
    """Also for streams that were not known, of several turns, and while others split and merge."""

    async def work() -> None:
        async with (
            headrace.open(catalog_url, loop_io=loop_io) as hr,
            headrace.open(catalog_url) as other,
        ):
            await other.create_stream("a", subjects=["a.>"], segments=2)
            caller = Caller(hr, seed)
            scaling = asyncio.create_task(scale(other))
            number = 0
            while number < 150 or not scaling.done():
                await caller.call(number)
                number += 1
                if caller.rng.random() < 0.2:
                    await asyncio.sleep(caller.rng.choice((0, 0, 0.001)))
            await caller.ended()
            assert await numbers(hr) == list(range(number))

    async def scale(hr: headrace.Headrace) -> None:
        for _ in range(3):
            for segment in (await hr.stream("a")).open_segments[:1]:
                opened = (await hr.split("a", segment.number)).opened
                await hr.merge("a", opened)

    run(work())


def test_what_follows_an_appender_in_a_script_comes_behind_it(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("a", subjects=["a.>"])
        with hr.appender("a") as appender:
            for number in range(0, 90, 3):
                appender.append(one(number))
                hr.publish("a.x", b"%d" % (number + 1), key="k")
                hr.append("a", one(number + 2))
        assert hr.run(numbers(hr.client)) == list(range(90))


def test_one_at_fault_among_many_neither_stops_nor_reorders_the_others(
    catalog_url: str, loop_io: bool
) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url, loop_io=loop_io) as hr:
            await hr.create_stream("a", subjects=["a.>"], segments=2)
            await hr.publish("a.x", b"0", key="k")
            calls: list[Coroutine[Any, Any, Any]] = [
                hr.append("a", one(1)),
                hr.append("a", table_of(["elsewhere"], [b""], ["k"])),
                hr.publish("a.x", b"2", key="k"),
                hr.append("a", one(3), producer="p", sequence=1),
                hr.append("a", one(4)),
            ]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            bad = [at for at, answer in enumerate(answers) if isinstance(answer, BaseException)]
            assert bad == [1]
            assert isinstance(answers[1], InvalidEventError)
            assert await numbers(hr) == [0, 1, 2, 3, 4]

    run(work())


def test_nothing_of_a_group_goes_before_events_whose_segment_was_sealed(
    catalog_url: str, loop_io: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of three packages is found to be stale, although the others are not."""
    plain = Write.run
    tries: list[Write] = []

    def run_once_stale(write: Write, tx: Any) -> Any:
        tries.append(write)
        if len(tries) == 1:
            raise Stale("a")
        return plain(write, tx)

    async def work() -> None:
        async with headrace.open(catalog_url, loop_io=loop_io) as hr:
            await hr.create_stream("a", subjects=["a.>"])
            await hr.publish("a.x", b"0", key="k")
            monkeypatch.setattr(Write, "run", run_once_stale)
            await asyncio.gather(
                *(hr.append("a", one(at), producer="p", sequence=at) for at in (1, 2, 3))
            )
            assert len(tries) == 4
            assert await numbers(hr) == [0, 1, 2, 3]

    run(work())


def test_the_line_waits_while_what_is_ahead_is_settled(
    catalog_url: str, loop_io: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment was sealed under the first; nothing is wrong with the second."""
    plain_run, tries = Write.run, iter([Stale("a")])

    def run_once_stale(write: Write, tx: Any) -> Any:
        for stale in tries:
            raise stale
        return plain_run(write, tx)

    async def work() -> None:
        async with headrace.open(catalog_url, loop_io=loop_io) as hr:
            await hr.create_stream("a", subjects=["a.>"])
            await hr.publish("a.x", b"0", key="k")
            settling, release = asyncio.Event(), asyncio.Event()
            plain = hr.in_thread

            async def held(fn: Any, *args: Any) -> Any:
                settling.set()
                await release.wait()
                return await plain(fn, *args)

            monkeypatch.setattr(hr.host.writes, "_in_thread", held)
            monkeypatch.setattr(Write, "run", run_once_stale)
            first = asyncio.create_task(hr.publish("a.x", b"1", key="k"))
            await settling.wait()
            second = asyncio.create_task(hr.publish("a.x", b"2", key="k"))
            await asyncio.sleep(0)
            await hr.host.in_transaction(lambda tx: None)  # a commit later
            assert await numbers(hr) == [0]
            release.set()
            await asyncio.gather(first, second)
            assert await numbers(hr) == [0, 1, 2]

    run(work())


def test_an_appender_stops_at_its_failure_within_a_group_and_others_do_not(
    catalog_url: str, loop_io: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two packages of one appender are handed over together, and the first cannot be stored."""
    plain = Package.run

    def run_but_one(package: Package, tx: Any) -> Any:
        outcome = plain(package, tx)
        if package.items[0].lane is not None and not failed:
            failed.append(package)
            error = DiskFullError("no room")
            package.failed(error)
            raise error
        return outcome

    failed: list[Package] = []

    async def work() -> None:
        async with headrace.open(catalog_url, loop_io=loop_io) as hr:
            await hr.create_stream("a", subjects=["a.>"])
            await hr.publish("a.x", b"0", key="other")
            monkeypatch.setattr(limits, "INLINE_BYTES", 1)  # so that nothing is joined
            monkeypatch.setattr(Package, "run", run_but_one)
            appender = hr.appender("a")
            published = []
            for at in (1, 2, 3):
                await appender.append(headrace.Event(subject="a.x", value=b"%d" % at, key="k"))
                call = hr.publish("a.x", b"%d" % at, key="other")
                published.append(asyncio.create_task(call))
            with pytest.raises(DiskFullError):
                await appender.flush()
            await asyncio.gather(*published)
            assert await numbers(hr) == []
            assert await numbers(hr, "other") == [0, 1, 2, 3]

    run(work())


def test_acks_do_not_wait_for_events_that_are_being_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("a", subjects=["a.>"])
            release = asyncio.Event()
            plain = hr.in_thread

            async def held(fn: Any, *args: Any, **how: Any) -> Any:
                await release.wait()
                return await plain(fn, *args, **how)

            monkeypatch.setattr(hr.host.writes, "_in_thread", held)
            # Nobody has asked for the stream's segments yet, so a thread has to.
            waiting = asyncio.create_task(hr.publish("a.x", b"0", key="k"))
            await asyncio.sleep(0)
            behind = asyncio.create_task(hr.append("a", one(1)))
            assert await hr.host.in_transaction(lambda tx: 7) == 7
            assert not waiting.done()
            release.set()
            await asyncio.gather(waiting, behind)
            assert await numbers(hr) == [0, 1]

    run(work())


def test_whoever_cannot_be_told_keeps_nobody_else_from_it(tmp_path: Path, loop_io: bool) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d", loop_io=loop_io) as hr:
            complaints: list[Any] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: complaints.append(context["exception"]))

            def bad(result: object, error: BaseException | None) -> None:
                raise ValueError("no ears")

            hr.host.submit(lambda tx: 1, (), bad, small=True)
            assert await hr.host.in_transaction(lambda tx: 2, small=True) == 2
            assert [str(error) for error in complaints] == ["no ears"]

    run(work())
