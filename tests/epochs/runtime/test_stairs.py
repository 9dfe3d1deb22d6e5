"""The steps that a frontier took, read from the progress log."""

from __future__ import annotations

from pathlib import Path

import headrace
from headrace.epochs.runtime.stairs import FrontierStep, Stairs, stairs, thinned
from tests.epochs.runtime.test_subscription import stream


def _step(at_us: int, first_open: int, rows: int = 1, event: str = "") -> FrontierStep:
    return FrontierStep(
        at_us=at_us, frontier=(first_open,), publisher="eu", event=event, rows=rows, reach=5
    )


async def test_the_steps_of_a_frontier_are_told_with_what_came_meanwhile(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        for time in range(3):
            writer.publish("eu", [(time, b"x"), (time, b"y")], advance_to=time + 1)
        writer.publish("eu", [(9, b"z")])
        found: Stairs = await hr.in_thread(stairs, hr.log, "orders")
    assert [step.frontier for step in found.steps][-4:] == [(1,), (2,), (3,), (3,)]
    assert [step.reach for step in found.steps][-4:] == [0, 1, 2, 9]
    assert [step.rows for step in found.steps][-4:] == [2, 2, 2, 1]
    assert {step.publisher for step in found.steps} == {"eu"}
    assert [step.at_us for step in found.steps] == sorted(step.at_us for step in found.steps)
    assert (found.length, found.earlier) == (0, False)


def test_too_many_steps_are_thinned_and_no_row_is_left_out() -> None:
    steps = [_step(at, at // 2, event="closed" if at == 37 else "") for at in range(100)]
    found = thinned(steps, 10)
    assert len(found) <= 12
    assert (found[0].at_us, found[-1].at_us) == (0, 99)
    assert sum(step.rows for step in found) == 100
    assert thinned([]) == ()
    assert [step.at_us for step in thinned(steps, 1_000)] == [
        0,
        *range(2, 38, 2),
        37,
        *range(38, 99, 2),
        99,
    ]
