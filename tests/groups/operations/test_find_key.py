"""A key is found: its segments, its units in every kind of group, and its last events."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.catalog import entries
from headrace.errors import InvalidInputError
from headrace.groups.consumer.asking import ANSWERS, QUESTIONS
from headrace.groups.consumer.in_hand import ANSWERING
from headrace.subjects import partition
from tests.groups.operations.test_seek import every_kind, name_of
from tests.groups.shared.runtime.support import open_log, run
from tests.groups.test_seek import Elastic, Kind, Private, Readers, Shared, Shares


@every_kind
def test_a_key_is_found_in_every_kind_of_group(catalog_url: str, kind: Kind) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await kind.make(hr)
            async with kind.member(hr) as deliveries:
                await kind.send(hr, 0, 48)
                held = [await anext(deliveries) for _ in range(16)]
                key = held[0].key
                await held[1].ack()
                found = await hr.find_key(key)
                assert [event.stream for event in found.events] == ["orders"] * 3
                assert sum(segment.found_events for segment in found.segments) == 3
                [unit] = [each for each in found.units if each.unacked]
                assert (unit.group, len(unit.unacked), unit.dead) == (name_of(kind), 3, ())
                assert unit.member is not None
                assert unit.instance is not None
                assert unit.token > 0
                assert unit.in_flight == (held[0].offset,)  # the others of the key wait for it
                async with open_log(catalog_url) as other:
                    seen = await other.find_key(key)
                    [theirs] = [each for each in seen.units if each.unacked]
                    assert (theirs.unacked, theirs.in_flight) == (unit.unacked, None)
                    assert all(e.in_flight == () for e in seen.units if not e.unacked)
                await held[0].reject("bad")
                found = await hr.find_key(key, stream="orders")
                [unit] = [each for each in found.units if each.unacked]
                assert (len(unit.unacked), unit.dead) == (2, (0,))

    run(work())


def test_a_key_lives_in_one_segment_and_lived_in_others(catalog_url: str) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await Shared().make(hr)
            await Shared().send(hr, 0, 16)
            for segment in (await hr.stream("orders")).open_segments:
                await hr.split("orders", segment.number)
            await Shared().send(hr, 16, 16)
            found = await hr.find_key("3")
            assert [segment.lives for segment in found.segments] == [False, True]
            assert [segment.found_events for segment in found.segments] == [1, 1]
            assert [event.subject for event in found.events] == ["orders.3.x"] * 2
            assert (await hr.find_key("nobody")).events == ()
            for key, scan in (("", 10), ("x" * 2000, 10), ("x", 0)):
                with pytest.raises(InvalidInputError):
                    await hr.find_key(key, scan_events=scan)

    run(work())


@pytest.mark.parametrize(
    "kind", [Shares(), Shared(), Readers()], ids=["static", "shared", "readers"]
)
def test_another_program_tells_what_it_has_in_flight(catalog_url: str, kind: Kind) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr, open_log(catalog_url) as other:
            await kind.make(hr)
            async with kind.member(hr) as deliveries:
                await kind.send(hr, 0, 48)
                held = await anext(deliveries)
                [unit] = [u for u in (await other.find_key(held.key)).units if u.unacked]
                assert (unit.in_flight, len(unit.unacked)) == ((held.offset,), 3)
                await held.ack()
                [unit] = [u for u in (await other.find_key(held.key)).units if u.unacked]
                assert (unit.in_flight, len(unit.unacked)) == ((), 2)
            assert _left(other) == []

    asyncio.run(work())


def test_a_program_that_does_not_answer_is_named(catalog_url: str) -> None:
    """Who asks waits a second for it, and takes away what it and others have left."""

    async def work() -> None:
        async with open_log(catalog_url) as hr, open_log(catalog_url) as other:
            del hr.host.parts[ANSWERING]
            await Shared().make(hr)
            async with Shared().member(hr) as deliveries:
                await Shared().send(hr, 0, 16)
                held = await anext(deliveries)
                hr.log.catalog.write(lambda tx: entries.put(tx, QUESTIONS, "left", b"?"))
                [unit] = [u for u in (await other.find_key(held.key)).units if u.unacked]
                assert (unit.in_flight, bool(unit.instance)) == (None, True)
            assert _left(other) == []

    asyncio.run(work())


def _left(hr: headrace.Headrace) -> list[str]:
    """Questions and answers."""
    both = QUESTIONS, ANSWERS
    return hr.log.catalog.read(lambda tx: [k for each in both for k in entries.keys(tx, each, "")])


def test_kinds_are_what_they_say() -> None:
    assert (name_of(Elastic()), name_of(Private())) == ("orders/billing", "session/w/orders.>")


def test_an_elastic_group_has_a_unit_for_a_key_of_which_nothing_is_in_its_queue(
    catalog_url: str,
) -> None:
    """No pipeline has put it there yet, or all of it was acked, and has left the queue."""

    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"])
            await hr.groups.create_elastic(
                "orders", "billing", max_members=8, filter="orders.*", wildcards=[1], members=["m1"]
            )
            for subject in ("orders.7", "orders.not.it"):
                await hr.publish(subject, b"", key="seven")
            [unit] = (await hr.find_key("seven")).units
            number = partition("orders.7", "orders.*", [1], 8)
            assert (unit.group, unit.unit) == ("orders/billing", str(number))
            assert (unit.member, unit.unacked) == ("m1", ())

    run(work())
