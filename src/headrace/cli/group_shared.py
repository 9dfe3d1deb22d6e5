"""``headrace group shared``: declare, configure, look at, explain and remove shared groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.catalog.streams import Stream
from headrace.cli import group_shapes, values
from headrace.cli.done_shapes import Deleted
from headrace.cli.failures import UsageError
from headrace.cli.group_looks import checked, decision_line
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, table, with_letters
from headrace.groups.shared.admin import Groups
from headrace.groups.shared.properties import find_key
from headrace.groups.shared.starts import Start
from headrace.subjects import overlaps, parse_share

app = App(
    name="shared",
    help="Groups that balance themselves: declare, configure, look at, explain and remove.",
    help_epilogue="",
)

GroupName = Annotated[str, Parameter(help="The group's name, or $share/GROUP/FILTER.")]
WhichFilter = Annotated[str | None, Parameter(help="Which one, if there are several of that name.")]
BALANCE_HELP = "What a fair share is: as many segments, or as much to do."
SCALE_HELP = "Split the busiest segment while there are more members than segments."


def start_of(text: str, option: str) -> Start:
    """Where a group begins: earliest, now, a time, or a duration ago."""
    return text if text in ("earliest", "now") else values.moment(text, option)


def named(text: str, filter: str | None) -> tuple[str, str | None]:
    """Group and filter, from two words or from ``$share/GROUP/FILTER``."""
    shared = parse_share(text) if text.startswith("$") else None
    return (text, filter) if shared is None else shared


@app.command
def declare(
    group: GroupName,
    filter: str | None = None,
    /,
    *,
    start: str = "now",
    balance: Annotated[Literal["count", "lag"], Parameter(help=BALANCE_HELP)] = "count",
    scale_for_members: Annotated[bool, Parameter(negative="", help=SCALE_HELP)] = False,
    options: Options = NONE,
) -> None:
    """Make a group ahead of its subscribers; it collects from its start on.

    Declaring it again in the same way changes nothing.

    * `headrace group shared declare audit 'orders.>' --start earliest`
    * `headrace group shared declare '$share/audit/orders.>' --start 15m --balance lag`

    Parameters
    ----------
    filter
        The subjects it consumes; streams that are made later count too.
    start
        earliest, now, a time (2013-07-04T10:30Z), or 15m for 15 minutes ago.
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
    told = (
        f"shared group [bold]{escape(made.group)}[/bold] consumes {escape(made.filter)} from "
        f"{made.start}; subscribe to {escape(f'$share/{made.group}/{made.filter}')}"
    )
    none = "no stream captures such subjects yet; those made later count"
    options.show(group_shapes.declared(made), told, *(() if matched else (none,)))


def matches(streams: Iterable[Stream], filter: str) -> bool:
    """Whether anything that these streams capture can pass the filter."""
    return any(overlaps(filter, subject) for each in streams for subject in each.config.subjects)


Time = str | None


