"""One line for all that a program writes: nothing overtakes, and one failure is nobody else's."""

from __future__ import annotations

import asyncio
import random
import threading
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
from headrace.log.append import Write
from headrace.log.placing import Stale
from tests.api.test_client import rows_of, run, table_of
from tests.support import until


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
            monkeypatch.setattr(Write, "saying", lambda _: None)
            await asyncio.gather(
                *(hr.append("a", one(at), producer="p", sequence=at) for at in (1, 2, 3))
            )
            assert len(tries) == 4
            assert await numbers(hr) == [0, 1, 2, 3]

    run(work())


def test_what_was_joined_with_an_event_that_is_given_up_is_not_overtaken(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url, loop_io=False) as hr:
            await hr.create_stream("a", subjects=["a.>"])
            await hr.publish("a.x", b"0", key="k")
            began, release = threading.Event(), threading.Event()

            def hold(tx: Any) -> None:
                began.set()
                release.wait(10)

            holding = asyncio.ensure_future(hr.host.in_transaction(hold))
            await asyncio.to_thread(began.wait)
            calls = [
                asyncio.create_task(call)
                for call in (
                    hr.append("a", headrace.Event(subject="a.x", value=b"9", key="k")),
                    hr.append("a", headrace.Event(subject="a.x", value=b"1", key="k")),
                    hr.append("a", one(2), producer="p", sequence=1),
                )
            ]
            for _ in range(5):
                await asyncio.sleep(0)  # all are on their way to the committer
            calls[0].cancel()
            await asyncio.sleep(0)
            release.set()
            await asyncio.gather(holding, *calls, return_exceptions=True)
            assert [number for number in await numbers(hr) if number != 9] == [0, 1, 2]

    run(work())


def test_who_waits_for_a_sealed_segment_holds_up_those_behind_it_too(
    catalog_url: str, loop_io: bool
) -> None:
    """c and b wait for b; then a and c wait for c; then a."""

    async def work() -> None:
        async with (
            headrace.open(catalog_url, loop_io=loop_io) as hr,
            headrace.open(catalog_url) as other,
        ):
            for name in "abc":
                await hr.create_stream(name, subjects=[f"{name}.>"])
                await hr.publish(f"{name}.x", b"0", key="k")
            await other.split("b", 0)
            calls: list[Coroutine[Any, Any, Any]] = []
            for streams in ("cb", "ac"):
                tx = await hr.transaction().__aenter__()
                for name in streams:
                    tx.publish(f"{name}.x", b"1", key="k")
                calls.append(tx.__aexit__(None, None, None))
            calls.append(hr.append("a", one(2), producer="p", sequence=1))
            await asyncio.gather(*calls)
            assert await numbers(hr) == [0, 1, 2]

    run(work())


@pytest.mark.parametrize("way", ["transaction", "neighbours"])
def test_nothing_goes_before_events_that_wait_for_those_of_another_stream(
    catalog_url: str, loop_io: bool, way: str
) -> None:
    """A segment of the other stream was sealed; both streams' events wait, and so do later ones."""

    async def work() -> None:
        async with (
            headrace.open(catalog_url, loop_io=loop_io) as hr,
            headrace.open(catalog_url) as other,
        ):
            await hr.create_stream("a", subjects=["a.>"])
            await hr.create_stream("b", subjects=["b.>"])
            await asyncio.gather(hr.publish("a.x", b"0", key="k"), hr.publish("b.x", b""))
            await other.split("b", 0)
            calls: list[Coroutine[Any, Any, Any]] = []
            if way == "neighbours":
                events = [headrace.Event(subject=f"{at}.x", value=b"1", key="k") for at in "ab"]
                calls = [hr.append(event.subject[0], event) for event in events]
            else:
                tx = await hr.transaction().__aenter__()
                tx.publish("a.x", b"1", key="k")
                tx.publish("b.x", b"")
                calls = [tx.__aexit__(None, None, None)]
            calls.append(hr.append("a", one(2), producer="p", sequence=1))
            await asyncio.gather(*calls)
            assert await numbers(hr) == [0, 1, 2]

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
            monkeypatch.setattr(Write, "saying", lambda _: None)
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
            monkeypatch.setattr(Package, "saying", lambda _: None)
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


def test_what_is_given_up_before_its_commit_is_never_written(
    catalog_url: str, loop_io: bool
) -> None:
    async def work() -> None:
        gate = threading.Event()
        async with headrace.open(catalog_url, loop_io=loop_io) as hr:
            await hr.create_stream("a", subjects=["a.>"])
            committer = hr.log.catalog._committer
            for known in (False, True):  # whether the route is, or has to be looked up
                gate.clear()
                held = hr.host.in_transaction(lambda _: gate.wait(), small=False)
                await asyncio.sleep(0)
                calls: list[asyncio.Task[Any]] = [
                    asyncio.create_task(hr.publish("a.x", b"%d" % n, key="k")) for n in (0, 1)
                ]
                await until(lambda: committer._queued == 2, "both to wait for the committer")
                calls.append(asyncio.create_task(hr.append("a", one(2))))
                calls.append(asyncio.create_task(hr.append("a", one(3))))
                await asyncio.sleep(0)
                calls[1].cancel()
                calls[2].cancel()
                await asyncio.sleep(0)
                assert [call.done() for call in calls] == [False, True, True, False]
                calls.append(asyncio.create_task(hr.publish("a.x", b"4", key="k")))
                await asyncio.sleep(0)
                gate.set()
                await asyncio.gather(held, *calls, return_exceptions=True)
                assert await numbers(hr) == [0, 3, 4] * (1 + known)

    run(work())


@pytest.mark.parametrize("seed", range(3))
def test_cancelled_at_any_moment_nothing_overtakes_and_nothing_else_is_lost(
    tmp_path: Path, loop_io: bool, seed: int
) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d", loop_io=loop_io) as hr:
            await hr.create_stream("a", subjects=["a.>"])
            caller, rng = Caller(hr, seed), random.Random(seed)
            cancelled: set[asyncio.Task[Any]] = set()
            for number in range(300):
                await caller.call(number)
                if caller.calls and rng.random() < 0.4:
                    call = rng.choice(caller.calls[-5:])
                    call.cancel()
                    cancelled.add(call)
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.choice((0, 0, 0.0005)))
            ends = await asyncio.gather(*caller.calls, return_exceptions=True)
            for appender in caller.appenders:
                await appender.close()
            found = await numbers(hr)
            assert found == sorted(set(found))
            given_up = [end for end in ends if isinstance(end, asyncio.CancelledError)]
            assert given_up
            assert len(found) >= 300 - len(given_up)

    run(work())
