"""Epochs: frontiers, who holds them back, and subscriptions."""

from __future__ import annotations

import msgspec

from headrace.epochs.runtime import status as epoch_status
from headrace.epochs.runtime.status import EpochStatus
from headrace.node.problems import not_there
from headrace.node.routes.table import Call, Route


class EpochView(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch stream: how far it is complete, and who holds it back."""

    status: EpochStatus
    sentences: tuple[str, ...]
    """What holds it back, and what to do."""


async def one(call: Call) -> EpochView:
    look = await call.node.look()
    name = call.params["stream"]
    stream = look.streams.get(name)
    if stream is None or stream.config.epochs is None or not call.who.sees_stream(stream):
        raise not_there(f"epoch stream {name[:100]!r}")
    found = await call.node.host.in_thread(epoch_status.status, call.node.hr.log, name)
    return EpochView(status=found, sentences=epoch_status.explained(found))


async def listed(call: Call) -> tuple[str, ...]:
    look = await call.node.look()
    return tuple(name for name in look.epochs if call.who.sees_stream(look.streams[name]))


ROUTES = (
    Route(
        method="GET",
        path="/epochs",
        summary="Streams that are published by epochs",
        handler=listed,
        answer=tuple[str, ...],
    ),
    Route(
        method="GET",
        path="/epochs/{stream}",
        summary="How far an epoch stream is complete, and who holds it back",
        handler=one,
        answer=EpochView,
        cli="headrace epoch status STREAM",
    ),
)
