"""Checkpoints, cuts and resets: taken at work, gone back to exactly, as often as one likes."""

from __future__ import annotations

import headrace
from headrace.groups.readers.positions import GroupCheckpoint
from tests.groups.readers.runtime.support import Taken, run, send, until


def test_a_reset_puts_back_exactly_what_was_acked_at_the_checkpoint(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        await send(hr, *range(40))
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with group.reader("r1") as r1:
            held = [await anext(aiter(r1)) for _ in range(20)]
            acked = held[1::2]
            for delivery in acked:
                await delivery.ack()
            for delivery in held[::2]:
                await delivery.nack(delay_ms=600_000)
            checkpoint = await group.checkpoint("c1")
            done = {int(delivery.value) for delivery in acked}
            for _ in range(3):
                await group.reset("c1")
                taken = Taken()
                async with group.reader("r2") as r2:
                    taken.start(r1, r2)
                    await until(lambda taken=taken: len(taken.got) >= 40 - len(done))  # type: ignore[misc]
                    for task in taken.tasks:
                        task.cancel()
                assert sorted({*taken.numbers}) == sorted(set(range(40)) - done)
                assert len(taken.got) == 40 - len(done)
            again = GroupCheckpoint.parse(str(checkpoint))
            assert again == checkpoint
            await group.reset("earliest")
            assert (await group.info()).checkpoints == ()
            await group.reset(again)
            lag = await group.lag()
            assert lag.events == 40 - len(done)

    run(catalog_url, work)
