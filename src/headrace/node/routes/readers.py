"""Reader groups: checkpoints, going back to one, and readers that are put offline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.catalog import Tx
from headrace.errors import InvalidInputError
from headrace.groups import names
from headrace.groups.operations import targets
from headrace.groups.readers.core.segments import END, SegmentId
from headrace.groups.readers.group import ReaderGroup
from headrace.groups.readers.info import CheckpointInfo, ReaderInfo
from headrace.groups.readers.names import FAMILY
from headrace.groups.shapes import GroupView
from headrace.log import order
from headrace.node.access.roles import ADMIN
from headrace.node.places import place_of
from headrace.node.problems import not_there
from headrace.node.routes.changes import Body, ChangeDone, change_route, check_typed
from headrace.node.routes.groups import group_of
from headrace.node.routes.table import Call, Route
from headrace.node.shapes import Look

NAME_CHARS_MAX = 200


class NewCheckpoint(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint to take."""

    checkpoint: Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
    wait_s: Annotated[float, Meta(gt=0, le=60)] = 10.0
    """How long to wait for readers; it may be complete later."""


class CheckpointTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is complete."""

    done: str
    checkpoint: str
    positions: Mapping[str, int]
    text: str
    """It as a text, which can be kept anywhere and gone back to."""


class ResetTo(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a reader group begins again; without a place at its last checkpoint."""

    checkpoint: str = ""
    to: str = ""
    """``earliest``, ``latest``, or a time with its zone."""
    name: str = ""
    """The group's name once more, typed."""
    dry_run: bool = False


class ResetPlan(ChangeDone, frozen=True, kw_only=True):
    """Where a reset puts a group, and who reads it now."""

    positions: Mapping[str, int]
    readers: tuple[str, ...]
    again_events: int
    """Acked events that come again; at most: a checkpoint knows what was acked out of order."""
    skipped_events: int
    """Events that were not acked and are passed over; at most."""


