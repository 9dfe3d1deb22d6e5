"""A group as it was: who owned what at a moment, from the decisions up to it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.groups.decisions.core.record import Decision, What

UNITS_MAX = 20_000

_BEGINS = {What.ASSIGNED, What.MOVED}
_ENDS = {What.LEFT, What.LOST, What.UNPINNED, What.FENCED, What.EVICTED}


class OwnedThen(msgspec.Struct, frozen=True, kw_only=True):
    """A unit and whose it was."""

    unit: str
    member: str
    """Empty: nobody's."""
    since_us: int
    number: int
    """The decision by which it was so."""


class AsItWas(msgspec.Struct, frozen=True, kw_only=True):
    """What the record of decisions tells about a moment."""

    group: str
    at_us: int
    leader: str | None
    units: tuple[OwnedThen, ...]
    members: tuple[str, ...]
    """Those who owned something then."""
    known_from_us: int | None
    """The first decision that is kept; what was decided before it is not in this."""


def as_it_was(group: str, decisions: Iterable[Decision], at_us: int) -> AsItWas:
    """Walk through decisions, oldest first, up to a moment."""
    owned: dict[str, OwnedThen] = {}
    leader: str | None = None
    first: int | None = None
    for one in decisions:
        if one.at_us > at_us:
            break
        first = one.at_us if first is None else first
        if one.what is What.ELECTED:
            leader = one.target or one.instance
        elif one.what is What.DEPOSED:
            leader = None
        elif one.what in _BEGINS and one.target:
            for unit in _units(one):
                owned[unit] = _owned(unit, one.target, one)
        elif one.what in _ENDS and one.source:
            named = set(_units(one))
            for unit, then in list(owned.items()):
                if then.member == one.source and (not named or unit in named):
                    owned[unit] = _owned(unit, "", one)
        elif one.what is What.FINISHED:
            for unit in _units(one):
                owned.pop(unit, None)
    units = sorted(owned.values(), key=lambda each: _order(each.unit))[:UNITS_MAX]
    return AsItWas(
        group=group,
        at_us=at_us,
        leader=leader,
        units=tuple(units),
        members=tuple(sorted({each.member for each in units if each.member})),
        known_from_us=first,
    )


def _owned(unit: str, member: str, one: Decision) -> OwnedThen:
    return OwnedThen(unit=unit, member=member, since_us=one.at_us, number=one.number)


def _units(one: Decision) -> list[str]:
    return [
        f"{each.stream}/{number}" if each.stream else str(number)
        for each in one.units
        for number in range(each.first, min(each.last, each.first + UNITS_MAX) + 1)
    ]


def _order(unit: str) -> tuple[str, int]:
    stream, _, number = unit.rpartition("/")
    return stream, int(number) if number.isdigit() else 0
