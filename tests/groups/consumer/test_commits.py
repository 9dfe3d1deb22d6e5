"""Group commits: what a flush waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from headrace.errors import CatalogUnavailableError, Fenced
from headrace.groups.consumer.acks import tell_after
from headrace.groups.consumer.commits import Commits
from headrace.groups.consumer.types import AckStore, Done, UnitAck
from headrace.host import Host
from tests.groups.consumer.rig import run


class Unit:
    """As much of a run as commits look at; its progress is a number."""

    gone = None
    turns = 0
    storing = dirty = refused = False

    def __init__(self) -> None:
        self.owned = self.dispatcher = self
        self.acked = 0

    def progress(self) -> int:
        return self.acked


class Store:
    """Stores when it is told to."""

    def __init__(self) -> None:
        self.host = Host()  # of which commits need the clock alone
        self.host.start()
        self.stored: list[Any] = []
        self.waiting: list[asyncio.Future[None]] = []

    def begin(self, acks: Sequence[UnitAck], done: Done, *, sync: bool) -> None:
        tell_after(self.host, self.commit(acks), done)

    async def commit(self, acks: Sequence[UnitAck]) -> list[Fenced | None]:
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]
        self.stored += [ack.progress for ack in acks]
        return [None for _ in acks]

    async def until_asked(self, times: int) -> None:
        while len(self.waiting) < times:
            await asyncio.sleep(0)


def commits_of(store: Store, settle: Callable[[], None] = lambda: None) -> Commits:
    return Commits(
        store.host,
        cast(AckStore, store),
        sync=False,
        settle=settle,
        stored=lambda run, fenced: None,
        failed=lambda error: None,
    )


def test_a_flush_during_a_commit_waits_for_the_next_one() -> None:
    async def work() -> None:
        store, unit = Store(), Unit()
        commits, as_run = commits_of(store), cast(Any, unit)
        unit.acked = 1
        first = commits.now(as_run)
        await store.until_asked(1)
        unit.acked = 2
        commits.later(as_run, 60_000)
        second = commits.now(as_run)  # somebody waits, so the next commit starts by itself
        flush = asyncio.ensure_future(commits.flush())
        await asyncio.sleep(0)
        store.waiting[0].set_result(None)
        await first
        await store.until_asked(2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert store.stored == [1]
        assert not flush.done()
        store.waiting[1].set_result(None)
        await flush
        await second
        assert store.stored == [1, 2]
        commits.stop()

    run(work())


def test_a_flush_makes_good_what_the_commit_under_way_failed_to_store() -> None:
    async def work() -> None:
        store, unit = Store(), Unit()
        commits, as_run = commits_of(store), cast(Any, unit)
        unit.acked = 1
        first = commits.now(as_run)
        await store.until_asked(1)
        flush = asyncio.ensure_future(commits.flush())
        await asyncio.sleep(0)
        store.waiting[0].set_exception(CatalogUnavailableError("gone for a moment"))
        await store.until_asked(2)
        assert isinstance(first.exception(), CatalogUnavailableError)
        assert not flush.done()
        store.waiting[1].set_result(None)
        await flush
        assert store.stored == [1]
        commits.stop()

    run(work())


def test_units_that_settle_one_after_the_other_never_have_two_commits_under_way() -> None:
    """A paused unit stores its last acks as soon as they are settled, which a commit does first."""

    async def work() -> None:
        store = Store()
        unsettled = [cast(Any, Unit()), cast(Any, Unit())]

        def settle() -> None:
            nonlocal unsettled
            units, unsettled = unsettled, []
            for unit in units:
                unit.acked = 1
                commits.later(unit, 60_000)
                commits.now(unit)

        commits = commits_of(store, settle)
        first = commits.now(cast(Any, Unit()))
        flush = asyncio.ensure_future(commits.flush())
        await store.until_asked(1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(store.waiting) == 1
        store.waiting[0].set_result(None)
        await store.until_asked(2)
        store.waiting[1].set_result(None)
        await first
        await flush
        assert sorted(store.stored) == [0, 1, 1]
        commits.stop()

    run(work())
