"""What tests of the network share: a codec of plain texts, and a listener with what it heard."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import connect

from headrace.errors import FrameError
from headrace.net import Frame, Links, Listener, Outbox, Secured, Target, Wire

SECRET = "the secret of these tests"
PATIENCE_S = 20.0


class Texts:
    """Messages are texts; a frame is some of them, one on each line."""

    def encode(self, messages: list[str]) -> list[bytes]:
        return ["\n".join(messages).encode()]

    def decode(self, frame: Frame) -> list[str]:
        try:
            return bytes(frame).decode().split("\n")
        except UnicodeDecodeError as error:
            raise FrameError(f"no text: {error}") from error


def wire(**bounds: Any) -> Wire[str, str]:
    return Wire("/texts", Texts, **bounds)


class Hearing:
    """A listener that writes down what it hears."""

    def __init__(self, spoken: Wire[str, str], secured: Secured | None = None) -> None:
        self.heard: list[str] = []
        self.outboxes: list[Outbox[str]] = []
        self.ended: list[Outbox[str]] = []
        self.listener = Listener(secured=secured)
        self.listener.serve(spoken, self._received, self.ended.append)
        self.target = Target("", 0, SECRET)

    def _received(self, messages: list[str], outbox: Outbox[str]) -> None:
        self.heard += messages
        if outbox not in self.outboxes:
            self.outboxes.append(outbox)


@asynccontextmanager
async def hearing(
    spoken: Wire[str, str] | None = None, secured: Secured | None = None
) -> AsyncIterator[Hearing]:
    made = Hearing(spoken or wire(), secured)
    host, port = await made.listener.open("127.0.0.1", 0)
    made.target = Target(host, port, SECRET, secured is not None)
    made.listener.admit(SECRET)
    try:
        yield made
    finally:
        await made.listener.close()


class Speaking:
    """Links that write down what comes back."""

    def __init__(
        self, target: Target | None, spoken: Wire[str, str], secured: Secured | None = None
    ) -> None:
        self.target = target
        self.heard: list[str] = []
        self.cut: list[str] = []
        self.links = Links(spoken, self._look_up, self._received, self.cut.append, secured)

    async def _look_up(self, _: str) -> Target | None:
        return self.target

    def _received(self, messages: list[str], outbox: Outbox[str]) -> None:
        self.heard += [f"{outbox.peer}: {message}" for message in messages]


@asynccontextmanager
async def speaking(
    target: Target | None, spoken: Wire[str, str] | None = None, secured: Secured | None = None
) -> AsyncIterator[Speaking]:
    made = Speaking(target, spoken or wire(), secured)
    try:
        yield made
    finally:
        await made.links.close()


def dial(
    target: Target, secret: str = SECRET, path: str = "/texts", tls: ssl.SSLContext | None = None
) -> connect:
    """A connection of a program that is not ours."""
    return connect(
        target.url(path),
        additional_headers={"Authorization": f"Bearer {secret}"},
        proxy=None,
        ssl=tls,
    )
