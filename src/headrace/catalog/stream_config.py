"""What a stream captures, and how it is kept, scaled and published."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

SEGMENTS_MAX = 4096
EPOCH_PARTS_MAX = 8

Positive = Annotated[int, Meta(gt=0)]


class Limits(msgspec.Struct, frozen=True, tag="limits", omit_defaults=True):
    """Keep what is within every limit given; with none, keep everything."""

    age_s: Positive | None = None
    bytes: Positive | None = None
    events: Positive | None = None


class Consumed(msgspec.Struct, frozen=True, tag="consumed"):
    """A work queue: keep what some subscribed group has not acked yet."""


class Groups(msgspec.Struct, frozen=True, tag="groups", omit_defaults=True):
    """Keep what subscribed groups still need, but at least ``keep`` and at most ``cap``."""

    keep: Limits = Limits()
    cap: Limits = Limits()


Retention = Limits | Consumed | Groups


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """The number of segments changes only on request."""


class ByEvents(msgspec.Struct, frozen=True, tag="events", omit_defaults=True):
    """Scale so that each segment takes about ``target_per_s`` events a second."""

    target_per_s: Positive
    factor: Annotated[int, Meta(ge=2, le=64)] = 2
    minimum: Positive = 1


class ByBytes(msgspec.Struct, frozen=True, tag="bytes", omit_defaults=True):
    """Scale so that each segment takes about ``target_per_s`` bytes a second."""

    target_per_s: Positive
    factor: Annotated[int, Meta(ge=2, le=64)] = 2
    minimum: Positive = 1


Scaling = Fixed | ByEvents | ByBytes


class Epochs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stream is published by epochs: subscribers get each one whole, or nothing of it.

    ``length`` 0: times are integers.  1 to 8: times are tuples of that many parts.
    Each of the declared ``publishers`` holds the first time from the beginning, so that nothing is
    complete before it has come.
    """

    length: Annotated[int, Meta(ge=0, le=EPOCH_PARTS_MAX)] = 0
    publishers: tuple[str, ...] = ()
    stored: bool = True
    """False: rows go directly from publishers to subscribers and are not kept."""


class StreamConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a stream captures and how it is kept."""

    subjects: tuple[str, ...]
    key_tokens: tuple[int, ...] = ()
    retention: Retention = Limits()
    scaling: Scaling = Fixed()
    partitions: Annotated[int, Meta(ge=0, le=SEGMENTS_MAX)] = 0
    """More than 0: one segment for each partition, which is the segment's number."""
    internal: bool = False
    """Belongs to a group: captures no subject, and is written to by naming the segment."""
    epochs: Epochs | None = None
    """Chosen when the stream is made, and never changed."""


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
decode_config = msgspec.json.Decoder(StreamConfig).decode
