"""Outboxes: bounded in messages and bytes, with back-pressure for who can wait."""

from __future__ import annotations

import asyncio

from headrace.net.outbox import Outbox, Post
from headrace.net.wire import Traffic, Wire
from tests.net.support import Texts, hearing, speaking, wire
from tests.support import until


def outbox_of(spoken: Wire[str, str]) -> tuple[Outbox[str], Traffic]:
    traffic = Traffic()
    return Outbox(spoken, Texts(), traffic, Post()), traffic


def test_a_slow_peer_costs_no_more_than_its_queue() -> None:
    async def test() -> None:
        outbox, traffic = outbox_of(wire(queue_messages_max=10))
        taken = [outbox.put(str(number)) for number in range(25)]
        assert taken == [True] * 10 + [False] * 15
        assert traffic.dropped == 15
        assert not outbox.empty
        assert outbox.statistics().messages == 10

    asyncio.run(test())


def test_a_queue_is_bounded_by_bytes_where_the_wire_knows_them() -> None:
    async def test() -> None:
        outbox, traffic = outbox_of(wire(size=len, queue_bytes_max=100))
        taken = [outbox.put("x" * 60) for _ in range(5)]
        assert taken == [True, True, False, False, False], "the last may exceed what is left"
        assert outbox.statistics().bytes == 120
        outbox.close()
        assert outbox.statistics().bytes == 0
        assert traffic.dropped == 5

    asyncio.run(test())


def test_who_waits_for_room_goes_on_when_the_peer_reads_again() -> None:
    # Far more than sockets hold: the network pushes back, and the queue fills.
    text = "x" * 100_000
    spoken = wire(size=len, queue_bytes_max=10 * len(text), batch_messages_max=1)

    async def test() -> None:
        async with hearing(spoken) as there, speaking(there.target, spoken) as here:
            here.links.send("there", "hello")
            await until(lambda: there.outboxes, "the hello")
            back = there.outboxes[0]
            transport = here.links.connections["there"].transport
            assert transport is not None
            transport.underlying_transport.pause_reading()
            sent = 0
            while not back.full:
                assert back.put(text)
                sent += 1
                await asyncio.sleep(0)
            assert back.statistics().paused
            waiting = asyncio.create_task(back.room())
            await asyncio.sleep(0)
            assert not waiting.done()
            transport.underlying_transport.resume_reading()
            await asyncio.wait_for(waiting, 20)
            assert back.put("and one more")
            await until(lambda: here.heard[-1:] == ["there: and one more"], "all of it")
            assert len(here.heard) == sent + 1
            assert there.listener.statistics().dropped == 0

    asyncio.run(test())


def test_who_waits_for_room_does_not_wait_for_a_peer_that_is_gone() -> None:
    async def test() -> None:
        outbox, _ = outbox_of(wire(queue_messages_max=1))
        outbox.put("a")
        waiting = asyncio.create_task(outbox.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        outbox.close()
        await asyncio.wait_for(waiting, 20)
        assert not outbox.put("b"), "what nobody will read is not kept"

    asyncio.run(test())
