"""Partitioned groups on the screen, and as data for programs."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from headrace.cli.policies import size_text
from headrace.cli.screens import time_text
from headrace.groups.partitioned.admin import GroupInfo
from headrace.groups.partitioned.core.config import ElasticGroupConfig
from headrace.groups.partitioned.core.status import GroupStatus
from headrace.groups.partitioned.explain import Explanation, numbers
from headrace.groups.partitioned.lag import GroupLag
from headrace.groups.partitioned.runtime.record import Recorded


def group_data(info: GroupInfo) -> dict[str, Any]:
    """A group for programs: its config has the field names that it is stored with."""
    config: dict[str, Any] = msgspec.to_builtins(info.config)
    return {
        "stream": info.name.stream,
        "group": info.name.group,
        "kind": info.kind.value,
        "revision": info.revision,
        **config,
        "partitions": {member: list(owned) for member, owned in info.config.assignment().items()},
    }


def group_line(info: GroupInfo) -> str:
    """A group in a line."""
    config = info.config
    about = f"{config.max_members} partition{'s' if config.max_members != 1 else ''}"
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
    table = _table("member", "partitions")
    for member, owned in info.config.assignment().items():
        table.add_row(escape(member), _numbers(owned))
    return table


def groups_table(found: tuple[GroupInfo, ...]) -> Table:
    """One line for each group."""
    table = _table("stream", "group", "kind", "partitions", "filter", "members", right=(3, 5))
    for info in found:
        table.add_row(
            escape(info.name.stream),
            escape(info.name.group),
            info.kind.value,
            str(info.config.max_members),
            escape(info.config.filter),
            str(len(info.config.assignment())),
        )
    return table


def status_data(status: GroupStatus) -> dict[str, Any]:
    """Who is active, for programs."""
    return {
        "active": list(status.active),
        "missing": [member.member for member in status.missing],
        "unconsumed": list(status.unconsumed),
        "moving": list(status.moving),
        "members": msgspec.to_builtins(status.members),
    }


def status_table(status: GroupStatus) -> Table:
    """Who is active, and what each consumes."""
    table = _table("member", "active instance", "assigned", "consumes")
    for member in status.members:
        instance = member.instance or ("missing" if member.assigned else "none")
        table.add_row(
            escape(member.member),
            escape(instance),
            _numbers(member.assigned),
            _numbers(member.consumed),
        )
    return table


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


def explanation_data(found: Explanation) -> dict[str, Any]:
    """An explanation for programs."""
    return {
        **group_data(found.group),
        **status_data(found.status),
        "findings": list(found.findings),
        "decisions": [
            {"time": time_text(one.at_us), **msgspec.to_builtins(one)} for one in found.decisions
        ],
    }


def decision_line(one: Recorded) -> str:
    """A decision in words."""
    where = "" if one.partition is None else f" partition {one.partition}"
    who = "/".join(part for part in (one.member, one.instance) if part)
    return f"{time_text(one.at_us)}  {who}{where} {one.verdict}: {one.reason}"


def lag_table(found: GroupLag) -> Table:
    """How far each part is behind."""
    table = _table("partitions", "member", "events", "bytes", "seconds", right=(2, 3, 4))
    for part in found.parts:
        table.add_row(
            _numbers(part.partitions),
            escape(part.member or "nobody"),
            f"{part.events:,}",
            size_text(part.bytes),
            f"{part.seconds:,.1f}",
        )
    return table


def _numbers(partitions: tuple[int, ...]) -> str:
    return numbers(list(partitions)).partition(" ")[2] if partitions else "none"


def _table(*headings: str, right: tuple[int, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at in right else "left")
    return table
