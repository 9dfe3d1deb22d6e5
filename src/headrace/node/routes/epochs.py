"""Epochs: frontiers, who holds them back, and subscriptions."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.catalog.streams import Stream
from headrace.epochs import operators
from headrace.epochs.runtime import stairs as epoch_stairs
from headrace.epochs.runtime import status as epoch_status
from headrace.epochs.runtime import subscriptions
from headrace.epochs.runtime.stairs import Stairs
from headrace.epochs.runtime.status import EpochStatus
from headrace.epochs.runtime.subscriptions import EpochSubscriptionInfo
from headrace.node.problems import not_there
from headrace.node.routes.changes import Body, ChangeDone, change_route, check_typed
from headrace.node.routes.table import Call, Route


class EpochView(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch stream: how far it is complete, and who holds it back."""

    status: EpochStatus
    sentences: tuple[str, ...]
    """What holds it back, and what to do."""


class EndPublisher(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a stream goes on without a publisher, which is fenced."""

    how: Literal["release", "rollback", "abort"]
    """What it left counts as complete, or is taken back, or the stream ends for good."""
    name: str
    """The publisher's name once more, typed."""
    reason: str = ""
    """Of an abort: what those who read the stream are told."""
    dry_run: bool = False


class ForgetSubscription(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named subscription that is forgotten."""

    name: str
    """Its name once more, typed."""
    dry_run: bool = False


async def _epoch_stream(call: Call) -> Stream:
    look = await call.node.look()
    name = call.params["stream"]
    stream = look.streams.get(name)
    if stream is None or stream.config.epochs is None or not call.who.sees_stream(stream):
        raise not_there(f"epoch stream {name[:100]!r}")
    return stream


async def one(call: Call) -> EpochView:
    stream = await _epoch_stream(call)
    found = await call.node.host.in_thread(epoch_status.status, call.node.hr.log, stream.name)
    return EpochView(status=found, sentences=epoch_status.explained(found))


async def stairs(call: Call) -> Stairs:
    stream = await _epoch_stream(call)
    return await call.node.host.in_thread(epoch_stairs.stairs, call.node.hr.log, stream.name)


async def end_publisher(call: Call) -> ChangeDone:
    stream, body = await _epoch_stream(call), call.body
    name, log, host = call.params["publisher"], call.node.hr.log, call.node.host
    found = await host.in_thread(epoch_status.status, log, stream.name)
    if name not in {each.name for each in found.publishers}:
        raise not_there(f"publisher {name[:100]!r} of {stream.name}")
    check_typed(call, name)
    if body.how == "release":
        done, work = f"what {name} left counts; {stream.name} goes on", operators.release
    elif body.how == "rollback":
        done, work = f"what {name} left open is taken back", operators.roll_back
    else:
        done, work = f"{stream.name} ends as aborted, for good", None
    if not body.dry_run and work is not None:
        await host.in_thread(work, log, stream.name, name)
    elif not body.dry_run:
        await host.in_thread(operators.abort, log, stream.name, name, body.reason)
    counts = {"open_epochs": found.open_epochs, "open_rows": found.open_rows}
    return ChangeDone(done=done, dry_run=body.dry_run, counts=counts)


async def listed(call: Call) -> tuple[str, ...]:
    look = await call.node.look()
    return tuple(name for name in look.epochs if call.who.sees_stream(look.streams[name]))


async def subscribed(call: Call) -> tuple[EpochSubscriptionInfo, ...]:
    look = await call.node.look()
    seen = {name for name, each in look.streams.items() if call.who.sees_stream(each)}
    found = await call.node.host.in_thread(subscriptions.listed, call.node.hr.log.catalog)
    return tuple(
        each for each in found if not call.who.scoped or any(name in seen for name in each.streams)
    )


async def forget(call: Call) -> ChangeDone:
    name = call.params["subscription"]
    found = {each.name: each for each in await subscribed(call)}.get(name)
    if found is None and call.who.scoped:
        raise not_there(f"subscription {name[:100]!r}")
    check_typed(call, name)
    # One that cannot be read is in no list, and can be forgotten all the same.
    if not call.body.dry_run:
        await call.node.host.in_thread(subscriptions.forget, call.node.hr.log.catalog, name)
    elif found is None:
        raise not_there(f"subscription {name[:100]!r}")
    streams = f" to {', '.join(found.streams)}" if found is not None else ""
    held = "; the program that holds it is fenced" if found is not None and found.held else ""
    done = f"subscription {name}{streams} with how far it has read{held}"
    return ChangeDone(done=done, dry_run=call.body.dry_run)


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
    Route(
        method="GET",
        path="/epochs/{stream}/steps",
        summary="How far an epoch stream was complete, and when",
        handler=stairs,
        answer=Stairs,
    ),
    change_route(
        "POST",
        "/epochs/{stream}/publishers/{publisher}/end",
        "Do without a publisher of an epoch stream",
        end_publisher,
        EndPublisher,
        cli="headrace epoch release",
    ),
    Route(
        method="GET",
        path="/epoch-subscriptions",
        summary="Named subscriptions to epochs, and how far they have read",
        handler=subscribed,
        answer=tuple[EpochSubscriptionInfo, ...],
        cli="headrace epoch subscriptions",
    ),
    change_route(
        "DELETE",
        "/epoch-subscriptions/{subscription}",
        "Forget a named subscription to epochs",
        forget,
        ForgetSubscription,
        cli="headrace epoch forget",
    ),
)
