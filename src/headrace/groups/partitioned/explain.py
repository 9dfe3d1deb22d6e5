"""Explain: what a group is doing, who it waits for, and the decisions that led there."""

from __future__ import annotations

import msgspec

from headrace.catalog import Tx
from headrace.groups import decisions
from headrace.groups.decisions import Decision, ranges, units_text
from headrace.groups.decisions.core.record import moment
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.admin import GroupInfo
from headrace.groups.partitioned.core.status import GroupStatus
from headrace.groups.partitioned.deciding import key_of
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import filling
from headrace.log.log import Log


class Explanation(msgspec.Struct, frozen=True):
    """A group at one moment, in words."""

    group: GroupInfo
    status: GroupStatus
    findings: tuple[str, ...]
    """What is not as it should be, and why; nothing when all partitions are consumed."""
    decisions: tuple[Decision, ...]
    """The last ones, oldest first."""


def explain(log: Log, stream: str, group: str, limit: int = decisions.LIMIT) -> Explanation:
    """What the group is doing and why, with its last ``limit`` decisions."""
    decisions.check_limit(limit)
    info = admin.get(log, stream, group)
    status = admin.status(log, stream, group)
    name = GroupName(stream, group)
    found = findings(info, status)
    if wanting := filling_finding(log, name):
        found.append(wanting)

    def read(tx: Tx) -> list[Decision]:
        return decisions.read(tx, key_of(name), limit)

    return Explanation(info, status, tuple(found), tuple(log.catalog.read(read)))


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
        if member.instance is None and member.lost is not None:
            why = (
                f"{member.member} was lost: instance {member.lost.instance} was last heard "
                f"{moment(member.lost.heard_us)} and its pin ran out "
                f"{moment(member.lost.since_us)}; start it again, or a standby"
            )
        elif member.instance is None:
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
    return units_text(ranges(partitions))
