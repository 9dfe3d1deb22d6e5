"""Changing the members of partitioned groups, and looking at who is active.

What a command needs is loaded when it runs: looking at members needs little of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.cli import values
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options

if TYPE_CHECKING:
    from headrace.groups.partitioned.admin import GroupInfo

members_app = App(
    name="members", help="Show the members of a group; add some to an elastic one, or drop some."
)
mapping_app = App(name="mapping", help="Map the partitions of an elastic group by hand, or not.")


def _show(after: GroupInfo, options: Options) -> None:
    from headrace.cli.group_partitioned import show

    show(after, options)


Names = Annotated[str, Parameter(help="Names, comma-separated.")]


@members_app.default
def members(name: str, group: str | None = None, /, *, options: Options = NONE) -> None:
    """Show who takes part in a group of any kind, and who should.

    * `headrace group members orders/billing`
    * `headrace group members '$share/audit/orders.>'`
    """
    from headrace.cli import group_looks

    group_looks.members(name, group, options=options)


@members_app.command
def add(stream: str, group: str, members: Names, /, *, options: Options = NONE) -> None:
    """Add members to an elastic group; those it has already are passed over.

    Example: `headrace group members add orders billing m3,m4`
    """
    from headrace.groups.partitioned import admin

    with options.open() as log:
        after = admin.add_members(log, stream, group, _names(members))
    _show(after, options)


@members_app.command
def drop(stream: str, group: str, members: Names, /, *, options: Options = NONE) -> None:
    """Drop members from an elastic group; they finish what they hold, and then wait.

    Example: `headrace group members drop orders billing m3`
    """
    from headrace.groups.partitioned import admin

    with options.open() as log:
        after = admin.drop_members(log, stream, group, _names(members))
    _show(after, options)


def _names(text: str) -> list[str]:
    names = values.words(text)
    if not names:
        raise UsageError("name at least one member: m3,m4")
    return names


@mapping_app.command(name="set")
def set_mapping(
    stream: str, group: str, first: str, /, *more: str, options: Options = NONE
) -> None:
    """Say by hand which member consumes which partitions; all of them have to be there.

    Example: `headrace group mapping set orders billing m1:0,1 m2:2,3`

    Parameters
    ----------
    first
        A member and its partitions: m1:0,1
    more
        The other members.
    """
    from headrace.cli.group_partitioned import mappings

    given = mappings((first, *more), "MAPPING")
    from headrace.groups.partitioned import admin

    with options.open() as log:
        after = admin.set_mappings(log, stream, group, given)
    _show(after, options)


@mapping_app.command
def unset(
    stream: str, group: str, /, *, members: str | None = None, options: Options = NONE
) -> None:
    """Go back to automatic distribution.

    Example: `headrace group mapping unset orders billing`

    Parameters
    ----------
    members
        The members from now on, comma-separated; else those that were mapped.
    """
    names = None if members is None else _names(members)
    from headrace.groups.partitioned import admin

    with options.open() as log:
        after = admin.delete_mappings(log, stream, group, names)
    _show(after, options)


def active(stream: str, group: str, /, *, options: Options = NONE) -> None:
    """Show which members are active, who is missing, and what nobody consumes.

    Example: `headrace group active orders billing`
    """
    from headrace.groups.partitioned import admin

    with options.open() as log:
        found = admin.status(log, stream, group)
    from headrace.cli import group_screens as screens
    from headrace.cli import group_shapes as shapes

    data = shapes.active_members(shapes.full_name(stream, group), found)
    lines = screens.status_lines(found)
    options.show(data, screens.status_table(found), *lines)


def step_down(stream: str, group: str, member: str, /, *, options: Options = NONE) -> None:
    """Have the active instance of a member give way to a standby.

    Example: `headrace group step-down orders billing m1`
    """
    from headrace.groups.partitioned import admin

    with options.open() as log:
        instance = admin.step_down(log, stream, group, member)
    from headrace.cli import group_shapes as shapes

    told = f"instance {escape(instance)} of {escape(member)} is asked to step down"
    name = shapes.full_name(stream, group)
    options.show(shapes.SteppedDown(group=name, member=member, instance=instance), told)


def partitions(stream: str, group: str, member: str, /, *, options: Options = NONE) -> None:
    """Print the partitions that a member is given.

    Example: `headrace group partitions orders billing m1`
    """
    from headrace.groups.partitioned import admin

    with options.open() as log:
        found = admin.partitions(log, stream, group, member)
    from headrace.cli import group_shapes as shapes

    shown = ", ".join(map(str, found)) or "none"
    name = shapes.full_name(stream, group)
    data = shapes.MemberPartitions(group=name, member=member, partitions=tuple(found))
    options.show(data, shown)
