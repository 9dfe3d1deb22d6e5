"""How far a batch reaches: the offsets that fit into its limits of events and bytes.

A marker takes an offset and is no event: a limit of events passes over it, and the markers behind
the last event go along, so that a segment that ends in markers is finished.

The catalog knows how many bytes lie before any batch.  The offset at which a limit is reached is
found by an exponential search from the query's position (strides that double, then a binary search
in the last one): the cost depends on how far a batch may reach, and not on the backlog.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from headrace.catalog import Tx, batches, markers
from headrace.catalog.streams import Segment
from headrace.spark import planning

STRIDE_EVENTS = 64
K = TypeVar("K")


class Ahead(msgspec.Struct, frozen=True):
    """``count`` offsets of a segment that are to be read, from ``position`` on."""

    segment: Segment
    position: int
    count: int

    @property
    def end(self) -> int:
        return self.position + self.count


def lags(tx: Tx, wanted: Mapping[K, Ahead]) -> dict[K, int]:
    """How many events lie ahead in each segment."""
    return {
        key: markers.events_in(tx, ahead.segment, [(ahead.position, ahead.end)])
        for key, ahead in wanted.items()
    }


def ends(
    tx: Tx, wanted: Mapping[K, Ahead], events_max: int | None, bytes_max: int | None
) -> dict[K, int]:
    """Where a batch ends in each segment that it reads."""
    behind = lags(tx, wanted)
    taken = planning.admit(behind, events_max)
    chosen: dict[K, Ahead] = {}
    for key, ahead in wanted.items():
        if key in taken or not behind[key]:
            end = _after(tx, ahead, taken.get(key, 0))
            chosen[key] = msgspec.structs.replace(ahead, count=end - ahead.position)
    if bytes_max is None:
        return {key: ahead.end for key, ahead in chosen.items()}
    counts = within_bytes(tx, {k: ahead for k, ahead in chosen.items() if ahead.count}, bytes_max)
    return {key: chosen[key].position + count for key, count in counts.items()}


def _after(tx: Tx, ahead: Ahead, count: int) -> int:
    """The offset of the event after the next ``count`` ones, or the end."""
    at = max(ahead.position, ahead.segment.tail) + count
    if ahead.segment.markers:
        start, before = at - count, -1
        while at != before and at < ahead.end:
            before = at
            at = start + count + markers.between(tx, ahead.segment.id, start, at + 1)
    return min(at, ahead.end)


def within_bytes(tx: Tx, wanted: Mapping[K, Ahead], most: int) -> dict[K, int]:
    """How many offsets of each to take so that all fit into ``most`` bytes; one at least."""
    begins: dict[K, int] = {}
    sizes: dict[K, int] = {}
    for key, ahead in wanted.items():
        begins[key] = batches.bytes_before(tx, ahead.segment, ahead.position)
        until = min(ahead.end, ahead.segment.head)
        sizes[key] = max(1, batches.bytes_before(tx, ahead.segment, until) - begins[key])
    taken: dict[K, int] = {}
    for key, share in planning.admit(sizes, most).items():
        count = wanted[key].count
        if share < sizes[key]:
            count = min(count, events_within(tx, wanted[key], begins[key] + share))
        taken[key] = max(1, count)
    return taken


def events_within(tx: Tx, ahead: Ahead, size_bytes: int) -> int:
    """How many of the events lie within the first ``size_bytes`` of their segment."""
    low, stride = ahead.position, STRIDE_EVENTS
    end = min(ahead.end, ahead.segment.head)
    high = min(low + stride, end)
    while high < end and batches.bytes_before(tx, ahead.segment, high) < size_bytes:
        low, stride = high, stride * 2
        high = min(low + stride, end)
    window = msgspec.structs.replace(ahead.segment, tail=low, head=high)
    return batches.offset_at_bytes(tx, window, size_bytes) - ahead.position
