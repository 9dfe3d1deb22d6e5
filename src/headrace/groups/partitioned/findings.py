"""What is wanting of a static or elastic group, in sentences with the next step."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.groups import findings, hearing
from headrace.groups.decisions.core.record import ranges, units_text
from headrace.groups.names import FullName
from headrace.groups.partitioned.filling import Filling
from headrace.groups.shapes import Finding, GroupLag, GroupMember, UnitView


def findings_of(
    group: FullName,
    name: str,
    members: Sequence[GroupMember],
    units: Sequence[UnitView],
    behind: GroupLag,
    filling: Filling,
) -> list[Finding]:
    """What a person should know of a group."""
    found = []
    waiting = behind.events > 0
    if not members:
        found.append(
            Finding(
                finding="no_members",
                about=name,
                sentence="the group has no members: nobody consumes anything",
                next="add some: headrace group members add",
                needs_person=waiting,
            )
        )
    for member in members:
        if member.state not in ("lost", "missing") or not member.share:
            continue
        idle = [p for unit in units if unit.member == member.member for p in unit.partitions]
        lost = member.state == "lost"
        why = f"{member.member}: {member.why}, and nobody took over" if lost else member.why
        found.append(
            Finding(
                finding=f"member_{member.state}",
                about=name,
                sentence=f"{why}: {partition_words(idle)} "
                f"{'is' if len(idle) == 1 else 'are'} not consumed",
                next=f"start one: headrace group join {group.scope} {group.group} {member.member}",
                needs_person=lost or waiting,
            )
        )
    found += [*hearing.silent(name, members), *_of_filling(name, filling)]
    return [*found, *findings.of_lag(behind)]


def _of_filling(name: str, filling: Filling) -> list[Finding]:
    what, next_step = filling.in_words
    if not what:
        return []
    word = "no_pipeline" if not filling.led else "pipeline_fails"
    word = "pipeline_waits" if filling.led and filling.job is None else word
    return [
        Finding(
            finding=word,
            about=name,
            sentence=what,
            next=next_step.removeprefix("; "),
            needs_person=word != "pipeline_waits",
        )
    ]


def partition_words(partitions: Sequence[int]) -> str:
    """Partitions in words.

    >>> partition_words([0, 1, 2, 5])
    'partitions 0-2, 5'
    """
    return units_text(ranges(partitions)) if partitions else "nothing"
