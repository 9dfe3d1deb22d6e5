"""``headrace group shared``: declare, configure, look at, explain and remove shared groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter
from rich.markup import escape
from rich.table import Table

from headrace.catalog.streams import Stream
from headrace.cli import values
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options, console, print_json
from headrace.cli.screens import time_text
from headrace.groups.shared.admin import GroupInfo, Groups
from headrace.groups.shared.core.records import Decision
from headrace.groups.shared.starts import Start
from headrace.subjects import overlaps, parse_share

app = App(
    name="shared",
    help="Groups that balance themselves: declare, configure, look at, explain and remove.",
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
def configure(
    group: str,
    filter: str | None = None,
    /,
    *,
    balance: Literal["count", "lag"] | None = None,
    scale_for_members: bool | None = None,
    lag_slack: int | None = None,
    stall_timeout: str | None = None,
    revoke_timeout: str | None = None,
    borrower_timeout: str | None = None,
    lease_ttl: str | None = None,
    heartbeat: str | None = None,
    options: Options = NONE,
) -> None:
    """Change how a group is led, while it runs; what is not given stays.

    Its leader goes on with it at once.

    * `headrace group shared configure audit --balance lag --stall-timeout 2m`
    * `headrace group shared configure audit --lease-ttl 20s --no-scale-for-members`

    Parameters
    ----------
    group
        The group's name, or $share/GROUP/FILTER.
    filter
        Which one, if there are several of that name.
    balance
        What a fair share is: as many segments, or as much to do.
    scale_for_members
        Split the busiest segment while there are more members than segments.
    lag_slack
        By lag: the percentage that a share may be too large before segments move.
    stall_timeout
        A member that has events and acks none of them for so long is evicted.
    revoke_timeout
        A member that does not finish what it is to give up in this time is evicted.
    borrower_timeout
        A member that is silent for so long loses its segments.
    lease_ttl
        After the death of a leader it takes so long until there is another.
    heartbeat
        How often a leader renews its lease; at most half of --lease-ttl.
    """
    times = {
        "--stall-timeout": stall_timeout,
        "--revoke-timeout": revoke_timeout,
        "--borrower-timeout": borrower_timeout,
        "--lease-ttl": lease_ttl,
        "--heartbeat": heartbeat,
    }
    changes = {
        f"{option.strip('-').replace('-', '_')}_ms": int(values.duration_s(text, option) * 1000)
        for option, text in times.items()
        if text is not None
    }
    if lag_slack is not None:
        changes["lag_slack_percent"] = lag_slack
    if not changes and balance is None and scale_for_members is None:
        raise UsageError("nothing to change: give --balance, --stall-timeout or another option")
    name, wanted = named(group, filter)
    with options.open() as log:
        changed = Groups(log).configure(
            name,
            wanted,
            settings=None,
            balance=balance,
            scale_for_members=scale_for_members,
            **changes,
        )
    if options.json:
        print_json(changed)
        return
    settings = changed.settings
    console().print(
        f"shared group [bold]{escape(changed.group)}[/bold] is balanced by {changed.balance}"
        f"{', and splits segments for more members' if changed.scale_for_members else ''}\n"
        f"evicts who stalls for {settings.stall_timeout_ms / 1000:g} s or gives nothing up in "
        f"{settings.revoke_timeout_ms / 1000:g} s, drops who is silent for "
        f"{settings.borrower_timeout_ms / 1000:g} s\n"
        f"lease of {settings.lease_ttl_ms / 1000:g} s, renewed every "
        f"{settings.heartbeat_ms / 1000:g} s"
    )


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
    """Delete a group, its progress and its dead letters; the events stay.

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
        dead_letters = Groups(log).delete(name, wanted, force=force)
    if options.json:
        print_json({"deleted": name, "dead_letters": dead_letters})
    else:
        console().print(
            f"shared group [bold]{escape(name)}[/bold] is deleted{with_letters(dead_letters)}"
        )


def with_letters(count: int) -> str:
    """What went with a group besides its progress."""
    return f", with {count:,} dead letter{'s' if count != 1 else ''}" if count else ""


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
