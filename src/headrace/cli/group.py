"""``headrace group``: groups of members that share a stream, of every kind."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.cli import group_screens as screens
from headrace.cli import values
from headrace.cli.failures import UsageError
from headrace.cli.group_join import join
from headrace.cli.group_partitioned import elastic, mappings, show, static
from headrace.cli.group_shared import app as shared
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted
from headrace.groups.partitioned import admin, explain, lag

app = App(
    name="group",
    help="Groups: create them, see who consumes what and why, and join them.",
    help_epilogue="",
)
members_app = App(name="members", help="Add members to an elastic group, or drop some.")
mapping_app = App(name="mapping", help="Map the partitions of an elastic group by hand, or not.")
app.command(static)
app.command(elastic)
app.command(shared)
app.command(members_app)
app.command(mapping_app)
app.command(join)
elastic.command(members_app)
elastic.command(mapping_app)


Names = Annotated[str, Parameter(help="Names, comma-separated.")]


@members_app.command
def add(stream: str, group: str, members: Names, /, *, options: Options = NONE) -> None:
    """Add members to an elastic group; those it has already are passed over.

    Example: `headrace group members add orders billing m3,m4`
    """
    with options.open() as log:
        after = admin.add_members(log, stream, group, _names(members))
    show(after, options)


@members_app.command
def drop(stream: str, group: str, members: Names, /, *, options: Options = NONE) -> None:
    """Drop members from an elastic group; they finish what they hold, and then wait.

    Example: `headrace group members drop orders billing m3`
    """
    with options.open() as log:
        after = admin.drop_members(log, stream, group, _names(members))
    show(after, options)


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
    given = mappings((first, *more), "MAPPING")
    with options.open() as log:
        after = admin.set_mappings(log, stream, group, given)
    show(after, options)


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
    with options.open() as log:
        after = admin.delete_mappings(log, stream, group, names)
    show(after, options)


@app.command
def active(stream: str, group: str, /, *, options: Options = NONE) -> None:
    """Show which members are active, who is missing, and what nobody consumes.

    Example: `headrace group active orders billing`
    """
    with options.open() as log:
        found = admin.status(log, stream, group)
    lines = screens.status_lines(found)
    options.show(screens.status_data(found), screens.status_table(found), *lines)


@app.command(name="step-down")
def step_down(stream: str, group: str, member: str, /, *, options: Options = NONE) -> None:
    """Have the active instance of a member give way to a standby.

    Example: `headrace group step-down orders billing m1`
    """
    with options.open() as log:
        instance = admin.step_down(log, stream, group, member)
    told = f"instance {escape(instance)} of {escape(member)} is asked to step down"
    options.show({"member": member, "instance": instance}, told)


@app.command
def partitions(stream: str, group: str, member: str, /, *, options: Options = NONE) -> None:
    """Print the partitions that a member is given.

    Example: `headrace group partitions orders billing m1`
    """
    with options.open() as log:
        found = admin.partitions(log, stream, group, member)
    shown = ", ".join(map(str, found)) or "none"
    options.show({"member": member, "partitions": found}, shown)


@app.command(name="explain")
def explain_group(stream: str, group: str, /, *, limit: int = 20, options: Options = NONE) -> None:
    """Say what the group is doing and why: who waits for whom, and the latest decisions.

    Example: `headrace group explain orders billing`

    Parameters
    ----------
    limit
        How many of the latest decisions to show.
    """
    with options.open() as log:
        found = explain.explain(log, stream, group, screens.checked_limit(limit))
    findings = found.findings or ("every partition is consumed by the member it is given to",)
    options.show(
        screens.explanation_data(found),
        screens.group_line(found.group),
        screens.status_table(found.status),
        *map(escape, findings),
        *(escape(screens.decision_line(decision)) for decision in found.decisions),
    )


@app.command(name="lag")
def group_lag(stream: str, group: str, /, *, options: Options = NONE) -> None:
    """Show how far the group is behind, in events, bytes and seconds.

    Example: `headrace group lag orders billing --json`
    """
    with options.open() as log:
        found = lag.group_lag(log, stream, group)
    behind = f"{counted(found.events, 'event')} behind"
    if found.source_events:
        behind += f", {found.source_events:,} of them not partitioned yet"
    findings = [escape(found.finding)] if found.finding else []
    options.show(found, screens.lag_table(found), behind, *findings)
