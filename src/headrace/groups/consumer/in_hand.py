"""What the application holds: events that were handed out and not answered yet.

Nothing stores it, so it is known to the program alone in which it happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakSet

from headrace.host.host import Host

if TYPE_CHECKING:
    from headrace.groups.consumer.units import Units

InHand = Mapping[tuple[str, str, int], frozenset[int]]
"""Offsets by (the name of the rows of progress, stream, segment), of the units owned here."""

_PART = "consumers"


def register(host: Host, consumer: Units) -> None:
    """Count a consumer among those of its program."""
    host.parts.setdefault(_PART, WeakSet()).add(consumer)


def in_hand(host: Host) -> InHand:
    """What the consumers of a program have handed out, by unit; on the event loop."""
    found: dict[tuple[str, str, int], frozenset[int]] = {}
    consumers: WeakSet[Units] = host.parts.get(_PART, WeakSet())
    for consumer in list(consumers):
        for unit, offsets in consumer.in_hand():
            place = unit.group, unit.stream, unit.segment
            found[place] = found.get(place, frozenset()) | offsets
    return found
