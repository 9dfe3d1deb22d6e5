"""A decision about a group: what was decided, about which units, from whom to whom, and why."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import Enum

import msgspec

REASON_CHARS_MAX = 500
RANGES_MAX = 1_024

_NUMBERED = re.compile(r"(?:(.*)/)?(0|[1-9][0-9]{0,18})", re.DOTALL)


class What(Enum):
    """All that can be decided."""

    JOINED = "joined"
    LEFT = "left"
    LOST = "lost"
    WAITS = "waits"
    STANDS_BY = "stands by"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    ASSIGNED = "assigned"
    MOVES = "moves"
    MOVED = "moved"
    FENCED = "fenced"
    EVICTED = "evicted"
    ELECTED = "elected"
    DEPOSED = "deposed"
    SPLIT = "split"
    MERGED = "merged"
    FINISHED = "finished"
    DEAD_LETTER = "dead letter"
    PUT_BACK = "put back"
    SOUGHT = "sought"
    CONFIGURED = "configured"
    TRIMMED_PAST = "trimmed past"


class UnitRange(msgspec.Struct, frozen=True, omit_defaults=True, order=True):
    """Neighbouring units, ``last`` included: partitions, or segments of a stream."""

    first: int
    last: int
    stream: str = ""
    """Empty for the partitions of a group."""


class Decision(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    kw_only=True,
    rename={"source": "from", "target": "to"},
):
    """One step.  What moves from one member to another is one decision, however many units it is.

    ``source`` and ``target`` (``from`` and ``to`` where it is stored or shown) are members,
    sessions, readers or programs: who had it, and who has it now.  Where only one is meant, it is
    the source of what ends (left, lost, unpinned, fenced, evicted, deposed) and the target of what
    begins.
    """

    what: What
    reason: str
    """What happened and what follows from it, as a sentence without a full stop."""
    units: tuple[UnitRange, ...] = ()
    source: str = ""
    target: str = ""
    instance: str = ""
    """The program that it is about."""
    token: int = 0
    cause: int = 0
    """The number of the decision that this follows from; 0 if it is not known."""
    took_ms: int | None = None
    """How long it took, where it is the end of something."""
    at_us: int = 0
    """When, by the catalog's clock; 0 until it is recorded.  A core uses its own clock."""
    number: int = 0
    """Counts up within the group; 0 until it is recorded."""
    group: str = ""

    @property
    def member(self) -> str:
        """Whom it concerns first of all."""
        return self.target or self.source

    @property
    def unit_count(self) -> int:
        return sum(each.last - each.first + 1 for each in self.units)

    def units_listed(self) -> list[str]:
        """Its units, one by one: ``3``, or ``orders/3``."""
        return [
            f"{each.stream}/{number}" if each.stream else str(number)
            for each in self.units
            for number in range(each.first, each.last + 1)
        ]

    def concerns(self, unit: int, stream: str = "") -> bool:
        """Whether a unit is among its units."""
        return any(each.first <= unit <= each.last and each.stream == stream for each in self.units)


def moment(us: int) -> str:
    """A time of the catalog's clock in words; nothing is known of 0.

    >>> moment(5_000_000)
    'at 1970-01-01T00:00:05Z'
    """
    if not us:
        return "at a time that is not known"
    return f"at {datetime.fromtimestamp(us // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def ranges(units: Iterable[int | str]) -> tuple[UnitRange, ...]:
    """Units as ranges: partitions by number, segments as ``orders/3``.

    >>> ranges([3, 1, 2, 7])
    (UnitRange(first=1, last=3, stream=''), UnitRange(first=7, last=7, stream=''))
    >>> ranges(["orders/0", "orders/1"])
    (UnitRange(first=0, last=1, stream='orders'),)
    """
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for unit in units:
        if type(unit) is int and unit >= 0:
            numbers[""].add(unit)
            continue
        found = _NUMBERED.fullmatch(str(unit))
        if found is None:
            raise ValueError(f"{unit!r} is not a unit: a number, or a stream and a number")
        numbers[found[1] or ""].add(int(found[2]))
    return tuple(
        UnitRange(first, last, stream)
        for stream in sorted(numbers)
        for first, last in _runs(sorted(numbers[stream]))
    )


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def units_text(units: Iterable[UnitRange]) -> str:
    """Units in words.

    >>> units_text(ranges([0, 1, 2, 5]))
    'partitions 0-2, 5'
    >>> units_text(ranges(["orders/0", "orders/1", "paid/3"]))
    'orders/0-1, paid/3'
    """
    found = list(units)
    partitions = [each for each in found if not each.stream]
    parts = [_span(each) for each in partitions]
    if parts:
        many = len(parts) > 1 or partitions[0].first != partitions[0].last
        parts[0] = f"partition{'s' if many else ''} {parts[0]}"
    parts += [f"{each.stream}/{_span(each)}" for each in found if each.stream]
    return ", ".join(parts)


def _span(units: UnitRange) -> str:
    return str(units.first) if units.first == units.last else f"{units.first}-{units.last}"
