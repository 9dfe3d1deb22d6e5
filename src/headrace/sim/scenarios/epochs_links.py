"""Links of the epochs scenario: numbered frames with a window, resent until confirmed.

They behave as a connection of a transport would: in order, without loss, or broken.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from headrace.epochs import (
    Frontier,
    Message,
    QueueSettings,
    Subscriber,
)
from headrace.epochs.core.feed import LineFeed

TICK_MS = 250
WINDOW_FRAMES = 4
HEARTBEAT_MS = 600
LINK_TIMEOUT_MS = 3000
SILENCE_MS = 4000


class Hello(msgspec.Struct, frozen=True):
    """A subscriber wants a link."""

    connection: str
    settings: QueueSettings


class Frame(msgspec.Struct, frozen=True):
    """One message on a link."""

    connection: str
    life: int
    """The number of the connection; grows when it is made again."""
    number: int
    message: Any


class Got(msgspec.Struct, frozen=True):
    """All frames up to a number were dealt with."""

    connection: str
    life: int
    number: int


class Bye(msgspec.Struct, frozen=True):
    """The subscriber has left."""

    connection: str


class Reset(msgspec.Struct, frozen=True):
    """There is no such link any more."""

    connection: str


class Outgoing:
    """A link as its publisher sees it."""

    def __init__(self, target: str, life: int, now_ms: int) -> None:
        self.target = target
        self.life = life
        self.number = 0
        self.unconfirmed: dict[int, Message] = {}
        self.heard_ms = now_ms


class Incoming:
    """A link, or a reader of the log, as its subscriber sees it."""

    def __init__(self, partition: str, connection: str) -> None:
        self.partition = partition
        self.connection = connection
        self.life: int | None = None
        self.expected = 1
        self.done = 0
        self.ahead: dict[int, Message] = {}
        self.inbox: deque[Message] = deque()
        self.line: int | None = None
        """Where a reader of the log stands; None for a link."""
        self.feed: LineFeed | None = None


class Announced:
    """A partition that a subscriber knows of and has still to connect to."""

    def __init__(self, subscriber: Subscriber, partition: str, at: Frontier) -> None:
        self.subscriber = subscriber
        self.partition = partition
        self.at = at
