"""``headrace group shared``: declare, look at, explain and remove shared groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter
from rich.markup import escape
from rich.table import Table

from headrace.catalog.streams import Stream
from headrace.cli import values
from headrace.cli.options import NONE, Options, console, print_json
from headrace.cli.screens import time_text
from headrace.groups.shared.admin import GroupInfo, Groups
from headrace.groups.shared.records import Decision
from headrace.groups.shared.starts import Start
from headrace.subjects import overlaps, parse_share

app = App(
    name="shared",
    help="Groups that balance themselves: declare, look at, explain and remove.",
    help_epilogue="",
)


def start_of(text: str, option: str) -> Start:
    """Where a group begins: earliest, now, a time, or so long ago."""
    return text if text in ("earliest", "now") else values.moment(text, option)


def named(text: str, filter: str | None) -> tuple[str, str | None]:
    """Group and filter, from two words or from ``$share/GROUP/FILTER``."""
    shared = parse_share(text) if text.startswith("$") else None
    return (text, filter) if shared is None else shared


@app.command
def declare(
    group: str,
    filter: str | None = None,
    /,
    *,
    start: str = "now",
    balance: Literal["count", "lag"] = "count",
    scale_for_members: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Make a group ahead of its subscribers; it collects from its start on.

    Declaring it again in the same way changes nothing.

    * `headrace group shared declare audit 'orders.>' --start earliest`
    * `headrace group shared declare '$share/audit/orders.>' --start 15m --balance lag`

    Parameters
    ----------
    group
        The group's name, or $share/GROUP/FILTER.
    filter
        The subjects it consumes; streams that are made later count too.
    start
        earliest, now, a time (2013-07-04T10:30Z), or 15m for 15 minutes ago.
    balance
        What a fair share is: as many segments, or as much to do.
    scale_for_members
        Split the busiest segment while there are more members than segments.
    """
    name, wanted = named(group, filter)
    with options.open() as log:
        made = Groups(log).declare(
            name,
            wanted or "",
            start=start_of(start, "--start"),
            balance=balance,
            scale_for_members=scale_for_members,
        )
        matched = matches(log.streams(), made.filter)
    if options.json:
        print_json(made)
    else:
        console().print(
            f"shared group [bold]{escape(made.group)}[/bold] consumes {escape(made.filter)} from "
            f"{made.start}; subscribe to {escape(f'$share/{made.group}/{made.filter}')}"
        )
        if not matched:
            console().print("no stream captures such subjects yet; those made later count")


def matches(streams: Iterable[Stream], filter: str) -> bool:
    """Whether anything that these streams capture can pass the filter."""
    return any(overlaps(filter, subject) for each in streams for subject in each.config.subjects)


@app.command
def ls(*, options: Options = NONE) -> None:
    """List the groups.

    Example: `headrace group shared ls`
    """
    with options.open() as log:
        found = Groups(log).list()
    if options.json:
        print_json([data(info) for info in found])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("group")
    table.add_column("filter")
    for heading in ("members", "segments", "lag"):
        table.add_column(heading, justify="right")
    table.add_column("leader")
    for info in found:
        table.add_row(
            escape(info.properties.group),
            escape(info.properties.filter),
            str(len(info.members)),
            str(sum(not unit.finished for unit in info.units)),
            f"{info.lag_events:,}",
            escape(info.leader or "none"),
        )
    console().print(table)


@app.command
def info(group: str, filter: str | None = None, /, *, options: Options = NONE) -> None:
    """Show a group: its members, who has which segment, and how far it is.

    Example: `headrace group shared info audit`

    Parameters
    ----------
    group
        The group's name, or $share/GROUP/FILTER.
    filter
        Which one, if there are several of that name.
    """
    with options.open() as log:
        found = Groups(log).get(*named(group, filter))
    if options.json:
        print_json(data(found))
        return
    screen = console()
    kind = found.properties
    screen.print(
        f"shared group [bold]{escape(kind.group)}[/bold] consumes {escape(kind.filter)}, "
        f"from {kind.start}, balanced by {kind.balance}\n"
        f"led by {escape(found.leader or 'nobody')}; {found.lag_events:,} events to do\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("segment")
    table.add_column("owner")
    for heading in ("token", "floor", "head", "lag"):
        table.add_column(heading, justify="right")
    for unit in found.units:
        table.add_row(
            escape(unit.unit),
            "finished" if unit.finished else escape(unit.owner or "nobody"),
            str(unit.token),
            f"{unit.floor:,}",
            f"{unit.head:,}",
            f"{unit.lag_events:,}",
            style="dim" if unit.finished else "",
        )
    screen.print(table)


@app.command
def explain(
    group: str, filter: str | None = None, /, *, limit: int = 20, options: Options = NONE
) -> None:
    """Say why members have what they have, are idle, or lost a segment.

    Example: `headrace group shared explain audit`

    Parameters
    ----------
    group
        The group's name, or $share/GROUP/FILTER.
    filter
        Which one, if there are several of that name.
    limit
        How many of the latest decisions to show.
    """
    with options.open() as log:
        found = Groups(log).explain(*named(group, filter))
    if options.json:
        print_json(found)
        return
    screen = console()
    screen.print(f"led by {escape(found.leader or 'nobody: no member is connected')}")
    for member, units, idle in found.members:
        has = f"has {units} segment{'s' if units != 1 else ''}"
        screen.print(f"{escape(member)} {has}{f': {idle}' if idle else ''}")
    for decision in found.decisions[-limit:]:
        screen.print(escape(decided(decision)))


@app.command
def rm(
    group: str,
    filter: str | None = None,
    /,
    *,
    force: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Delete a group and its progress; the events stay.

    Example: `headrace group shared rm audit --force`

    Parameters
    ----------
    group
        The group's name, or $share/GROUP/FILTER.
    filter
        Which one, if there are several of that name.
    force
        Even with live members; they are delivered nothing more.
    """
    name, wanted = named(group, filter)
    with options.open() as log:
        Groups(log).delete(name, wanted, force=force)
    if options.json:
        print_json({"deleted": name})
    else:
        console().print(f"shared group [bold]{escape(name)}[/bold] is deleted")


def decided(decision: Decision) -> str:
    """A decision in words."""
    what = {
        "grant": "got",
        "move": "gives up",
        "drop": "is dropped",
        "finish": "finished",
        "scale": "split",
    }.get(decision.what, decision.what)
    about = " ".join(part for part in (decision.borrower, what, decision.unit) if part)
    return f"{time_text(decision.at_ms * 1000)}  {about}: {decision.reason}"


def data(info: GroupInfo) -> dict[str, Any]:
    """A group for programs."""
    found: dict[str, Any] = msgspec.to_builtins(info)
    kind = found.pop("properties")
    return {**kind, "lag_events": info.lag_events, **found}
