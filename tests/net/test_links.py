"""Dialling: when there is something to say, again when a connection has ended."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.net import Target, links
from tests.net.support import SECRET, hearing, speaking, wire
from tests.support import until


def test_messages_reach_a_peer_in_order_and_answers_come_back_with_its_name() -> None:
    async def test() -> None:
        async with hearing() as there, speaking(there.target) as here:
            for number in range(1000):
                assert here.links.send("there", str(number))
            assert here.links.unsent
            assert here.links.statistics().dialling == 1
            await until(lambda: len(there.heard) == 1000, "all of them")
            assert there.heard == [str(number) for number in range(1000)]
            there.outboxes[0].put("thanks")
            await until(lambda: here.heard == ["there: thanks"], "the answer")
            told = here.links.statistics()
            assert (told.connections, told.dialling, told.waiting) == (1, 0, 0)
            assert (told.sent, told.received, told.dropped) == (1000, 1, 0)

    asyncio.run(test())


def test_a_connection_that_ends_is_told_and_dialled_again_with_the_next_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "REDIAL_S", 0.0)

    async def test() -> None:
        async with hearing() as there, speaking(there.target) as here:

            async def speak_and_cut(number: int) -> None:
                here.links.send("there", str(number))
                await until(lambda: there.heard[number:], "the message")
                for connection in list(there.listener.connections):
                    connection.abort()
                await until(lambda: len(here.cut) == number + 1, "the end")
                assert not here.links.connections

            for number in range(3):
                await speak_and_cut(number)
            assert there.heard == ["0", "1", "2"]
            assert here.cut == ["there"] * 3

    asyncio.run(test())


@pytest.mark.parametrize("nowhere", [None, Target("127.0.0.1", 1, SECRET)])
def test_who_cannot_be_reached_gets_nothing_and_is_looked_up_again(
    nowhere: Target | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "REDIAL_S", 0.01)

    async def test() -> None:
        async with hearing() as there, speaking(nowhere) as here:
            here.links.send("there", "lost")
            await until(lambda: here.links.statistics().dropped == 1, "its loss")
            await until(lambda: here.links.statistics().dialling == 0, "the next try")
            here.target = there.target
            here.links.send("there", "found")
            await until(lambda: there.heard, "the message")
            assert there.heard == ["found"], "what was lost stays lost"
            assert here.cut == [], "it was never there"

    asyncio.run(test())


def test_the_secret_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with hearing() as there, speaking(there.target) as here:
            here.links.send("there", "hello")
            await until(lambda: there.heard, "the message")
            here.target = Target(there.target.host, there.target.port, SECRET + "x")
            here.links.send("elsewhere", "hello")
            await until(lambda: there.listener.statistics().refused, "the refusal")

    with caplog.at_level(logging.DEBUG):
        asyncio.run(test())
    assert SECRET not in caplog.text


def test_a_connection_on_which_nothing_is_answered_is_ended_and_dialled_again() -> None:
    async def test() -> None:
        spoken = wire(silence_s=0.2)
        async with hearing(spoken) as there, speaking(there.target, spoken=spoken) as here:
            here.links.send("there", "hello")
            await until(lambda: there.heard == ["hello"], "the message")
            there.outboxes[0].put("hello yourself")
            await until(lambda: bool(here.heard), "the answer")
            here.links.send("there", "are you there")
            await until(lambda: here.cut == ["there"], "the end of the connection")
            assert there.heard == ["hello", "are you there"]
            here.links.send("there", "again")
            await until(lambda: there.heard[2:] == ["again"], "the message on another connection")

    asyncio.run(test())


def test_a_connection_with_answers_stays_however_long_ago_they_were() -> None:
    async def test() -> None:
        spoken = wire(silence_s=1.0)
        async with hearing(spoken) as there, speaking(there.target, spoken=spoken) as here:
            here.links.send("there", "hello")
            await until(lambda: there.heard == ["hello"], "the message")
            there.outboxes[0].put("hello yourself")
            await until(lambda: bool(here.heard), "the answer")
            outbox = here.links.connections["there"].outbox
            await until(lambda: not outbox._watched, "the end of the watch")
            assert not here.cut

    asyncio.run(test())
