"""Listening: who is let in, what is heard, and what ends a connection."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headrace.epochs.core import wire as epochs
from headrace.epochs.core.messages import Data, Heartbeat
from headrace.epochs.core.times import TimeShape
from headrace.errors import ListenError
from headrace.net import Frame, Listener, Outbox, Target, Wire
from tests.net.support import SECRET, dial, hearing, wire
from tests.support import until


async def closed(connection: ClientConnection) -> int:
    """The code with which the other side hangs up."""
    with pytest.raises(ConnectionClosed):
        await connection.recv()
    assert connection.close_code is not None
    return connection.close_code


def test_only_who_shows_the_secret_is_let_in() -> None:
    async def test() -> None:
        async with hearing() as there:
            for wrong in ("", "wrong", SECRET[:-1], SECRET + "x"):
                with pytest.raises(InvalidStatus) as refused:
                    await dial(there.target, wrong)
                assert refused.value.response.status_code == 401
            assert there.listener.statistics().refused == 4
            async with dial(there.target) as connection:
                await connection.send(b"hello")
                await until(lambda: there.heard == ["hello"], "the message")

    asyncio.run(test())


def test_nobody_is_let_in_before_there_is_a_secret() -> None:
    async def test() -> None:
        listener = Listener()
        listener.serve(wire(), lambda *_: None)
        host, port = await listener.open("127.0.0.1", 0)
        for given in ("", SECRET):
            with pytest.raises(InvalidStatus) as refused:
                await dial(Target(host, port, given), given)
            assert refused.value.response.status_code == 401
        await listener.close()

    asyncio.run(test())


def test_a_path_that_nothing_is_spoken_on_is_not_found() -> None:
    async def test() -> None:
        async with hearing() as there:
            with pytest.raises(InvalidStatus) as refused:
                await dial(there.target, path="/other")
            assert refused.value.response.status_code == 404
            with pytest.raises(InvalidStatus) as refused:
                await dial(there.target, "wrong", path="/other")
            assert refused.value.response.status_code == 401, "what there is, is not told to all"

    asyncio.run(test())


def test_there_are_no_more_connections_than_the_bound() -> None:
    async def test() -> None:
        async with hearing() as there:
            there.listener.connections_max = 2
            async with dial(there.target), dial(there.target):
                with pytest.raises(InvalidStatus) as refused:
                    await dial(there.target)
                assert refused.value.response.status_code == 503
                assert there.listener.statistics().connections == 2
            await until(lambda: not there.listener.connections, "their end")
            async with dial(there.target):
                pass

    asyncio.run(test())


def test_a_frame_that_makes_no_sense_ends_its_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with hearing(wire(frame_bytes_max=20_000)) as there, dial(there.target) as good:
            for bad, code in ((b"\xff\xff", 1008), ("text", 1008), (b"x" * 30_000, 1009)):
                async with dial(there.target) as connection:
                    await connection.send(bad)
                    assert await closed(connection) == code
            async with dial(there.target) as connection:
                await connection.send([b"in ", b"parts"])
                assert await closed(connection) == 1008
            await good.send(b"fine")
            await until(lambda: there.heard == ["fine"], "the message")
            assert there.listener.statistics().refused == 3

    asyncio.run(test())
    assert caplog.text.count("frames are binary and whole") == 1, "not for every try"


def test_answers_go_back_on_the_connection_and_its_end_is_told() -> None:
    async def test() -> None:
        async with hearing() as there:
            async with dial(there.target) as one, dial(there.target) as other:
                await one.send(b"I am one")
                await until(lambda: len(there.outboxes) == 1, "the first")
                await other.send(b"I am other")
                await until(lambda: len(there.outboxes) == 2, "the second")
                with there.listener.sending():
                    for outbox, name in zip(there.outboxes, ("one", "other"), strict=True):
                        outbox.put(f"hello {name}")
                        outbox.put("again")
                    assert there.listener.statistics().waiting == 4
                    assert there.listener.unsent
                assert not there.listener.unsent, "all is sent at the end of the block"
                assert await one.recv() == b"hello one\nagain"
                assert await other.recv() == b"hello other\nagain"
                assert there.ended == []
            await until(lambda: len(there.ended) == 2, "their end")
            assert set(there.ended) == set(there.outboxes)
            assert not there.outboxes[0].put("too late")
            told = there.listener.statistics()
            assert (told.received, told.sent, told.dropped, told.connections) == (2, 4, 1, 0)

    asyncio.run(test())


def test_what_comes_while_there_is_no_hurry_is_heard_by_who_looks() -> None:
    async def test() -> None:
        heard: list[str] = []
        busy = False
        listener = Listener(lambda: busy)
        listener.serve(wire(), lambda messages, _: heard.extend(messages))
        host, port = await listener.open("127.0.0.1", 0)
        listener.admit(SECRET)
        async with dial(Target(host, port, SECRET)) as connection:
            await connection.send(b"one")
            await until(lambda: heard == ["one"], "what is heard at once")
            busy = True
            listener.look()
            for text in (b"two", b"three"):
                await connection.send(text)

            def look() -> bool:
                listener.look()
                return heard == ["one", "two", "three"]

            await until(look, "what waited")
            assert listener.statistics().received == 3
        await until(lambda: not listener.connections, "the end of the connection")
        await listener.close()

    asyncio.run(test())


def test_an_address_that_cannot_be_bound_is_said() -> None:
    async def test() -> None:
        with pytest.raises(ListenError, match=r"192\.0\.2\.1:0"):
            await Listener().open("192.0.2.1", 0)

    asyncio.run(test())


class EpochCodec:
    """Head and payload are frames of their own, as live epochs have it."""

    copied = 0

    def __init__(self) -> None:
        self._head: epochs.DataHead | None = None

    def encode(self, messages: list[object]) -> list[bytes]:
        raise NotImplementedError

    def decode(self, frame: Frame) -> list[object]:
        if (head := self._head) is not None:
            self._head = None
            if head.time == 17:
                return []  # filtered: not even copied
            EpochCodec.copied += len(frame)
            return [epochs.with_payload(head, bytes(frame))]
        found = epochs.decode_head(bytes(frame), TimeShape())
        if isinstance(found, epochs.DataHead):
            self._head = found
            return []
        return [found]


def test_a_message_may_be_two_frames_and_one_listener_speaks_several_ways() -> None:
    async def test() -> None:
        heard: list[object] = []
        texts: list[str] = []

        def epoch_received(messages: list[object], _: Outbox[object]) -> None:
            heard.extend(messages)

        listener = Listener()
        listener.serve(wire(frame_bytes_max=10), lambda messages, _: texts.extend(messages))
        listener.serve(Wire("/epochs", EpochCodec), epoch_received)
        host, port = await listener.open("127.0.0.1", 0)
        listener.admit(SECRET)
        target = Target(host, port, SECRET)
        beat = Heartbeat(lower=(18,))
        async with dial(target, path="/epochs") as connection, dial(target) as other:
            for message in (Data(17, b"dropped" * 1000, 1), Data(18, b"kept", 1), beat):
                for frame in filter(None, epochs.encode(message)):
                    await connection.send(frame)
                    await other.send(b"between")
            await until(lambda: len(heard) == 2 and len(texts) == 5, "all of it")
            await other.send(b"more than ten bytes")
            assert await closed(other) == 1008, "each has its own bounds"
        assert heard == [Data(18, b"kept", 1), beat]
        assert EpochCodec.copied == 4
        await listener.close()

    asyncio.run(test())
