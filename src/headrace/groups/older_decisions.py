"""Decisions where each kind of group keeps them by itself, in the form of the one record.

They are shown where the one record has none of a group yet.
"""

from __future__ import annotations

import msgspec

from headrace.catalog import Tx, overview
from headrace.groups.decisions import Decision, What, ranges
from headrace.groups.names import FullName
from headrace.groups.shared.keys import STATUS_BUCKET, unit_of_claim

_LETTERS = "decisions:"
_OF_INSTANCES = "group-decisions"


class _OfInstance(msgspec.Struct):
    at_us: int
    verdict: str
    member: str
    instance: str
    reason: str
    partition: int | None = None


class _OfLeader(msgspec.Struct):
    at_ms: int
    what: str
    unit: str | None
    borrower: str | None
    reason: str


class _Led(msgspec.Struct):
    decisions: tuple[_OfLeader, ...] = ()


class _Letter(msgspec.Struct):
    what: str
    reason: str
    member: str = ""
    unit: str = ""
    instance: str = ""
    at_us: int = 0


def read(tx: Tx, name: FullName, limit: int) -> list[Decision]:
    """The latest, oldest first."""
    found: list[Decision] = []
    own = overview.entries(tx, [_OF_INSTANCES, STATUS_BUCKET], [name.key])
    if data := own[_OF_INSTANCES].get(name.key):
        for one in msgspec.json.decode(data, type=list[_OfInstance]):
            units = () if one.partition is None else ranges([one.partition])
            found.append(_made(one.at_us, one.verdict, one.reason, units=units, target=one.member))
    if data := own[STATUS_BUCKET].get(name.key):
        for led in msgspec.json.decode(data, type=_Led).decisions:
            units = ranges([led.unit]) if led.unit else ()
            found.append(
                _made(
                    led.at_ms * 1000, led.what, led.reason, units=units, target=led.borrower or ""
                )
            )
    whole = f"{_LETTERS}{name.key}"
    for bucket, kept in overview.entries(tx, [_LETTERS]).items():
        mine = bucket == whole or bucket.startswith(f"{whole}.member.")
        for data in kept.values() if mine else ():
            for letter in msgspec.msgpack.decode(data, type=list[_Letter]):
                unit = unit_of_claim(letter.unit)
                units = ranges([unit]) if unit else ()
                found.append(
                    _made(
                        letter.at_us, letter.what, letter.reason, units=units, target=letter.member
                    )
                )
    found.sort(key=lambda one: one.at_us)
    return found[-limit:] if limit else []


def _made(at_us: int, what: str, reason: str, **about: object) -> Decision:
    try:
        kind = What("left" if what == "closed" else what)
    except ValueError:
        kind, reason = What.ASSIGNED, f"{what}: {reason}"
    return msgspec.structs.replace(Decision(what=kind, reason=reason, at_us=at_us), **about)
