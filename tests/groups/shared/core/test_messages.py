"""Messages survive the wire, and say what they are."""

from __future__ import annotations

import msgspec
import pytest

from headrace.groups.progress import Progress
from headrace.groups.shared.core.messages import (
    Disconnect,
    FromBorrower,
    FromLeader,
    Grant,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    Message,
    Ping,
    PingResponse,
    ProgressConfirmed,
    Revoke,
    Revoked,
    RevokeFinished,
    UnitReport,
    UpdateProgress,
    unit_of,
)

HEAD = ("audit:orders.>", "s:1:1", 2**40)
REPORTS = (UnitReport("orders/3", 2, ((0, 2), (5, 9)), ((3, 2),), True, True),)
UNIT = ("orders/3", 7)
MESSAGES: list[Message] = [
    LeaderWanted(*HEAD, "s"),
    Ping(*HEAD, 4),
    UpdateProgress(*HEAD, 9, REPORTS),
    RevokeFinished(*HEAD, *UNIT),
    Disconnect(*HEAD, 10, REPORTS),
    LeaderConnectResponse(*HEAD, "n1"),
    PingResponse(*HEAD, 4),
    Grant(*HEAD, *UNIT, Progress(4, ((6, 8),), ((5, 1),))),
    Revoke(*HEAD, *UNIT),
    Revoked(*HEAD, *UNIT),
    ProgressConfirmed(*HEAD, 9),
    Invalidate(*HEAD, "because"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_comes_back_as_it_was(message: Message) -> None:
    data = msgspec.msgpack.encode(message)
    decoded = msgspec.msgpack.decode(data, type=FromBorrower | FromLeader)
    assert decoded == message
    assert type(decoded) is type(message)


def test_every_message_is_tried() -> None:
    assert {type(message) for message in MESSAGES} == set(Message.__subclasses__())


def test_units_are_named_by_stream_and_number() -> None:
    assert unit_of("orders", 3) == "orders/3"
