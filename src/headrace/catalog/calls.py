"""Writes that say what they do, so that a server can do them in one round trip.

A write is a function that runs in a transaction.  The two that are made most, an append and the
acks of an owner, can also *say* what they would do.  A driver that understands a call sends all of
it at once, and the server does it in one statement; others run the function.  A call never fails
by itself: whatever is not as it expects (a sealed segment, a stale token, a row that somebody else
has changed, a repeat of a producer), the server leaves it undone, and the function runs after all
and finds the reason.  Of several acks some may be done and others not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.catalog.batches import NewBatch


class ProducerCall(msgspec.Struct, frozen=True):
    """A sequence of an idempotent producer, to be recorded with its append."""

    scope: int
    producer: str
    sequence: int
    checksum: int | None
    positions: bytes
    """What is recorded, with 8 bytes left for each offset."""
    gaps: tuple[int, ...]
    """Where in ``positions`` the offset of each batch goes, counted from 1."""
    kept: int
    """How many sequences of a producer are remembered."""


class AppendCall(msgspec.Struct, frozen=True):
    """Batches for the heads of their segments, each segment once."""

    batches: Sequence[NewBatch]
    channels: set[str]
    done: Callable[[list[int]], Any]
    """Makes the result of the write of the batches' first offsets."""
    producer: ProducerCall | None = None


class AckRow(msgspec.Struct, frozen=True, gc=False):
    """Progress of a group in a segment, under the claim of a unit."""

    group: str
    unit: str
    token: int
    segment_id: int
    floor: int
    state: bytes
    before: bytes | None
    """What the row must still hold; None if it must not exist."""


class AckCall(msgspec.Struct, frozen=True):
    """Progress, of which each row counts if its claim stands and the row is as expected."""

    rows: Sequence[AckRow]
    channels: set[str]
    done: Callable[[], Any]
    """The result of the write, if all rows are stored."""
    partly: Callable[[Sequence[int]], None]
    """Else it is told which are (1) and which are not (0), before the function runs for the rest:
    by then a claim may be another's, and what was stored under it counts all the same."""


Call = AppendCall | AckCall
Saying = Callable[[], Call | None]
"""What a write would do, asked just before it is made; None if that cannot be said."""
