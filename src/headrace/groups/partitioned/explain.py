"""Explain: what a group is doing, who it waits for, and the decisions that led there."""

from __future__ import annotations

import msgspec

from headrace.catalog import Tx, streams
from headrace.groups import explain as letters
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.admin import GroupInfo
from headrace.groups.partitioned.core.status import GroupStatus
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import filling
from headrace.groups.partitioned.runtime.record import Recorded, recorded
from headrace.groups.partitioned.runtime.units import layout_of, progress_names
from headrace.log.log import Log


class Explanation(msgspec.Struct, frozen=True):
    """A group at one moment, in words."""

    group: GroupInfo
    status: GroupStatus
    findings: tuple[str, ...]
    """What is not as it should be, and why; nothing when all partitions are consumed."""
    decisions: tuple[Recorded, ...]
    """The last ones, oldest first."""


def explain(log: Log, stream: str, group: str) -> Explanation:
    """What the group is doing and why."""
    info = admin.get(log, stream, group)
    status = admin.status(log, stream, group)
    name = GroupName(stream, group)
    found = findings(info, status)
    if wanting := filling_finding(log, name):
        found.append(wanting)
    decisions = sorted((*recorded(log, name), *dead_letters(log, info)), key=lambda d: d.at_us)
    return Explanation(info, status, tuple(found), tuple(decisions))


def dead_letters(log: Log, info: GroupInfo) -> list[Recorded]:
    """Which events members gave up on, and why; the last ones, oldest first."""

    def look(tx: Tx) -> list[Recorded]:
        source = streams.get(tx, info.name.stream)
        if source is None:
            return []
        layout = layout_of(info.config, source.config)
        return [
            Recorded(one.at_us, one.what, one.member, one.instance, one.reason, _number(one.unit))
            for reader in progress_names(info.name, info.config, layout)
            for one in letters.read(tx, reader)
        ]

    return log.catalog.read(look, snapshot=True)


def _number(unit: str) -> int | None:
    return int(unit) if unit.isdigit() else None


def filling_finding(log: Log, name: GroupName) -> str:
    """Why nothing comes into the work queue of an elastic group; nothing if all is well."""
    found = log.catalog.read(lambda tx: filling.look(tx, name), snapshot=True)
    return "" if found is None else found.finding


def findings(info: GroupInfo, status: GroupStatus) -> list[str]:
    """Why partitions are not consumed, one line for each reason."""
    if not status.members:
        return ["the group has no members: nobody consumes anything; add members or a mapping"]
    lines = []
    moving = set(status.moving)
    for member in status.members:
        idle = [p for p in member.assigned if p not in member.consumed]
        if not idle:
            continue
        if member.instance is None:
            why = f"no instance of {member.member} has joined"
        elif moving.intersection(idle):
            why = f"{member.member} waits for the members that still finish them"
        else:
            why = f"instance {member.instance} of {member.member} has not claimed them yet"
        lines.append(f"{numbers(idle)}: {why}")
    if status.surplus:
        lines.append(
            f"{', '.join(status.surplus)}: own nothing, since the group has "
            f"{info.config.max_members} partitions"
        )
    return lines


def numbers(partitions: list[int]) -> str:
    """Partitions in words.

    >>> numbers([0, 1, 2, 5])
    'partitions 0-2, 5'
    """
    runs: list[list[int]] = []
    for partition in sorted(partitions):
        if runs and partition == runs[-1][1] + 1:
            runs[-1][1] = partition
        else:
            runs.append([partition, partition])
    text = ", ".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in runs)
    return f"partition{'s' if len(partitions) != 1 else ''} {text}"
