"""A leader and its catalog: how often it looks at the log, and commits that follow each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.groups.progress import Progress
from headrace.groups.shared.core.messages import Unit
from headrace.groups.shared.core.records import Commit, LeaderEffect
from headrace.groups.shared.runtime.leading import Leading
from tests.groups.shared.runtime.support import open_log, run
from tests.support import until

SHARED = "$share/g/orders.>"


@asynccontextmanager
async def led(folder: Path) -> AsyncIterator[Leading]:
    """A leader with one member and one unit, at rest."""
    async with open_log(folder) as hr:
        await hr.create_stream("orders", ["orders.>"])
        async with hr.session("w") as session:
            await session.subscribe(SHARED)
            await until(lambda: session.units, "its unit")
            leading = (await hr._shared.peer()).leaders["g:orders.>"]
            await until(lambda: leading.idle and not leading.lookout.looking, "rest")
            yield leading


def test_news_of_many_streams_at_once_calls_for_one_look(tmp_path: Path) -> None:
    async def test() -> None:
        async with led(tmp_path / "d") as leading:
            leading.lookout.look_due_ms = 0
            for _ in range(10):
                leading.lookout.news()
            assert leading.lookout.looking
            await until(lambda: not leading.lookout.looking, "the look")
            assert not leading.lookout.look_again, "what it was called for, it has seen"

    run(test())


def test_a_long_row_of_commits_does_not_nest(tmp_path: Path) -> None:
    length = 1500

    async def test() -> None:
        async with led(tmp_path / "d") as leading:
            committed = leading.core.committed
            stored: list[int] = []

            # As when each end of an empty segment opens the next one, which is empty too.
            def and_another(
                number: int, claimed: list[tuple[Unit, Progress]], now_ms: int
            ) -> list[LeaderEffect]:
                if number < 0:
                    stored.append(number)
                    return [Commit(number + 1, leading.token, (), ())] if number < -1 else []
                return committed(number, claimed, now_ms)

            leading.core.committed = and_another  # type: ignore[method-assign, assignment]
            leading._do([Commit(-length, leading.token, (), ())])
            await until(lambda: len(stored) == length, "all of them")

    run(test())
