"""A change of a group's config, told: who came and went, and what moves from whom to whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from headrace.groups.decisions.core.record import Decision, What, ranges
from headrace.groups.partitioned.core.config import GroupConfig

TOLD_MAX = 6
"""How many members, or pairs of them, a sentence names; the rest is counted."""

ByMember = Mapping[str, tuple[int, ...]]


def created(config: GroupConfig) -> list[Decision]:
    """A group was made."""
    members = list(config.assignment())
    among = f"for {_listed(members)}" if members else "and no members yet"
    reason = f"the group was created with {_count(config.max_members)} {among}"
    return [Decision(what=What.CONFIGURED, reason=reason)]


def changed(before: GroupConfig, after: GroupConfig) -> list[Decision]:
    """The members or the mapping were changed: that, and one decision for each (from, to)."""
    moves = pairs(before.assignment(), after.assignment())
    moving = sum(map(len, moves.values()))
    reason = f"{_who(before, after)} by an administrator: "
    if not moving:
        reason += "no partition moves"
    else:
        reason += f"{moving} of {_count(after.max_members)} {_where(moves, _added(before, after))}"
    told = [Decision(what=What.CONFIGURED, reason=reason)]
    for (source, target), partitions in moves.items():
        told.append(
            Decision(
                what=What.MOVES,
                reason=_move(source, target, len(partitions)),
                units=ranges(partitions),
                source=source,
                target=target,
            )
        )
    return told


def pairs(before: ByMember, after: ByMember) -> dict[tuple[str, str], list[int]]:
    """What moves, by (from, to); nobody is an empty name."""
    had = {partition: member for member, owned in before.items() for partition in owned}
    gets = {partition: member for member, owned in after.items() for partition in owned}
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for partition in sorted(had.keys() | gets.keys()):
        source, target = had.get(partition, ""), gets.get(partition, "")
        if source != target:
            found[source, target].append(partition)
    return dict(sorted(found.items()))


def _who(before: GroupConfig, after: GroupConfig) -> str:
    if after.member_mappings:
        return "partitions were mapped to members"
    if before.member_mappings:
        return "the mapping was removed"
    added, dropped = _added(before, after), _added(after, before)
    parts = [f"{_listed(added)} {_were(added)} added"] if added else []
    parts += [f"{_listed(dropped)} {_were(dropped)} dropped"] if dropped else []
    return " and ".join(parts) or "the members were changed"


def _added(before: GroupConfig, after: GroupConfig) -> list[str]:
    return [member for member in after.assignment() if member not in before.assignment()]


def _where(moves: Mapping[tuple[str, str], list[int]], added: list[str]) -> str:
    """What moves, in words: of one target if it is only one."""
    targets = {target for _, target in moves}
    moving = "moves" if sum(map(len, moves.values())) == 1 else "move"
    if len(targets) == 1 and (target := targets.pop()):
        sources = [f"{len(ps)} from {source or 'nobody'}" for (source, _), ps in moves.items()]
        return f"{moving} to {'it' if added == [target] else target}, {_cut(sources)}"
    return f"{moving}: " + _cut(
        [f"{len(ps)} from {s or 'nobody'} to {t or 'nobody'}" for (s, t), ps in moves.items()]
    )


def _move(source: str, target: str, count: int) -> str:
    if not source:
        return f"{target} is the first to have {'it' if count == 1 else 'them'}"
    if not target:
        return f"nobody has {'it' if count == 1 else 'them'} after {source}"
    return f"{source} finishes what it has in hand, then {target} goes on"


def _count(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"


def _were(members: list[str]) -> str:
    return "was" if len(members) == 1 else "were"


def _listed(members: Iterable[str]) -> str:
    return _cut(list(members))


def _cut(parts: list[str]) -> str:
    more = len(parts) - TOLD_MAX
    return ", ".join(parts if more <= 0 else [*parts[:TOLD_MAX], f"and {more} more"])
