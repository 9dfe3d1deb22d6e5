"""What the application holds: events that were handed out and not answered yet.

Nothing stores it, so it is known to the program alone in which it happens; others ask it
(``asking.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakSet

from headrace.host.host import Host

if TYPE_CHECKING:
    from headrace.groups.consumer.units import Units

UnitPlace = tuple[str, str, int]
"""A unit: the name of its rows of progress, stream, segment."""
InHand = Mapping[UnitPlace, frozenset[int]]
"""Offsets by unit, of the units owned here."""

ANSWERING = "answering"
"""The part of a program that answers others (``asking.py``), if it does."""
_PART = "consumers"


def register(host: Host, consumer: Units) -> None:
    """Count a consumer among those of its program."""
    host.parts.setdefault(_PART, WeakSet()).add(consumer)
    if (answering := host.parts.get(ANSWERING)) is not None:
        answering.begin()


def in_hand(host: Host) -> InHand:
    """What the consumers of a program have handed out, by unit; on the event loop."""
    found: dict[UnitPlace, frozenset[int]] = {}
    consumers: WeakSet[Units] = host.parts.get(_PART, WeakSet())
    for consumer in list(consumers):
        for unit, offsets in consumer.in_hand():
            place = unit.group, unit.stream, unit.segment
            found[place] = found.get(place, frozenset()) | offsets
    return found
