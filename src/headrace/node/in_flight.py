"""How many events of each unit of a group are in flight, where that is known.

Nothing stores what an application has in hand: it is known of units that this program owns, and of
those of Spark queries, whose open batches are in the catalog.  Of the others only their process
knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.catalog import Tx, spark_readers
from headrace.groups.consumer.in_hand import InHand, in_hand
from headrace.groups.names import PARTITIONED, FullName
from headrace.groups.readers.names import FAMILY, unit_of
from headrace.groups.shapes import UnitView
from headrace.host import Host


class UnitLine(UnitView, frozen=True, kw_only=True):
    """A unit, and what of it is in flight."""

    in_flight_events: int | None = None
    """Events that its owner has and has not answered; null: only its process knows."""


async def with_in_flight(host: Host, name: FullName, units: Sequence[UnitView]) -> list[UnitLine]:
    """Units of a group with what is in flight."""
    held = in_hand(host)
    batches: Mapping[str, int] = {}
    if name.family == FAMILY and units:
        batches = await host.in_thread(
            host.log.catalog.read, lambda tx: spark_events(tx, name.group), snapshot=True
        )
    fields = UnitView.__struct_fields__
    return [
        UnitLine(
            **{field: getattr(unit, field) for field in fields},
            in_flight_events=_events(name, unit, held, batches),
        )
        for unit in units
    ]


def _events(name: FullName, unit: UnitView, held: InHand, batches: Mapping[str, int]) -> int | None:
    if unit.instance is None:
        return 0
    if unit.unit in batches:
        return batches[unit.unit]
    number = unit.unit.rpartition("/")[2]
    here = held.get((name.key, unit.stream, int(number))) if number.isdecimal() else None
    if here is None and name.family == PARTITIONED:
        share = name.partitioned.share(unit.member or "-")
        parts = [offsets for (rows, *_), offsets in held.items() if rows == share]
        return sum(map(len, parts)) if parts else None
    return None if here is None else len(here)


def spark_events(tx: Tx, group: str) -> dict[str, int]:
    """Events of the batches that Spark queries have open, by unit."""
    if not spark_readers.lines_of_group(tx, group):
        return {}
    from headrace.groups.readers.runtime.spark_records import unsettled  # loads numpy

    return {
        unit_of(span.segment): sum(end - start for start, end in span.ranges)
        for opening in unsettled(tx, group).values()
        for span in opening.spans
    }
