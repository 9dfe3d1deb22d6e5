"""Timers: each is called once, at the moment that was set last, in the order of the moments."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from headrace.host.timers import NEVER, STALE_MIN, Timers
from headrace.testing import driven_clock, run


@pytest.mark.parametrize("exact", [True, False])
def test_timers_are_called_in_the_order_of_their_moments(exact: bool) -> None:
    async def main() -> list[tuple[str, float]]:
        clock, seen = driven_clock(), list[tuple[str, float]]()
        start_s = clock.now_s()
        timers = Timers(asyncio.get_running_loop(), exact=exact)

        def called(name: str) -> None:
            seen.append((name, round(clock.now_s() - start_s, 6)))

        for name, delay_s in (("c", 3), ("a", 1), ("b", 2), ("also b", 2)):
            timers.timer(partial(called, name)).after(delay_s)
        await clock.advance(10)
        return seen

    assert run(main()) == [("a", 1), ("b", 2), ("also b", 2), ("c", 3)]


def test_only_the_moment_that_was_set_last_counts() -> None:
    async def main() -> list[float]:
        clock, seen = driven_clock(), list[float]()
        start_s = clock.now_s()
        timers = Timers(asyncio.get_running_loop())
        timer = timers.timer(lambda: seen.append(clock.now_s() - start_s))
        timer.after(1)
        timer.after(5)
        timer.bring_forward(start_s + 7)
        await clock.advance(4)
        assert seen == []
        timer.bring_forward(start_s + 4.5)
        await clock.advance(4)
        assert timer.at_s == NEVER
        timer.after(1)
        timer.clear()
        await clock.advance(4)
        return seen

    assert run(main()) == [4.5]


def test_a_timer_is_called_when_its_millisecond_is_over_and_never_early() -> None:
    async def main() -> None:
        clock, seen = driven_clock(), list[int]()
        timers = Timers(asyncio.get_running_loop())
        timer = timers.timer(lambda: seen.append(clock.now_ms()))
        for wait_ms in (1, 7, 333, 1001):
            due_ms = clock.now_ms() + wait_ms
            timer.set_ms(due_ms)
            await clock.advance(wait_ms / 1000 + 0.002)
            assert due_ms <= seen.pop() <= due_ms + 1

    run(main())


def test_one_that_is_called_may_clear_the_next_and_set_itself() -> None:
    async def main() -> list[str]:
        clock, seen = driven_clock(), list[str]()
        timers = Timers(asyncio.get_running_loop())

        def first() -> None:
            seen.append("first")
            second.clear()
            if len(seen) < 3:
                again.after(0)

        again = timers.timer(first)
        second = timers.timer(lambda: seen.append("second"))
        again.after(1)
        second.after(1)
        await clock.advance(2)
        return seen

    assert run(main()) == ["first", "first", "first"]


def test_one_that_fails_does_not_cost_the_others_their_turn() -> None:
    async def main() -> tuple[list[str], list[type[BaseException]]]:
        clock, seen = driven_clock(), list[str]()
        loop = asyncio.get_running_loop()
        failures: list[type[BaseException]] = []
        loop.set_exception_handler(lambda _, c: failures.append(type(c["exception"])))
        timers = Timers(loop)
        timers.timer(lambda: seen.remove("missing")).after(1)
        timers.timer(lambda: seen.append("the other")).after(1)
        timers.timer(lambda: seen.append("a later one")).after(2)
        await clock.advance(2)
        return seen, failures

    assert run(main()) == (["the other", "a later one"], [ValueError])


def test_a_clock_does_not_jump_to_a_timer_that_was_cleared() -> None:
    async def main() -> list[float]:
        clock, loop = driven_clock(), asyncio.get_running_loop()
        timers, seen = Timers(loop, exact=True), list[float]()
        start_s = clock.now_s()
        timers.timer(lambda: None).after(3)
        cleared = timers.timer(lambda: None)
        for delay_s in (1, 10):
            cleared.after(delay_s)
            cleared.clear()
            # Only a thread can go on, once no timer is left.
            answer: asyncio.Future[None] = loop.create_future()
            threading.Timer(0.01, loop.call_soon_threadsafe, (answer.set_result, None)).start()
            await answer
            seen.append(clock.now_s() - start_s)
        return seen

    assert run(main(), autojump=True) == [3, 3]


def test_a_timer_that_is_set_again_and_again_takes_no_more_room() -> None:
    async def main() -> None:
        timers = Timers(asyncio.get_running_loop())
        kept = [timers.timer(lambda: None) for _ in range(1000)]
        for timer in kept:
            timer.after(3600)
        for number in range(100_000):
            kept[0].after(1 + number / 1000)
        assert len(timers) <= 2 * len(kept) + STALE_MIN

    run(main())


def test_nobody_is_called_after_the_end() -> None:
    async def main() -> list[str]:
        clock, seen = driven_clock(), list[str]()
        timers = Timers(asyncio.get_running_loop())
        timer = timers.timer(lambda: seen.append("called"))
        timer.after(1)
        timers.close()
        await clock.advance(2)
        timer.after(1)
        await clock.advance(2)
        return seen

    assert run(main()) == []
