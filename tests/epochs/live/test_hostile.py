"""Frames that break a rule: the connection ends, and who listened is told in which way."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headrace.epochs.core import wire
from headrace.epochs.core.messages import Data, FrontierUpdate, Snapshot
from headrace.epochs.live import LivePublisher, frames
from headrace.epochs.live.frames import Hello, Packed, ServingCodec
from headrace.epochs.live.items import LiveEpoch
from headrace.errors import EpochsAbortedError, FrameError
from headrace.log.given import to_batch
from headrace.net import (
    FRAME_ROOM,
    LARGE_FRAME_BYTES_MAX,
    Frame,
    Outbox,
    Target,
    Wire,
)
from tests.epochs.live.support import programs, rows, run, values

PREFIX = struct.Struct("<IH")
SNAPSHOT = wire.encode(Snapshot((0,), ()))[0]
PACKED = Packed(to_batch(rows("x")))


class Payload(bytes):
    """A frame that stands behind a head."""


GOOD, BAD = Payload(PACKED.frame[FRAME_ROOM:]), Payload(b"\xff\xff\xff\xff no Arrow")


class Raw:
    """Frames as they are given; what is heard is decoded as a publisher does."""

    def encode(self, messages: list[bytes]) -> list[bytes]:
        return messages

    def decode(self, frame: Frame) -> list[Any]:
        return list(ServingCodec().decode(frame))


@asynccontextmanager
async def answered(publisher: LivePublisher, *said: bytes) -> AsyncIterator[None]:
    """At the publisher's address, another one says this to whoever comes."""

    def received(wishes: list[Any], outbox: Outbox[bytes]) -> None:
        for wish in wishes:
            if isinstance(wish, Hello):
                prefix = PREFIX.pack(wish.link, PACKED.layout)
                for frame in said:
                    outbox.put(frame if isinstance(frame, Payload) else prefix + frame)

    spoken: Wire[bytes, Any] = Wire(
        frames.PATH, Raw, frame_bytes_max=LARGE_FRAME_BYTES_MAX, batch_messages_max=1
    )
    peer = await publisher.running._runtime._shared.peer()
    peer.listener.serve(spoken, received)
    yield


def head(message: Any) -> bytes:
    return wire.encode(message)[0]


HOSTILE: list[tuple[tuple[bytes, ...], str]] = [
    ((SNAPSHOT, b"x" * (wire.HEAD_BYTES_MAX + 1)), "a malformed head: .*is too long"),
    ((SNAPSHOT, b"\xc1"), "a malformed head"),
    ((SNAPSHOT, head(Data((1, 2), b""))), r"\(1, 2\) is not a time of this stream"),
    ((SNAPSHOT, head(FrontierUpdate((((0, 0), -1),)))), "is not a time of this stream"),
    ((SNAPSHOT, head(FrontierUpdate(((3, -1),)))), "publisher eu: FrontierUpdate"),
    ((SNAPSHOT, head(Data(0, b"", -1))), "a number of rows is below 0"),
    ((head(Data(0, b"")), GOOD), "Data at 0 with 1 rows refused: a snapshot comes first"),
    ((SNAPSHOT, SNAPSHOT), "publisher eu: Snapshot"),
    ((SNAPSHOT, head(Data(0, b"")), BAD), "no batch of events"),
    ((SNAPSHOT, head(Data(0, b"", 2)), GOOD), "a payload of 1 rows where 2 were told"),
]


@pytest.mark.parametrize(("said", "told"), HOSTILE, ids=[told for _, told in HOSTILE])
def test_a_publisher_that_breaks_a_rule_is_lost_and_the_reason_is_told(
    tmp_path: Path, said: tuple[bytes, ...], told: str
) -> None:
    async def work() -> None:
        async with (
            programs(tmp_path, 2) as (one, reader),
            one.publisher("eu") as eu,
            answered(eu, *said),
            reader.subscription(mode="streaming") as epochs,
        ):
            with pytest.raises(EpochsAbortedError, match=told):
                async for _ in epochs:
                    pass

    run(work())


def test_of_a_whole_epoch_a_payload_is_judged_when_it_is_read(tmp_path: Path) -> None:
    async def work() -> None:
        complete = head(FrontierUpdate(((0, -1),), ((0, 1),)))
        said = (SNAPSHOT, head(Data(0, b"")), BAD, complete)
        async with (
            programs(tmp_path, 2) as (one, reader),
            one.publisher("eu") as eu,
            answered(eu, *said),
            reader.subscription() as epochs,
        ):
            epoch = await anext(aiter(epochs))
            assert isinstance(epoch, LiveEpoch)
            with pytest.raises(FrameError, match="no batch of events"):
                await epoch.table()

    run(work())


def dialled(target: Target, secret: str) -> connect:
    headers = {"Authorization": f"Bearer {secret}"}
    return connect(target.url(frames.PATH), additional_headers=headers, proxy=None)


async def target_of(publisher: LivePublisher) -> Target:
    peer = await publisher.running._runtime._shared.peer()
    found = await peer.look_up(peer.name)
    assert found is not None
    return found


WISHES: list[bytes | str] = [
    b"\xc1",
    b"x" * 1000,
    "a frame of text",
    msgspec.msgpack.encode([{"type": "hello", "link": "one", "stream": 1}]),
    msgspec.msgpack.encode([frames.Alive()] * (frames.MESSAGES_MAX + 1)),
]


def test_who_listens_shows_the_secret_and_breaks_no_rule(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            programs(tmp_path, 2) as (one, reader),
            one.publisher("eu") as eu,
            reader.subscription() as epochs,
        ):
            await epochs.wait_for(0)
            target = await target_of(eu)
            for secret in ("", "wrong"):
                with pytest.raises(InvalidStatus, match="401"):
                    async with dialled(target, secret):
                        pass
            for wish in WISHES:
                async with dialled(target, target.secret) as socket:
                    await socket.send(wish)
                    with pytest.raises(ConnectionClosed, match="malformed frame"):
                        await socket.recv()
            assert eu.subscribers == 1  # the others are as before
            await eu.append(0, rows("a"))
            await eu.close()
            assert [await values(epoch) async for epoch in epochs] == [["a"]]

    run(work())
