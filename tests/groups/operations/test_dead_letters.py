"""Dead letters of every kind of group come back once, or go for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import headrace
from headrace.errors import (
    InvalidInputError,
    LetterGoneError,
    NoLettersError,
    TooManyLivesError,
    UndeliverableLetterError,
)
from headrace.groups import decisions
from headrace.groups.decisions import What
from headrace.groups.letter_names import LIVES, PUT_BACK
from headrace.groups.operations import dead_letters
from headrace.groups.operations.letters import Selection
from tests.groups.operations.test_seek import every_kind, name_of
from tests.groups.shared.runtime.support import open_log, run
from tests.groups.test_seek import Elastic, Kind, Shared, Static, nothing_comes_again


async def kill(deliveries: AsyncIterator[Any], count: int, why: str = "bad") -> list[bytes]:
    """Reject what comes."""
    found = []
    for _ in range(count):
        delivery = await anext(deliveries)
        await delivery.reject(f"{why} {delivery.value.decode()}")
        found.append(delivery.value)
    return found


async def take(deliveries: AsyncIterator[Any], count: int) -> list[Any]:
    found = []
    for _ in range(count):
        delivery = await anext(deliveries)
        await delivery.ack()
        found.append(delivery)
    return found


@asynccontextmanager
async def with_letters(
    url: str, kind: Kind, count: int
) -> AsyncIterator[tuple[headrace.Headrace, AsyncIterator[Any]]]:
    async with open_log(url) as hr:
        await kind.make(hr)
        async with kind.member(hr) as deliveries:
            await kind.send(hr, 0, count)
            await kill(deliveries, count)
            yield hr, deliveries


@every_kind
def test_letters_come_back_once(catalog_url: str, kind: Kind) -> None:
    async def work() -> None:
        async with with_letters(catalog_url, kind, 12) as (hr, deliveries):
            name = name_of(kind)
            letters = await hr.dead_letters(name)
            assert len(letters) == 12
            assert {letter.lives for letter in letters} == {1}
            assert all(letter.died_us and letter.error.startswith("bad ") for letter in letters)
            tried = await hr.put_back(name, dry_run=True)
            assert (tried.letters, len(await hr.dead_letters(name))) == (12, 12)
            done = await hr.put_back(name)
            assert (done.letters, done.refused, done.seen_by) == (12, 0, ())
            assert await hr.dead_letters(name) == ()
            found = await take(deliveries, 12)
            assert sorted(int(each.value) for each in found) == list(range(12))
            for each in found:
                about = dict(each.headers)
                assert (about[LIVES], PUT_BACK in about) == (b"1", True)
                assert each.key == str(int(each.value) % 16)
            with pytest.raises(NoLettersError):
                await hr.put_back(name)
        async with open_log(catalog_url) as hr:
            await nothing_comes_again(hr, kind)

    run(work())


@every_kind
def test_a_letter_keeps_the_count_of_its_lives(catalog_url: str, kind: Kind) -> None:
    async def work() -> None:
        async with with_letters(catalog_url, kind, 1) as (hr, deliveries):
            for life in (1, 2):
                assert (await hr.put_back(name_of(kind))).letters == 1
                await kill(deliveries, 1)
                [letter] = await hr.dead_letters(name_of(kind))
                assert letter.lives == life + 1
                assert letter.headers == ()
            with pytest.raises(TooManyLivesError, match="died 3 times or more"):
                await hr.put_back(name_of(kind))
            assert len(await hr.dead_letters(name_of(kind))) == 1
            assert (await hr.put_back(name_of(kind), lives_max=9)).letters == 1
            await take(deliveries, 1)

    run(work())


def test_letters_are_chosen_by_number_reason_and_key(catalog_url: str) -> None:
    async def work() -> None:
        async with with_letters(catalog_url, Shared(), 10) as (hr, deliveries):
            name = name_of(Shared())
            ids = [letter.id for letter in await hr.dead_letters(name)]
            assert ids == list(range(10))
            assert len(await hr.dead_letters(name, reason="bad 3")) == 1
            assert len(await hr.dead_letters(name, reason="rejected")) == 10
            assert [each.key for each in await hr.dead_letters(name, key="5")] == ["5"]
            assert len(await hr.dead_letters(name, limit=4)) == 4
            assert (await hr.discard(name, ids=[0, 3])).letters == 2
            assert [each.id for each in await hr.dead_letters(name, limit=3)] == [1, 2, 4]
            with pytest.raises(LetterGoneError, match="no dead letter 3"):
                await hr.put_back(name, ids=[1, 3])
            assert (await hr.put_back(name, limit=3)).letters == 3
            assert len(await hr.dead_letters(name)) == 5
            await take(deliveries, 3)
            found = hr.log.catalog.read(lambda tx: decisions.read(tx, name))
            told = [each.reason for each in found if each.what is What.PUT_BACK]
            assert [each[:23] for each in told] == ["3 dead letters put back"]
            [reason, *_] = await hr.dead_letter_reasons(name)
            assert (reason.reason, reason.letters) == ("rejected", 1)

    run(work())


def test_other_groups_that_see_them_again_are_named(catalog_url: str) -> None:
    async def work() -> None:
        async with with_letters(catalog_url, Static(), 2) as (hr, _):
            await hr.shared_groups.declare("audit", "orders.>")
            await hr.shared_groups.declare("other", "orders.zz.>")
            tried = await hr.put_back("billing", dry_run=True)
            assert tried.seen_by == ("$share/audit/orders.>",)

    run(work())


def test_only_the_elastic_group_sees_them_again(catalog_url: str) -> None:
    async def work() -> None:
        async with with_letters(catalog_url, Elastic(), 2) as (hr, deliveries):
            await hr.shared_groups.declare("audit", "orders.>")
            head = sum(s.head for s in (await hr.stream("orders")).segments)
            done = await hr.put_back("billing")
            assert (done.seen_by, done.to) == ((), "the work queue")
            assert sum(s.head for s in (await hr.stream("orders")).segments) == head
            assert {each.subject for each in await take(deliveries, 2)} == {
                "orders.0.x",
                "orders.1.x",
            }

    run(work())


def test_a_letter_whose_subject_nothing_captures_any_more_stays(catalog_url: str) -> None:
    async def work() -> None:
        async with with_letters(catalog_url, Shared(), 3) as (hr, _):
            await hr.delete_stream("orders", force=True)
            with pytest.raises(UndeliverableLetterError, match="no stream captures"):
                await hr.put_back(name_of(Shared()))
            assert len(await hr.dead_letters(name_of(Shared()))) == 3
            with pytest.raises(InvalidInputError, match="limit=-1"):
                await hr.dead_letters(name_of(Shared()), limit=-1)

    run(work())


def test_of_several_who_put_back_at_the_same_time_each_letter_comes_from_one(
    catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PART_LETTERS_MAX", 3)

    async def work() -> None:
        async with with_letters(catalog_url, Shared(), 20) as (hr, deliveries):
            name = name_of(Shared())

            async def once() -> int:
                try:
                    done = await asyncio.to_thread(dead_letters.put_back, hr.log, name, Selection())
                except NoLettersError:  # others were quicker with all of them
                    return 0
                assert done.letters
                return done.letters

            counts = await asyncio.gather(*(once() for _ in range(4)))
            assert sum(counts) == 20
            found = await take(deliveries, 20)
            assert sorted(int(each.value) for each in found) == list(range(20))
            assert sum(s.head for s in (await hr.stream("orders")).segments) == 40

    run(work())


def test_settled_letters_are_trimmed(catalog_url: str) -> None:
    async def work() -> None:
        async with with_letters(catalog_url, Shared(), 5) as (hr, _):
            await hr.discard(name_of(Shared()))
            stream = "g:orders.>.dead"
            assert await hr.trim(stream) == {0: 5}

    run(work())
