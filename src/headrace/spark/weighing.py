"""How many events fit into a limit of bytes.

The catalog knows how many bytes lie before any batch.  The offset at which a limit is reached is
found by an exponential search from the query's position (strides that double, then a binary search
in the last one): the cost depends on how far a batch may reach, and not on the backlog.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from headrace.catalog import Tx, batches
from headrace.catalog.streams import Segment
from headrace.spark import planning

STRIDE_EVENTS = 64
K = TypeVar("K")


class Ahead(msgspec.Struct, frozen=True):
    """``count`` events of a segment that are to be read, from ``position`` on."""

    segment: Segment
    position: int
    count: int


def within_bytes(tx: Tx, wanted: Mapping[K, Ahead], most: int) -> dict[K, int]:
    """How many events of each to take so that all fit into ``most`` bytes; one at least."""
    keys = list(wanted)
    begins: list[int] = []
    sizes: dict[int, int] = {}
    for index, key in enumerate(keys):
        ahead = wanted[key]
        begin = batches.bytes_before(tx, ahead.segment, ahead.position)
        until = min(ahead.position + ahead.count, ahead.segment.head)
        begins.append(begin)
        sizes[index] = max(1, batches.bytes_before(tx, ahead.segment, until) - begin)
    taken: dict[K, int] = {}
    for index, share in planning.admit(sizes, most).items():
        ahead = wanted[keys[index]]
        count = ahead.count
        if share < sizes[index]:
            count = min(count, events_within(tx, ahead, begins[index] + share))
        taken[keys[index]] = max(1, count)
    return taken


def events_within(tx: Tx, ahead: Ahead, size_bytes: int) -> int:
    """How many of the events lie within the first ``size_bytes`` of their segment."""
    low, stride = ahead.position, STRIDE_EVENTS
    end = min(ahead.position + ahead.count, ahead.segment.head)
    high = min(low + stride, end)
    while high < end and batches.bytes_before(tx, ahead.segment, high) < size_bytes:
        low, stride = high, stride * 2
        high = min(low + stride, end)
    window = msgspec.structs.replace(ahead.segment, tail=low, head=high)
    return batches.offset_at_bytes(tx, window, size_bytes) - ahead.position
