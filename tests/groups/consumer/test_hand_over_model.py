"""Units change hands at random, in peace and by force, while events are answered in every way.

Now and then an owner brings all of its units to rest, and goes on.

In half of the runs some answers come too late as well.  Whatever happens: an event whose ack was
confirmed never comes again, every key is confirmed in order, and in the end every event is
confirmed once or is a dead letter.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from headrace.errors import DeliveryError, Fenced
from headrace.groups.consumer import Batch, Delivery
from headrace.groups.progress import Progress
from tests.groups.consumer.rig import Heard, Rig, rig, run

EVENTS = 300
SEGMENTS = 2
KEYS = "abcdefgh"
POISON = {17, 130}


class Account:
    """What was confirmed, and whether it may come again."""

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.by_key: dict[str, list[int]] = defaultdict(list)

    def seen(self, value: int) -> None:
        assert value not in self.confirmed, f"{value} was acked and came again"

    def confirm(self, key: str, value: int) -> None:
        assert value not in self.confirmed
        self.confirmed.add(value)
        self.by_key[key].append(value)


class Player:
    """One owner with one consumer, that is given units and loses them."""

    def __init__(
        self, r: Rig, dice: random.Random, account: Account, *, batches: bool, late: bool
    ) -> None:
        self.dice = dice
        self.late = late
        self.account = account
        self.heard = Heard()
        self.consumer = r.consumer(
            heard=self.heard,
            max_deliveries=2,
            backoff_min_ms=0,
            batch_events_max=16,
            max_pending=32,
            ack_wait_ms=15 if late else 30_000,
        )
        self.task = asyncio.create_task(self.batches() if batches else self.events())

    async def events(self) -> None:
        while True:
            try:
                delivery = await anext(self.consumer)
            except StopAsyncIteration:
                return
            except (Fenced, DeliveryError):
                continue
            try:
                await self.answer(delivery)
            except (Fenced, DeliveryError):
                continue

    async def answer(self, delivery: Delivery) -> None:
        value = int(delivery.value)
        assert delivery.key is not None
        self.account.seen(value)
        if self.dice.random() < 0.3:
            await asyncio.sleep(0.02 if self.late and self.dice.random() < 0.2 else 0)
        if value in POISON:
            await delivery.nack(reason="poison")
        elif self.dice.random() < 0.1 and delivery.attempt == 1:
            await delivery.nack(delay_ms=self.dice.randrange(3))
        elif self.dice.random() < 0.3:
            async with delivery.transaction() as tx:
                tx.publish("out.x", delivery.value)
            self.account.confirm(delivery.key, value)
        else:
            await delivery.ack()
            self.account.confirm(delivery.key, value)

    async def batches(self) -> None:
        batches = aiter(self.consumer.batches())
        while True:
            try:
                batch = await anext(batches)
            except StopAsyncIteration:
                return
            except (Fenced, DeliveryError):
                continue
            try:
                await self.answer_batch(batch)
            except (Fenced, DeliveryError):
                continue

    async def answer_batch(self, batch: Batch) -> None:
        values = [int(value) for value in batch.data.column("value").to_pylist()]
        keys = batch.data.column("key").to_pylist()
        for value in values:
            self.account.seen(value)
        if self.late and self.dice.random() < 0.1:
            await asyncio.sleep(0.02)
        if POISON & set(values):
            await batch.nack(reason="poison")
            return
        if self.dice.random() < 0.3:
            async with batch.transaction() as tx:
                tx.publish("out.x", b" ".join(batch.data.column("value").to_pylist()))
        else:
            await batch.ack()
        for key, value in zip(keys, values, strict=True):
            self.account.confirm(key, value)


async def move(r: Rig, dice: random.Random, players: list[Player], segment: int) -> None:
    """Give a unit to somebody else: after a drain, or by force."""
    unit = str(segment)
    old = next((one for one in players if unit in one.consumer.units), None)
    new = dice.choice([one for one in players if one is not old])
    if old is not None:
        token = old.consumer.units[unit]
        if dice.random() < 0.5:
            old.consumer.drain({unit: token})
            drained, fenced = old.heard.drained_units, old.heard.fenced_units
            await old.heard.until(
                lambda: any(one[:2] == (unit, token) for one in drained) or (unit, token) in fenced
            )
    owned = await r.claim(segment, owner=f"m{players.index(new)}")
    if old is not None and unit in old.consumer.units and dice.random() < 0.5:
        # It is told by its owner; otherwise it finds out by its next ack.
        token = old.consumer.units[unit]
        old.consumer.abandon(unit, token, Fenced(r.group, unit, token, owned.token))
    new.consumer.open(owned)
    # Whoever was robbed may know only now; it lets go before the unit can come back to it.
    if old is not None and unit in old.consumer.units:
        token = old.consumer.units[unit]
        old.consumer.abandon(unit, token, Fenced(r.group, unit, token, owned.token))


async def breathe(player: Player) -> None:
    """All units of a player come to rest, and go on; they may be taken away meanwhile."""
    player.heard.rested_units.clear()
    paused = player.consumer.units
    player.consumer.pause(paused)

    def at_rest() -> bool:
        resting = {one[0] for one in player.heard.rested_units}
        return resting >= paused.keys() & player.consumer.units.keys()

    await player.heard.until(at_rest)
    kept = {u: t for u, t in player.consumer.units.items() if paused.get(u) == t}
    assert all(one.at_rest for one in player.consumer.standings(kept).values())
    player.consumer.resume(kept)


async def through(r: Rig) -> bool:
    """Whether all that was published is acked, and stored so."""
    heads = [segment.head for segment in (await r.hr.stream("orders")).segments]
    return [await r.stored(n) for n in range(SEGMENTS)] == [Progress(head) for head in heads]


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_repeated_or_out_of_order(catalog_url: str, seed: int) -> None:
    async def work() -> None:
        dice = random.Random(seed)
        async with rig(catalog_url, segments=SEGMENTS) as r:
            await r.hr.create_stream("out", subjects=["out.>"])
            account = Account()
            late = seed % 2 == 1
            players = [Player(r, dice, account, batches=n == 1, late=late) for n in range(3)]
            sent = 0
            moves = 0
            while sent < EVENTS or not await through(r):
                if sent < EVENTS:
                    keys = "".join(dice.choice(KEYS) for _ in range(30))
                    await r.fill(keys, start=sent)
                    sent += 30
                if moves < 40:
                    await move(r, dice, players, dice.randrange(SEGMENTS))
                    moves += 1
                else:
                    for segment in range(SEGMENTS):
                        if not any(str(segment) in one.consumer.units for one in players):
                            await move(r, dice, players, segment)
                if dice.random() < 0.4:
                    await breathe(dice.choice(players))
                for _ in range(dice.randrange(40)):
                    await asyncio.sleep(0)
                if sent == EVENTS:
                    await asyncio.sleep(0.001)  # what is late comes again only as time passes
                for player in players:
                    if player.task.done():
                        player.task.result()
            for player in players:
                await player.consumer.close()
                await player.task
            for values in account.by_key.values():
                assert values == sorted(values)
            letters = [int(row["value"]) for row in await r.dead()]
            dead = set(letters)
            assert len(letters) == len(dead)
            assert account.confirmed == set(range(EVENTS)) - dead
            assert dead >= POISON if late else dead == POISON
            written = [
                int(value)
                async for batch in r.hr.read("out")
                for row in batch.column("value").to_pylist()
                for value in row.split()
            ]
            assert len(written) == len(set(written))
            assert set(written) <= account.confirmed

    run(work())
