"""``headrace group ls|info|explain|lag|decisions|members``: looking at groups of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from headrace.cli import shapes
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, table
from headrace.cli.policies import size_text
from headrace.groups import looks
from headrace.groups.decisions import Decision, units_text
from headrace.groups.findings import moment_words, time_words
from headrace.groups.names import PARTITIONED, families
from headrace.groups.shapes import Finding, GroupLag, GroupMember, GroupView, UnitView

DECISIONS_MAX = 10_000
KINDS = ("static", "elastic", "shared", "reader")
NO_GROUPS = "there are no groups yet; make one: headrace group elastic create"

Name = Annotated[
    str, Parameter(help="orders/billing, '$share/audit/orders.>', or billing where only one fits.")
]
GroupWord = Annotated[str | None, Parameter(help="The group, if the stream was named before it.")]


def named(name: str, group: str | None) -> str:
    """A name in one word, or in two as before: the stream, then the group."""
    if group is None:
        return name
    return f"{PARTITIONED}/{name}/{group}" if name in families() else f"{name}/{group}"


def ls(
    *,
    stream: str | None = None,
    kind: str | None = None,
    options: Options = NONE,
) -> None:
    """List all groups: members, lag, and what is wanting.

    Example: `headrace group ls`

    Parameters
    ----------
    stream
        Only those of this stream.
    kind
        Only static, elastic, shared or reader ones.
    """
    if kind is not None and kind not in KINDS:
        raise UsageError(f"--kind {kind}: there are {', '.join(KINDS)}")
    with options.look() as catalog:
        every = looks.of_all(catalog)
    found = [
        each
        for each in every
        if stream in (None, each.stream, *each.streams) and kind in (None, each.kind)
    ]
    none = [] if found else [f"no such group among {len(every):,}" if every else NO_GROUPS]
    options.show(
        [msgspec.structs.replace(each, units=()) for each in found],
        *([groups_table(found)] if found else none),
    )


def info(name: Name, group: GroupWord = None, /, *, options: Options = NONE) -> None:
    """Show a group: its members, its units and its lag.

    * `headrace group info orders/billing`
    * `headrace group info '$share/audit/orders.>'`
    """
    with options.look() as catalog:
        found = looks.of_one(catalog, named(name, group))
    lines = [members_table(found.members)] if found.members else []
    units = [units_table(found.units)] if found.units else []
    options.show(found, head(found), *lines, *units, *finding_lines(found.findings))


def explain(
    name: Name, group: GroupWord = None, /, *, limit: int = 20, options: Options = NONE
) -> None:
    """Say what a group is doing and why: what is wanting, and the latest decisions.

    Example: `headrace group explain orders/billing`

    Parameters
    ----------
    limit
        How many of the latest decisions to show.
    """
    with options.look() as catalog:
        found = looks.explanation(catalog, named(name, group), checked(limit))
    view = found.group
    well = ["every unit is consumed by the member it is given to"]
    lines = finding_lines(view.findings) or well
    options.show(
        shapes.explained(found),
        head(view),
        *([members_table(view.members)] if view.members else []),
        *lines,
        *(escape(decision_line(one)) for one in found.decisions),
    )


def lag(name: Name | None = None, group: GroupWord = None, /, *, options: Options = NONE) -> None:
    """Show how far a group is behind, in events, bytes and seconds; without a name, all of them.

    * `headrace group lag orders/billing --json`
    * `headrace group lag`
    """
    with options.look() as catalog:
        if name is None:
            every = looks.of_all(catalog)
            options.show(
                [each.lag for each in every],
                lag_table([each.lag for each in every]) if every else NO_GROUPS,
            )
            return
        found = looks.lag_of_one(catalog, named(name, group))
    finding = [escape(found.finding)] if found.finding else []
    options.show(found, units_table(found.units), lag_line(found), *finding)


def decisions(
    name: Name, group: GroupWord = None, /, *, limit: int = 100, options: Options = NONE
) -> None:
    """Show the latest decisions about a group, oldest first.

    Example: `headrace group decisions orders/billing --limit 10`

    Parameters
    ----------
    limit
        How many of the latest to show.
    """
    with options.look() as catalog:
        found = looks.decisions_of_one(catalog, named(name, group), checked(limit))
    none = [] if found or not limit else ["nothing was decided yet"]
    options.show(
        [shapes.decided(one) for one in found],
        *(escape(decision_line(one)) for one in found),
        *none,
    )


def members(name: str, group: str | None = None, *, options: Options = NONE) -> None:
    """Show who takes part in a group of any kind, and who should."""
    with options.look() as catalog:
        found = looks.members_of_one(catalog, named(name, group))
    shown = members_table(found) if found else "it has no members"
    options.show(found, shown)


def checked(limit: int) -> int:
    """A number of decisions."""
    if not 0 <= limit <= DECISIONS_MAX:
        raise UsageError(f"--limit {limit}: give 0 to {DECISIONS_MAX}")
    return limit


# --- screens ----------------------------------------------------------------------------------


def groups_table(found: Sequence[GroupView]) -> Table:
    """One line for each group."""
    headings = ("group", "kind", "consumes", ">members", ">lag", ">behind", "finding")
    return table(headings, (_row(view) for view in found))


def _row(view: GroupView) -> tuple[str | int | None, ...]:
    return (
        view.group,
        view.kind,
        ", ".join(view.streams) or view.stream or view.filter,
        f"{view.members_active} of {view.members_wanted}",
        events_text(view.lag),
        time_words(view.lag.seconds) if view.lag.events else "",
        finding_text(view.findings),
    )


def finding_text(found: Sequence[Finding]) -> str:
    """The first thing that is wanting, in a word or two."""
    person = [each for each in found if each.needs_person]
    words = [each.finding.replace("_", " ") for each in (*person, *found)]
    return ", ".join(dict.fromkeys(words))


def events_text(lag: GroupLag | UnitView) -> str:
    """A number of events; with ≤ where it is an upper bound."""
    return f"{lag.events:,}" if lag.exact else f"≤ {lag.events:,}"


def head(view: GroupView) -> str:
    """What a group is, in a line."""
    named = view.streams or ((view.stream,) if view.stream else ())
    several = f"stream{'s' * (len(named) > 1)} {', '.join(named)}"
    consumes = several if named else f"all that matches {view.filter}"
    with_filter = f" ({view.filter})" if named and view.filter else ""
    led = f", led by {view.leader}" if view.leader else ""
    if view.leader_heard_at is not None:
        led += f" (heard {ago(view.leader_heard_at)})"
    return (
        f"{view.kind} group [bold]{escape(view.group)}[/bold] consumes "
        f"{escape(consumes + with_filter)}{escape(led)}; {lag_line(view.lag)}"
    )


def lag_line(lag: GroupLag) -> str:
    """How far a group is behind, in words."""
    most = "" if lag.exact else "up to "
    line = f"{most}{counted(lag.events, 'event')} behind"
    if lag.events:
        line += f", {size_text(lag.bytes)}, {time_words(lag.seconds)}"
    if lag.source_events:
        line += f"; {lag.source_events:,} of them not partitioned yet"
    if lag.lost_to_trimming:
        line += f"; up to {counted(lag.lost_to_trimming, 'event')} lost to trimming"
    return line


def lag_table(found: Sequence[GroupLag]) -> Table:
    """One line for each group."""
    headings = ("group", "kind", ">events", ">bytes", ">seconds", ">lost to trimming")
    rows = (
        (
            lag.group,
            lag.kind,
            events_text(lag),
            size_text(lag.bytes),
            f"{lag.seconds:,.1f}",
            lag.lost_to_trimming,
        )
        for lag in found
    )
    return table(headings, rows)


def members_table(found: Sequence[GroupMember]) -> Table:
    """One line for each member."""
    rows = (
        (
            each.member,
            each.state,
            each.instance,
            None if each.heard_at is None else ago(each.heard_at),
            f"{each.units} of {each.share}",
            each.why,
        )
        for each in found
    )
    return table(("member", "state", "instance", "heard", ">units", "why"), rows)


def ago(when: datetime) -> str:
    """How long ago something was, in words."""
    return f"{time_words(max(0.0, (datetime.now(UTC) - when).total_seconds()))} ago"


def units_table(found: Sequence[UnitView]) -> Table:
    """One line for each unit."""
    headings = ("unit", "member", "state", ">token", ">floor", ">head", ">events", ">bytes")
    rows = (
        (
            unit.unit,
            unit.member or "nobody",
            unit.state,
            unit.token,
            unit.floor,
            unit.head,
            events_text(unit),
            size_text(unit.bytes),
            f"{unit.seconds:,.1f}",
        )
        for unit in found
    )
    return table((*headings, ">seconds"), rows)


def finding_lines(found: Sequence[Finding]) -> list[str]:
    """What is wanting, each with the next step."""
    return [escape(f"{each.sentence}" + (f"; {each.next}" if each.next else "")) for each in found]


def decision_line(one: Decision) -> str:
    """A decision in words, on one line; a reason may quote the end of a command's output."""
    who = "/".join(part for part in (one.member, one.instance) if part)
    if one.source and one.target:
        who = f"{one.source} → {one.target}"
    where = f" {units_text(one.units)}" if one.units else ""
    because = f" (follows from {one.cause})" if one.cause else ""
    took = "" if one.took_ms is None else f" in {one.took_ms:,} ms"
    return (
        f"{moment_words(one.at_us)}  {one.number}  {who}{where} {one.what.value}{took}: "
        f"{' '.join(one.reason.split())}{because}"
    )