@Parameter(name="*")
@dataclass(frozen=True)
class LeaderTimes:
    """How a group is led; what is not given stays."""

    stall_timeout: Annotated[
        Time,
        Parameter(help="A member that has events and acks none of them for this long is evicted."),
    ] = None
    revoke_timeout: Annotated[
        Time,
        Parameter(help="A member that takes longer to finish what it is to give up is evicted."),
    ] = None
    borrower_timeout: Annotated[
        Time, Parameter(help="A member that is silent for this long loses its segments.")
    ] = None
    lease_ttl: Annotated[
        Time, Parameter(help="How long the lease of a dead leader keeps others from leading.")
    ] = None
    heartbeat: Annotated[
        Time, Parameter(help="How often a leader renews its lease; at most half of --lease-ttl.")
    ] = None

    def settings(self) -> dict[str, int]:
        """Those that were given, in milliseconds."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            f"{name}_ms": int(values.duration_s(text, f"--{name.replace('_', '-')}") * 1000)
            for name, text in given.items()
            if text is not None
        }


@app.command
def configure(
    group: GroupName,
    filter: WhichFilter = None,
    /,
    *,
    balance: Annotated[Literal["count", "lag"] | None, Parameter(help=BALANCE_HELP)] = None,
    scale_for_members: Annotated[bool | None, Parameter(help=SCALE_HELP)] = None,
    lag_slack: int | None = None,
    times: LeaderTimes = LeaderTimes(),  # noqa: B008
    options: Options = NONE,
) -> None:
    """Change how a group is led, while it runs; what is not given stays.

    Its leader goes on with it at once.

    * `headrace group shared configure audit --balance lag --stall-timeout 2m`
    * `headrace group shared configure audit --lease-ttl 20s --no-scale-for-members`

    Parameters
    ----------
    lag_slack
        By lag: the percentage that a share may be too large before segments move.
    """
    changes = times.settings()
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
    settings = changed.settings
    options.show(
        group_shapes.declared(changed),
        f"shared group [bold]{escape(changed.group)}[/bold] is balanced by {changed.balance}"
        f"{', and splits segments for more members' if changed.scale_for_members else ''}\n"
        f"evicts who stalls for {settings.stall_timeout_ms / 1000:g} s or gives nothing up in "
        f"{settings.revoke_timeout_ms / 1000:g} s, drops who is silent for "
        f"{settings.borrower_timeout_ms / 1000:g} s\n"
        f"lease of {settings.lease_ttl_ms / 1000:g} s, renewed every "
        f"{settings.heartbeat_ms / 1000:g} s",
    )


@app.command
def ls(*, options: Options = NONE) -> None:
    """List the groups.

    Example: `headrace group shared ls`
    """
    with options.open() as log:
        found = Groups(log).list()
    rows = (
        (
            info.properties.group,
            info.properties.filter,
            len(info.members),
            sum(not unit.finished for unit in info.units),
            info.lag_events,
            info.leader or "none",
        )
        for info in found
    )
    headings = ("group", "filter", ">members", ">segments", ">lag", "leader")
    none = "no shared groups yet; make one with: headrace group shared declare"
    options.show(
        [group_shapes.shared(info) for info in found], table(headings, rows) if found else none
    )


@app.command
def info(group: GroupName, filter: WhichFilter = None, /, *, options: Options = NONE) -> None:
    """Show a group: its members, who has which segment, and how far it is.

    Example: `headrace group shared info audit`
    """
    with options.open() as log:
        found = Groups(log).get(*named(group, filter))
    kind = found.properties
    rows = (
        (
            unit.unit,
            "finished" if unit.finished else unit.owner or "nobody",
            str(unit.token),
            unit.floor,
            unit.head,
            unit.lag_events,
        )
        for unit in found.units
    )
    headings = ("segment", "owner", ">token", ">floor", ">head", ">lag")
    options.show(
        group_shapes.shared(found),
        f"shared group [bold]{escape(kind.group)}[/bold] consumes {escape(kind.filter)}, "
        f"from {kind.start}, balanced by {kind.balance}\n"
        f"led by {escape(found.leader or 'nobody')}; {found.lag_events:,} events to do\n",
        *map(escape, found.findings),
        table(headings, rows, dim=[unit.finished for unit in found.units]),
    )


@app.command
def explain(
    group: GroupName, filter: WhichFilter = None, /, *, limit: int = 20, options: Options = NONE
) -> None:
    """Say why members have what they have, are idle, or lost a segment.

    Example: `headrace group shared explain audit`

    Parameters
    ----------
    limit
        How many of the latest decisions to show.
    """
    with options.open() as log:
        found = Groups(log).explain(*named(group, filter), limit=checked(limit))
    options.show(
        group_shapes.shared_explained(found),
        f"led by {escape(found.leader or 'nobody: no member is connected')}",
        *(
            f"{escape(member)} has {counted(units, 'segment')}{f': {idle}' if idle else ''}"
            for member, units, idle in found.members
        ),
        *map(escape, found.findings),
        *(escape(decision_line(one)) for one in found.decisions),
    )


@app.command
def rm(
    group: GroupName,
    filter: WhichFilter = None,
    /,
    *,
    force: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Delete a group, its progress and its dead letters; the events stay.

    Example: `headrace group shared rm audit --force`

    Parameters
    ----------
    force
        Even with live members; they are delivered nothing more.
    """
    name, wanted = named(group, filter)
    with options.open() as log:
        key = log.catalog.read(lambda tx: find_key(tx, name, wanted), snapshot=True)
        dead_letters = Groups(log).delete(name, wanted, force=force)
    told = f"shared group [bold]{escape(name)}[/bold] is deleted{with_letters(dead_letters)}"
    options.show(Deleted(deleted=group_shapes.shared_name(key), dead_letters=dead_letters), told)
