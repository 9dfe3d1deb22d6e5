"""Partitioned groups on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from headrace.cli.output import counted, table
from headrace.groups.partitioned.admin import GroupInfo
from headrace.groups.partitioned.core.config import ElasticGroupConfig
from headrace.groups.partitioned.core.status import GroupStatus
from headrace.groups.partitioned.explain import numbers


def group_line(info: GroupInfo) -> str:
    """A group in a line."""
    config = info.config
    about = counted(config.max_members, "partition")
    if config.filter:
        about += f" of {config.filter}"
    if isinstance(config, ElasticGroupConfig):
        keys = ", ".join(map(str, config.partitioning_wildcards)) or "none: the whole subject"
        about += f", keyed by wildcards {keys}, {config.distribution.value}"
        if config.buffered_events_max:
            about += f", at most {config.buffered_events_max:,} buffered"
    if config.member_mappings:
        about += ", mapped by hand"
    return (
        f"{info.kind.value} group [bold]{escape(info.name.group)}[/bold] on "
        f"{escape(info.name.stream)}: {escape(about)}"
    )


def members_table(info: GroupInfo) -> Table:
    """Who is given what."""
    assigned = info.config.assignment().items()
    return table(("member", "partitions"), ((who, _numbers(owned)) for who, owned in assigned))


def groups_table(found: Sequence[GroupInfo]) -> Table:
    """One line for each group."""
    headings = ("stream", "group", "kind", ">partitions", "filter", ">members")
    rows = (
        (
            info.name.stream,
            info.name.group,
            info.kind.value,
            info.config.max_members,
            info.config.filter,
            len(info.config.assignment()),
        )
        for info in found
    )
    return table(headings, rows)


def status_table(status: GroupStatus) -> Table:
    """Who is active, and what each consumes."""
    rows = (
        (
            member.member,
            member.instance or ("missing" if member.assigned else "none"),
            _numbers(member.assigned),
            _numbers(member.consumed),
        )
        for member in status.members
    )
    return table(("member", "active instance", "assigned", "consumes"), rows)


def status_lines(status: GroupStatus) -> list[str]:
    """What is missing."""
    lines = []
    if status.missing:
        names = ", ".join(member.member for member in status.missing)
        lines.append(f"missing: {escape(names)}")
    if status.unconsumed:
        lines.append(f"nobody consumes {numbers(list(status.unconsumed))}")
    if status.moving:
        lines.append(f"moving: {numbers(list(status.moving))}")
    return lines


def _numbers(partitions: tuple[int, ...]) -> str:
    return numbers(list(partitions)).partition(" ")[2] if partitions else "none"
