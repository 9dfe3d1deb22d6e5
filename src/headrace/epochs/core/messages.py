"""What a publisher tells a subscriber about one partition.

A link carries the messages of one partition to one subscriber, in order.  The first is a
:class:`Snapshot`; which partition it is about is a property of the link, not of the message.
The payload of :class:`Data` is opaque: whether it is delivered is decided by its time alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.epochs.core.antichains import Change, Frontier
from headrace.epochs.core.times import Time

EpochCount = tuple[Time, int]
"""A completed epoch and how many rows the partition published in it."""


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """Both frontiers of a partition when the link began; always the first message."""

    lower: Frontier
    upper: Frontier


class FrontierUpdate(msgspec.Struct, frozen=True, gc=False, tag="frontier"):
    """Times that left the lower frontier (-1) and entered it (+1), and what that completed.

    What is too large for one message is cut: counts without changes are told ahead, of epochs that
    get no more data and that one of the next updates completes.
    """

    changes: tuple[Change, ...]
    counts: tuple[EpochCount, ...] = ()


class Data(msgspec.Struct, frozen=True, gc=False, tag="data"):
    """A batch of an epoch; `source` tells those apart who share a partition."""

    time: Time
    payload: Any
    rows: int = 1
    source: str = ""


class TakeBack(msgspec.Struct, frozen=True, tag="take back"):
    """A source's rows at or after `held`, the times it still holds, do not count."""

    held: Frontier
    source: str = ""


class Skip(msgspec.Struct, frozen=True, tag="skip"):
    """The link fell behind and left out data at the times of `upper` and maybe before them.

    Epochs at or before `upper` that were not complete on this link never will be.  `lower` is
    where the partition's lower frontier stands now; `counts` are of epochs that were completed
    meanwhile and of which nothing was left out.
    """

    lower: Frontier
    upper: Frontier
    counts: tuple[EpochCount, ...] = ()


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Nothing new, and the publisher is alive; `lower` is what the subscriber should have."""

    lower: Frontier


class Aborted(msgspec.Struct, frozen=True, tag="aborted"):
    """The publisher gave up with times still held: what is not complete never will be."""

    reason: str


Message = Snapshot | FrontierUpdate | Data | TakeBack | Skip | Heartbeat | Aborted
