"""The driven clock: time moves when it is told to, and everything due happens in its order."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import headrace
from headrace.testing import ClockStoodStillError, DrivenLoop, driven_clock, run


def test_time_stands_still_until_it_is_advanced() -> None:
    async def main() -> None:
        clock = driven_clock()
        before_s = asyncio.get_running_loop().time()
        woken: list[float] = []
        sleeper = asyncio.ensure_future(asyncio.sleep(3600))
        sleeper.add_done_callback(lambda _: woken.append(clock.now_s() - before_s))
        await clock.settle()
        assert clock.now_s() == before_s
        await clock.advance(3599.9)
        assert not woken
        await clock.advance(0.2)
        assert woken == [3600]
        assert clock.now_s() - before_s == pytest.approx(3600.1)

    began_s = time.monotonic()
    run(main())
    assert time.monotonic() - began_s < 20


def test_what_is_due_happens_in_order_each_at_its_moment() -> None:
    async def main() -> list[tuple[str, float]]:
        clock, seen = driven_clock(), []
        start_s = clock.now_s()

        async def step(name: str, *delays_s: float) -> None:
            for delay_s in delays_s:
                await asyncio.sleep(delay_s)
                seen.append((name, round(clock.now_s() - start_s, 6)))

        tasks = [
            asyncio.ensure_future(step("a", 1, 1, 1)),
            asyncio.ensure_future(step("b", 0.5, 2)),
        ]
        await clock.advance(2.5)
        for task in tasks:
            task.cancel()
        return seen

    assert run(main()) == [("b", 0.5), ("a", 1), ("a", 2), ("b", 2.5)]


def test_a_timeout_runs_by_the_clock() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86_400):
                await asyncio.Event().wait()

    run(main(), autojump=True)


def test_a_clock_that_jumps_leaves_out_what_nobody_waits_for() -> None:
    async def main() -> float:
        clock = driven_clock()
        start_s = clock.now_s()
        await asyncio.gather(*(asyncio.sleep(seconds) for seconds in (7, 300, 20)))
        return clock.now_s() - start_s

    assert run(main(), autojump=True) == 300


def test_a_wait_that_only_time_could_end_fails_and_says_so() -> None:
    async def main() -> None:
        await asyncio.sleep(1)

    with pytest.raises(ClockStoodStillError, match="advance"):
        run(main(), patience_s=0.05)


def test_work_for_threads_is_done_on_the_loop() -> None:
    async def main() -> list[bool]:
        here = threading.get_ident()
        other = await asyncio.to_thread(threading.get_ident)
        with pytest.raises(LookupError):
            await asyncio.to_thread(dict[str, int]().__getitem__, "missing")
        return [other == here]

    assert run(main()) == [True]


def test_a_thread_of_the_test_is_waited_for_by_real_time() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        threading.Timer(0.02, loop.call_soon_threadsafe, (answer.set_result, "done")).start()
        return await answer

    assert run(main()) == "done"


def test_randomness_and_names_follow_the_seed() -> None:
    async def main() -> tuple[str, float]:
        clock = driven_clock()
        return clock.name(), clock.random.random()

    assert run(main(), seed=3) == run(main(), seed=3)
    assert run(main(), seed=3) != run(main(), seed=4)


def test_the_clock_of_an_ordinary_loop_cannot_be_driven() -> None:
    async def main() -> None:
        driven_clock()

    with pytest.raises(RuntimeError, match=r"headrace\.testing\.run"):
        asyncio.run(main())


def test_loops_are_kept_in_one_time_from_outside() -> None:
    """Each is a program: it runs to its rest, and says when it wants to go on."""
    loops = [DrivenLoop(), DrivenLoop()]
    seen: list[tuple[int, float]] = []

    async def tick(number: int, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            seen.append((number, asyncio.get_running_loop().time() - 1000))

    tasks = [loop.create_task(tick(n, 1.0 + n)) for n, loop in enumerate(loops)]
    due = [loop.run_to_rest() for loop in loops]
    for _ in range(5):
        number = min(range(2), key=lambda n: due[n] or 0)
        at_ns = due[number]
        assert at_ns is not None
        loops[number].now_ns = at_ns
        due[number] = loops[number].run_to_rest()
    assert seen == [(0, 1), (0, 2), (1, 2), (0, 3), (0, 4)]
    for task, loop in zip(tasks, loops, strict=True):
        task.cancel()
        loop.run_to_rest()
        loop.close()


def test_a_loop_that_is_killed_does_nothing_more_and_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, done = DrivenLoop(), list[str]()

    async def work() -> None:
        await asyncio.sleep(1)
        done.append("work")

    loop.create_task(work())
    due_ns = loop.run_to_rest()
    assert due_ns is not None
    loop.now_ns = due_ns
    loop.kill()
    gc.collect()
    assert not done
    assert not caplog.records


def test_the_catalog_runs_by_the_same_clock(tmp_path: Path) -> None:
    async def main() -> None:
        async with headrace.open(tmp_path / "data") as hr:
            leases, clock = hr.log.catalog.leases, driven_clock()
            held = await hr.in_thread(leases.acquire, "office", "a", 5000)
            assert held is not None
            assert held.expires_us == clock.wall_us() + 5_000_000
            assert await hr.in_thread(leases.acquire, "office", "b", 5000) is None
            await clock.advance(5.1)
            taken = await hr.in_thread(leases.acquire, "office", "b", 5000)
            assert taken is not None
            assert taken.token == held.token + 1

    run(main())


def test_a_program_takes_the_same_course_every_time(tmp_path: Path) -> None:
    async def main(folder: Path) -> list[object]:
        clock, seen = driven_clock(), list[object]()
        start_ms = clock.now_ms()
        async with headrace.open(folder) as hr:
            await hr.create_stream("orders", ["orders.>"], partitions=4)
            await hr.groups.create_static("orders", "g", max_members=4, members=["m1", "m2"])
            for name in ("m1", "m2"):
                async with hr.join("orders", "g", member=name) as member:
                    await member.settled()
                    seen.append((name, member.running.core.instance, clock.now_ms() - start_ms))
                    for number in range(20):
                        await hr.publish(f"orders.{number}", b"x")
                    for _ in range(5):
                        delivery = await anext(aiter(member))
                        seen.append((delivery.unit, delivery.offset, clock.now_ms() - start_ms))
                        await delivery.ack()
                    await clock.advance(60)
                    seen.append([str(d) for d in member.running.core.decisions])
        return seen

    first = run(main(tmp_path / "a"), seed=1)
    assert first == run(main(tmp_path / "b"), seed=1)


async def shared_group(folder: Path) -> list[object]:
    """Two programs share a group, over a real connection; the one that leads stops renewing."""
    clock, seen = driven_clock(), list[object]()
    start_ms = clock.now_ms()
    async with AsyncExitStack() as stack:
        programs = [
            await stack.enter_async_context(headrace.open(folder, housekeeping=False))
            for _ in range(2)
        ]
        await programs[0].create_stream("orders", ["orders.>"], segments=4)
        sessions = []
        for number, hr in enumerate(programs):
            session = await stack.enter_async_context(hr.session(f"w{number}"))
            await session.subscribe("$share/g/orders.>", start="earliest")
            sessions.append(session)
            await asyncio.sleep(5)
            seen.append([each.units for each in sessions])
        for number in range(20):
            await programs[0].publish(f"orders.{number}", b"x")
        for number, session in enumerate(sessions):
            for _ in range(3):
                delivery = await anext(aiter(session))
                await delivery.ack()
                seen.append((number, delivery.unit, delivery.offset, clock.now_ms() - start_ms))
        await sessions[0].close()
        await programs[0].close()
        await asyncio.sleep(30)
        seen.append(sessions[1].units)
        found = await programs[1].shared_groups.explain("g")
        seen.append([(each.what, each.reason) for each in found.decisions])
    return seen


def test_programs_that_share_a_group_take_the_same_course_every_time(tmp_path: Path) -> None:
    first = run(shared_group(tmp_path / "a"), autojump=True, seed=5)
    assert first == run(shared_group(tmp_path / "b"), autojump=True, seed=5)
    shares = first[1]
    assert isinstance(shares, list)
    assert [len(units) for units in shares] == [2, 2]
