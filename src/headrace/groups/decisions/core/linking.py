"""From what, and from whom: decisions are linked with those that were recorded before them.

Whoever takes units over knows that they are his now; whose they were, and since when they were on
their way, stands in the record.  So what is recorded is completed here, in the transaction that
records it: units that were to move have *moved*, from whom it was planned, and took that long.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.groups.decisions.core.record import Decision, UnitRange, What, ranges

_OWNING = frozenset({What.MOVES, What.MOVED, What.ASSIGNED})
"""Decisions that say whose a unit is, or will be."""

_CAUSES: dict[What, frozenset[What]] = {
    What.STANDS_BY: frozenset({What.PINNED}),
    What.UNPINNED: frozenset({What.EVICTED, What.CONFIGURED, What.LOST, What.PINNED}),
    What.FENCED: frozenset(
        {What.EVICTED, What.LOST, What.UNPINNED, What.SOUGHT, What.PINNED, What.MOVES}
    ),
    What.WAITS: frozenset({What.MOVES, What.CONFIGURED}),
    What.ASSIGNED: frozenset({What.PINNED, What.JOINED, What.ELECTED}),
    What.MOVES: frozenset({What.JOINED, What.LOST, What.LEFT, What.EVICTED, What.CONFIGURED}),
    What.PINNED: frozenset({What.LOST, What.LEFT, What.UNPINNED, What.CONFIGURED, What.JOINED}),
    What.ELECTED: frozenset({What.LOST, What.DEPOSED}),
}
"""What a decision may follow from, if it names no cause; the newest one counts."""
_OF_SAME_MEMBER = frozenset(
    {What.STANDS_BY, What.UNPINNED, What.FENCED, What.PINNED, What.ASSIGNED, What.WAITS}
)


_OF_ALL = frozenset({What.CONFIGURED, What.ELECTED})
"""What concerns every member."""


def linked(
    fresh: Sequence[Decision], before: Sequence[Decision], next_number: int
) -> list[Decision]:
    """The decisions as they are to be recorded, from ``next_number`` on.

    ``before`` are the last ones of the group, oldest first.
    """
    known = list(before)
    made: list[Decision] = []
    for decision in fresh:
        for one in _completed(decision, known):
            numbered = msgspec.structs.replace(one, number=next_number + len(made))
            made.append(numbered)
            known.append(numbered)
    return made


def _completed(decision: Decision, known: Sequence[Decision]) -> list[Decision]:
    if decision.cause:
        return [decision]
    if decision.what is not What.ASSIGNED or not decision.units:
        return [msgspec.structs.replace(decision, cause=_cause(decision, known))]
    found = []
    for move, units in _moves(decision, known):
        if move is None:
            rest = msgspec.structs.replace(decision, units=units)
            found.append(msgspec.structs.replace(rest, cause=_cause(rest, known)))
        else:
            found.append(_moved(decision, move, units))
    return found


def _moved(decision: Decision, move: Decision, units: tuple[UnitRange, ...]) -> Decision:
    late = decision.at_us - move.at_us
    return msgspec.structs.replace(
        decision,
        what=What.MOVED,
        units=units,
        source=decision.source or move.source,
        cause=move.number,
        took_ms=max(0, late // 1000),
        reason=f"{move.source} has given up what is {decision.target}'s now"
        if move.source
        else decision.reason,
    )


def _moves(
    decision: Decision, known: Sequence[Decision]
) -> list[tuple[Decision | None, tuple[UnitRange, ...]]]:
    """The units, by the move that they are the end of."""
    left = {
        (each.stream, number) for each in decision.units for number in _numbers(each)
    }  # bounded by the units that one process owns
    ends: dict[int, tuple[Decision, list[str]]] = {}
    # By time: what gathered for a while is recorded after what was recorded at once.
    for past in sorted(known, key=lambda one: one.at_us, reverse=True):
        if not left or past.what not in _OWNING:
            continue
        hit = [unit for unit in left if past.concerns(unit[1], unit[0])]
        left.difference_update(hit)
        if past.what is What.MOVES and past.target in ("", decision.target):
            ends.setdefault(past.number, (past, []))[1].extend(map(_text, hit))
        elif hit:
            ends.setdefault(0, (past, []))[1].extend(map(_text, hit))
    plain = [_text(unit) for unit in left] + (ends.pop(0)[1] if 0 in ends else [])
    parts: list[tuple[Decision | None, tuple[UnitRange, ...]]] = [
        (move, ranges(units)) for _, (move, units) in sorted(ends.items()) if units
    ]
    return [*parts, (None, ranges(plain))] if plain else parts


def _numbers(units: UnitRange) -> range:
    return range(units.first, units.last + 1)


def _text(unit: tuple[str, int]) -> str:
    stream, number = unit
    return f"{stream}/{number}" if stream else str(number)


def _cause(decision: Decision, known: Sequence[Decision]) -> int:
    wanted = _CAUSES.get(decision.what)
    if wanted is None:
        return 0
    same = decision.what in _OF_SAME_MEMBER
    for past in reversed(known):
        if past.what not in wanted:
            continue
        about = not same or decision.member in (past.source, past.target)
        if past.what is What.MOVES and decision.units:
            about = about and _overlap(decision, past)
        if about or past.what in _OF_ALL:
            return past.number
    return 0


def _overlap(one: Decision, other: Decision) -> bool:
    """Whether some unit is among those of both."""
    return any(
        a.stream == b.stream and a.first <= b.last and b.first <= a.last
        for a in one.units
        for b in other.units
    )