class PutOffline(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reader that is put offline."""

    reader: str
    positions: dict[str, int] | None = None
    """Others go on here (``orders/3``: offset); else where it has acked to."""
    rewind: bool = False
    """Positions may take acks back; then the reader's name is wanted once more."""
    name: str = ""
    dry_run: bool = False


async def reader_group_of(call: Call) -> tuple[Look, GroupView, ReaderGroup]:
    """The reader group in the path, if whoever asks sees it."""
    look, view = await group_of(call)
    name = names.parse(view.group)
    if name is None or name.family != FAMILY:
        raise InvalidInputError(f"{view.group} is a {view.kind} group; this is for reader groups")
    return look, view, await call.node.hr.reader_groups.get(name.group)


def _seen(call: Call, look: Look, places: Mapping[str, int]) -> dict[str, int]:
    """Those places whose stream somebody sees."""
    streams = {name for name, each in look.streams.items() if call.who.sees_stream(each)}
    return {place: at for place, at in places.items() if place.rpartition("/")[0] in streams}


async def checkpoints(call: Call) -> tuple[CheckpointInfo, ...]:
    look, _, group = await reader_group_of(call)
    return tuple(
        msgspec.structs.replace(each, positions=_seen(call, look, each.positions))
        for each in await group.checkpoints()
    )


async def take_checkpoint(call: Call) -> CheckpointTaken:
    look, _, group = await reader_group_of(call)
    taken = await group.checkpoint(call.body.checkpoint, timeout_s=call.body.wait_s)
    return CheckpointTaken(
        done=f"checkpoint {call.body.checkpoint!r} is complete",
        checkpoint=call.body.checkpoint,
        positions=_seen(call, look, taken.positions),
        text="" if call.who.scoped else str(taken),
    )


async def cancel_checkpoint(call: Call) -> ChangeDone:
    _, _, group = await reader_group_of(call)
    name = call.params["checkpoint"]
    await group.cancel_checkpoint(name)
    return ChangeDone(done=f"checkpoint {name!r} is given up")


async def reset(call: Call) -> ResetPlan:
    look, view, group = await reader_group_of(call)
    body: ResetTo = call.body
    if body.checkpoint and body.to:
        raise InvalidInputError("give one of checkpoint and to")
    to: object = body.checkpoint or (place_of(body.to, what="to") if body.to else None)
    if isinstance(to, dict):
        raise InvalidInputError("to: give earliest, latest, or a time with its zone")
    check_typed(call, view.group)
    positions = await group.plan_reset(to)  # type: ignore[arg-type]
    readers = tuple(each.reader for each in (await group.info()).readers)
    again, skipped = await call.node.host.in_thread(
        call.node.hr.log.catalog.read,
        lambda tx: _moved(tx, view.group, positions),
        snapshot=True,
    )
    if not body.dry_run:
        await group.reset(to)  # type: ignore[arg-type]
    where = f"checkpoint {body.checkpoint!r}" if body.checkpoint else body.to
    held = f"; readers are online, and what they hold is taken: {', '.join(readers)}"
    return ResetPlan(
        done=f"{view.group} begins again at {where or 'its last checkpoint, or where it began'}"
        + (held if readers else ""),
        dry_run=body.dry_run,
        positions=_seen(call, look, positions),
        readers=readers,
        again_events=again,
        skipped_events=skipped,
    )


def _moved(tx: Tx, group: str, positions: Mapping[str, int]) -> tuple[int, int]:
    """How many events at most come again, and are passed over, if a group goes to a cut."""
    here = targets.spots(tx, targets.find(tx, group))
    places = {spot: SegmentId(spot.stream.name, spot.segment.number) for spot in here}
    graph = {
        place: [SegmentId(place.stream, before) for before in spot.segment.predecessors]
        for spot, place in places.items()
    }
    later = order.following([place for place in graph if str(place) in positions], graph)
    again = skipped = 0
    for spot, place in places.items():
        tail, head = spot.segment.tail, spot.segment.head
        at = tail if place in later else positions.get(str(place), END)
        at = head if at == END else min(max(at, tail), head)
        left = spot.progress.acked().missing(head)
        again += head - at - sum(max(0, end - max(start, at)) for start, end in left)
        skipped += sum(max(0, min(end, at) - max(start, tail)) for start, end in left)
    return again, skipped


async def put_offline(call: Call) -> ChangeDone:
    _, view, group = await reader_group_of(call)
    body: PutOffline = call.body
    found = {each.reader: each for each in (await group.info()).readers}.get(body.reader)
    if found is None:
        raise not_there(f"reader {body.reader[:100]!r} online in {view.group}")
    if body.rewind:
        check_typed(call, body.reader)
    if not body.dry_run:
        await group.offline(body.reader, positions=body.positions, rewind=body.rewind)
    return ChangeDone(
        done=_told(found), dry_run=body.dry_run, counts={"segments": len(found.segments)}
    )


def _told(found: ReaderInfo) -> str:
    if not found.segments:
        return f"{found.reader} is put offline; it reads nothing now"
    shown = ", ".join(found.segments[:10]) + (" …" if len(found.segments) > 10 else "")
    return f"{found.reader} is put offline; others go on with {shown} where it has acked to"


ROUTES = (
    Route(
        method="GET",
        path="/groups/{group}/checkpoints",
        summary="The checkpoints of a reader group that are known by name, oldest first",
        handler=checkpoints,
        answer=tuple[CheckpointInfo, ...],
        cli="headrace reader info GROUP",
    ),
    change_route(
        "POST",
        "/groups/{group}/checkpoints",
        "Take a checkpoint of a reader group",
        take_checkpoint,
        NewCheckpoint,
        CheckpointTaken,
        cli="headrace reader checkpoint",
    ),
    Route(
        method="DELETE",
        path="/groups/{group}/checkpoints/{checkpoint}",
        summary="Give up a checkpoint that waits for readers",
        handler=cancel_checkpoint,
        answer=ChangeDone,
        role=ADMIN,
        changes=True,
        cli="headrace reader checkpoint --cancel",
    ),
    change_route(
        "POST",
        "/groups/{group}/reset",
        "Put a reader group back to a checkpoint, or elsewhere",
        reset,
        ResetTo,
        ResetPlan,
        cli="headrace reader reset",
    ),
    change_route(
        "POST",
        "/groups/{group}/offline",
        "Put a reader of a reader group offline",
        put_offline,
        PutOffline,
        cli="headrace reader offline",
    ),
)
