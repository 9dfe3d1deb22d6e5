"""Owners of a unit with very many acked ranges: each goes on with exactly what is not acked."""

from __future__ import annotations

import random

import pytest

from headrace.groups.consumer import Delivery
from headrace.groups.consumer import events as event_runs
from headrace.groups.progress import ranges
from tests.groups.consumer.rig import Heard, RigConsumer, rig, run, take

EVENTS = 600
OWNERS = 6


@pytest.mark.parametrize("seed", range(3))
def test_each_owner_is_given_exactly_what_those_before_it_have_not_acked(
    catalog_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ranges stand on a base, which the owners make anew, share, and leave in the end."""
    monkeypatch.setattr(ranges, "LAYERED_RANGES_MIN", 4)
    monkeypatch.setattr(event_runs, "FEED_EVENTS", 50)
    rng = random.Random(seed)
    left, based = set(range(EVENTS)), 0

    async def ack_some(consumer: RigConsumer, found: list[Delivery], part: float) -> None:
        for delivery in rng.sample(found, int(len(found) * part)):
            if rng.random() < 0.1:
                await delivery.ack()
            else:
                delivery.ack_soon()
            left.discard(int(delivery.value or b""))
        await consumer.flush()

    async def work() -> None:
        nonlocal based
        async with rig(catalog_url) as r:
            await r.fill("".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(EVENTS)))
            for number in range(OWNERS):
                last = number == OWNERS - 1
                consumer = r.consumer(heard=Heard(), max_pending_per_key=EVENTS)
                consumer.open(await r.claim(owner=f"m{number}"))
                found = await take(consumer, len(left))
                assert {int(each.value or b"") for each in found} == left
                await ack_some(consumer, found, 1.0 if last else 0.4)
                stored = await r.stored()
                assert stored is not None
                based += stored.base is not None
                acked = stored.acked()
                assert {n for n in range(EVENTS) if n not in acked} == left
                assert not last or stored.floor == EVENTS

    run(work())
    assert based >= 3
