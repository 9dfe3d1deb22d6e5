"""The owner: opening, following, pausing, giving back and dropping, for one policy or several."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from headrace.errors import CatalogUnavailableError, Fenced
from headrace.groups.consumer import OwnedUnit
from headrace.groups.owner import Owner, UnitSink
from headrace.groups.progress import Progress
from tests.groups.consumer.rig import Rig, rig, run, take, values
from tests.support import until


class Noting(Owner):
    """A policy that notes what it hears, and opens what it is told to."""

    retry_s = 0.001

    def __init__(self, r: Rig, consumer: UnitSink) -> None:
        super().__init__(r.hr.host, consumer)
        self.notes: list[tuple[str, str]] = []
        self.found: list[OwnedUnit | Exception] = []
        self.looks = 0
        self._news = asyncio.Event()

    def note(self, what: str, unit: OwnedUnit) -> None:
        self.notes.append((what, unit.unit))
        self._news.set()

    async def heard(self, what: str, unit: str) -> None:
        while (what, unit) not in self.notes:
            self._news.clear()
            await self._news.wait()

    def given_back(self, unit: OwnedUnit, progress: Progress) -> None:
        self.note(f"given back at {progress.floor}", unit)

    def refused(self, unit: OwnedUnit) -> None:
        self.note("refused", unit)

    def rested(self, unit: OwnedUnit, progress: Progress) -> None:
        self.note(f"rested at {progress.floor}", unit)

    def finished(self, unit: OwnedUnit) -> None:
        self.note("finished", unit)
        self.drain([unit])
        self.follow()

    async def look(self) -> Iterable[OwnedUnit]:
        self.looks += 1
        await asyncio.sleep(0)
        found, self.found = self.found, []
        if found and isinstance(found[0], Exception):
            self.found = found[1:]
            raise found[0]
        return [unit for unit in found if isinstance(unit, OwnedUnit)]


async def owning(r: Rig, *segments: int) -> Noting:
    """A policy with these segments open, in a consumer of its own."""
    owner = Noting(r, r.consumer())
    for segment in segments:
        owner.open(await r.claim(segment))
    return owner


def test_each_policy_hears_of_its_own_units_in_one_consumer(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path), segments=2) as r:
            consumer = r.consumer()
            one, other = Noting(r, consumer), Noting(r, consumer)
            one.open(await r.claim(0))
            other.open(await r.claim(1))
            one.drain(one.units.values())
            await one.heard("given back at 0", "0")
            assert not one.units
            assert list(other.units) == ["1"]
            assert not other.notes

    run(work())


def test_finished_units_are_followed_by_those_that_a_look_finds(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            owner = await owning(r, 0)
            consumer = r.consumers[0]
            await r.fill("ab")
            await r.hr.split("orders", 0, 2)
            await r.fill("ab", start=2)
            held = await take(consumer, 2)
            owner.found = [CatalogUnavailableError("not yet"), await r.claim(1), await r.claim(2)]
            for one in held:
                await one.ack()
            assert sorted(values(await take(consumer, 2))) == ["2", "3"]
            assert owner.looks == 2
            assert sorted(owner.units) == ["1", "2"]
            assert owner.notes == [("finished", "0"), ("given back at 2", "0")]

    run(work())


def test_looks_are_made_one_at_a_time_and_none_is_missed(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            owner = await owning(r)
            for _ in range(3):
                owner.follow()
            await until(lambda: owner.looks)
            owner.follow()  # while the first is under way
            await until(lambda: owner.looks == 2)
            for _ in range(10):
                await asyncio.sleep(0)
            assert owner.looks == 2

    run(work())


def test_a_look_is_due_after_a_while_whatever_happens_until_the_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            owner = await owning(r)
            owner.look_every_s = 0.001
            await owner.start()
            await until(lambda: owner.looks >= 4)
            await owner.close()
            looks = owner.looks
            owner.follow()
            await asyncio.sleep(0.01)
            assert owner.looks == looks

    run(work())


def test_the_first_look_raises_what_went_wrong(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            owner = await owning(r)
            owner.found = [CatalogUnavailableError("not now")]
            with pytest.raises(CatalogUnavailableError):
                await owner.start()

    run(work())


def test_many_units_rest_and_go_on(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url, segments=2) as r:
            owner = await owning(r, 0, 1)
            consumer = r.consumers[0]
            await r.fill("abcdefgh")
            (first,) = await take(consumer, 1)
            owner.pause(owner.units.values())
            other = "1" if first.unit == "0" else "0"
            await owner.heard("rested at 0", other)
            assert len(owner.notes) == 1
            await first.ack()
            await owner.heard("rested at 1", first.unit)
            owner.resume(owner.units.values())
            assert len(await take(consumer, 7)) == 7

    run(work())


def test_who_leaves_gives_back_what_is_at_rest_and_waits_for_the_rest(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path), segments=2) as r:
            owner = await owning(r, 0, 1)
            consumer = r.consumers[0]
            await r.fill("a")
            (one,) = await take(consumer, 1)
            idle = "1" if one.unit == "0" else "0"
            await owner.leave(0.0)
            assert owner.notes == [("given back at 0", idle)]
            leaving = asyncio.create_task(owner.leave(600.0))
            await asyncio.sleep(0)
            owner.open(await r.claim(int(idle)))  # too late
            assert owner.notes[1:] == [("given back at 0", idle)]
            assert not leaving.done()
            await one.ack()
            await leaving
            assert owner.notes[2:] == [("given back at 1", one.unit)]

    run(work())


def test_a_dropped_unit_refuses_answers_and_is_heard_of_no_more(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            owner = await owning(r, 0)
            await r.fill("a")
            (one,) = await take(r.consumers[0], 1)
            unit = owner.units["0"]
            owner.drop(unit)
            owner.drop(unit)
            with pytest.raises(Fenced):
                await one.ack()
            assert (owner.notes, owner.units) == ([], {})

    run(work())


def test_a_refused_ack_is_heard_of_once(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            owner = await owning(r, 0)
            await r.fill("a")
            (one,) = await take(r.consumers[0], 1)
            await r.claim(0, owner="somebody else")
            with pytest.raises(Fenced):
                await one.ack()
            assert (owner.notes, owner.units) == ([("refused", "0")], {})

    run(work())


def test_closing_the_consumer_gives_back_what_is_left_with_every_answer_stored(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            owner = await owning(r, 0)
            await r.fill("ab")
            first, _ = await take(r.consumers[0], 2)
            first.ack_soon()
            await r.consumers[0].close()
            assert (owner.notes, owner.units) == ([("given back at 1", "0")], {})
            assert await r.stored() == Progress(1)

    run(work())
