"""Acting on groups: make, remove, seek, members, mappings."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from headrace.errors import InvalidInputError
from headrace.groups import names
from headrace.groups.names import PARTITIONED, SHARED, FullName
from headrace.groups.operations.seek import Sought
from headrace.node.places import place_of
from headrace.node.routes.changes import (
    Body,
    ChangeDone,
    Removal,
    change_route,
    check_typed,
    check_within,
)
from headrace.node.routes.groups import group_of
from headrace.node.routes.streams import stream_of
from headrace.node.routes.table import Call


class NewGroup(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group to make."""

    kind: str
    """``static``, ``elastic``, ``shared`` or ``reader``."""
    group: str
    stream: str = ""
    streams: tuple[str, ...] = ()
    """Of a reader group."""
    filter: str = ""
    wildcards: tuple[int, ...] = ()
    max_members: Annotated[int, Meta(ge=1, le=100_000)] = 16
    max_buffered: Annotated[int, Meta(ge=0)] = 0
    members: tuple[str, ...] = ()
    start: str = "earliest"


class SeekGroup(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a group goes."""

    to: str
    units: tuple[str, ...] | None = None
    dry_run: bool = False


class GroupMembers(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Members of an elastic group that come or go."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class GroupMapping(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who has which partitions of an elastic group; nothing: by itself again."""

    mappings: dict[str, tuple[int, ...]] | None = None


class StepDown(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose active instance steps down."""

    member: str


async def create_group(call: Call) -> ChangeDone:
    body: NewGroup = call.body
    hr = call.node.hr
    for name in (*body.streams, *([body.stream] if body.stream else ())):
        call.params = {"stream": name}
        await stream_of(call)
    start = place_of(body.start)
    if body.kind == "static":
        await hr.groups.create_static(
            body.stream,
            body.group,
            max_members=body.max_members,
            filter=body.filter,
            members=body.members,
            start=start,
        )
    elif body.kind == "elastic":
        await hr.groups.create_elastic(
            body.stream,
            body.group,
            max_members=body.max_members,
            filter=body.filter,
            wildcards=body.wildcards,
            max_buffered=body.max_buffered,
            members=body.members,
            start=start,
        )
    elif body.kind == "shared":
        check_within(call, (body.filter,))
        if not isinstance(start, str | datetime):
            raise InvalidInputError("start: a shared group starts at earliest, now, or a time")
        await hr.shared_groups.declare(
            body.group, body.filter, start="now" if start == "latest" else start
        )
    elif body.kind == "reader":
        await hr.reader_groups.create(body.group, streams=body.streams or (body.stream,))
    else:
        raise InvalidInputError(f"kind={body.kind[:40]!r}: static, elastic, shared or reader")
    return ChangeDone(done=f"the {body.kind} group {body.group} is there")


def _name(view_name: str) -> FullName:
    found = names.parse(view_name)
    assert found is not None, view_name
    return found


async def remove_group(call: Call) -> ChangeDone:
    look, view = await group_of(call)
    check_typed(call, view.group)
    name = _name(view.group)
    hr = call.node.hr
    counts = {"lag_events": view.lag.events, "dead_letters": look.letters.get(view.group, 0)}
    if not call.body.dry_run:
        if name.family == PARTITIONED:
            await hr.groups.delete(name.scope, name.group)
        elif name.family == SHARED:
            await hr.shared_groups.delete(name.group, name.scope, force=call.body.force)
        else:
            await hr.reader_groups.delete(name.group, force=call.body.force)
    return ChangeDone(
        done=f"group {view.group} with its progress and its dead letters",
        dry_run=call.body.dry_run,
        counts=counts,
    )


async def seek_group(call: Call) -> Sought:
    _, view = await group_of(call)
    body: SeekGroup = call.body
    to = place_of(body.to, what="to")
    return await call.node.hr.seek(
        view.group,
        to,  # type: ignore[arg-type]
        units=body.units,
        dry_run=body.dry_run,
    )


async def change_members(call: Call) -> ChangeDone:
    _, view = await group_of(call)
    name = _partitioned(view.group)
    groups = call.node.hr.groups
    if call.body.add:
        await groups.add_members(name.scope, name.group, call.body.add)
    if call.body.drop:
        await groups.drop_members(name.scope, name.group, call.body.drop)
    return ChangeDone(
        done=f"the members of {view.group} are changed",
        counts={"added": len(call.body.add), "dropped": len(call.body.drop)},
    )


async def change_mapping(call: Call) -> ChangeDone:
    _, view = await group_of(call)
    name = _partitioned(view.group)
    groups = call.node.hr.groups
    if call.body.mappings is None:
        await groups.delete_mappings(name.scope, name.group)
        return ChangeDone(done=f"{view.group} distributes its partitions by itself")
    await groups.set_mappings(name.scope, name.group, call.body.mappings)
    return ChangeDone(done=f"the partitions of {view.group} are mapped by hand")


async def step_down(call: Call) -> ChangeDone:
    _, view = await group_of(call)
    name = _partitioned(view.group)
    gone = await call.node.hr.groups.step_down(name.scope, name.group, call.body.member)
    return ChangeDone(done=f"{gone} steps down as {call.body.member}")


def _partitioned(text: str) -> FullName:
    name = _name(text)
    if name.family != PARTITIONED:
        raise InvalidInputError(f"{text} is a {name.family} group; this is for partitioned ones")
    return name


ROUTES = (
    change_route(
        "POST",
        "/groups",
        "Make a group",
        create_group,
        NewGroup,
        cli="headrace group elastic create",
    ),
    change_route(
        "DELETE",
        "/groups/{group}",
        "Remove a group with its progress",
        remove_group,
        Removal,
        cli="headrace group elastic rm",
    ),
    change_route(
        "POST",
        "/groups/{group}/seek",
        "Put a group elsewhere in its streams",
        seek_group,
        SeekGroup,
        Sought,
        cli="headrace group seek",
    ),
    change_route(
        "POST",
        "/groups/{group}/members",
        "Add and drop members of an elastic group",
        change_members,
        GroupMembers,
    ),
    change_route(
        "POST",
        "/groups/{group}/mapping",
        "Map partitions to members by hand, or not",
        change_mapping,
        GroupMapping,
    ),
    change_route(
        "POST",
        "/groups/{group}/step-down",
        "Have the active instance of a member step down",
        step_down,
        StepDown,
    ),
)
