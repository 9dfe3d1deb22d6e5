"""What goes in and out of the dispatcher: its settings, hand-outs and decisions."""

from __future__ import annotations

from enum import Enum

import msgspec

from headrace.errors import InvalidDeliveryConfigError
from headrace.subjects.arguments import check_fields

_MS_MAX = 7 * 24 * 3600 * 1000
_EVENTS_MAX = 10_000_000


class Reason(Enum):
    """Why a delivery did not end in an ack."""

    NACKED = "nacked"
    TIMED_OUT = "timed out"
    REJECTED = "rejected"
    EXHAUSTED = "deliveries used up under an earlier owner"


class DeliveryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a unit's events are handed out.  Zero means "no limit" where it says so."""

    max_pending: int = 4096
    """Events handed out, refused or dying at one time; 1 is strictly one at a time."""
    max_pending_per_key: int = 1
    """Of one key; above 1 the order within a key is given up."""
    ack_wait_ms: int = 30_000
    """An event not answered in this time comes again."""
    max_deliveries: int = 0
    """After this many deliveries the event becomes a dead letter; 0: never."""
    backoff_min_ms: int = 100
    """Wait before the second delivery; it doubles with each further one."""
    backoff_max_ms: int = 60_000
    stall_after_ms: int = 0
    """A consumer that holds events and answers none for this long has stalled; 0: never."""
    buffer_events_max: int = 16_384
    """Events known but not handed out yet."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, low, high in (
            ("max_pending", 1, _EVENTS_MAX),
            ("max_pending_per_key", 1, _EVENTS_MAX),
            ("ack_wait_ms", 1, _MS_MAX),
            ("max_deliveries", 0, 1_000_000),
            ("backoff_min_ms", 0, _MS_MAX),
            ("backoff_max_ms", 0, _MS_MAX),
            ("stall_after_ms", 0, _MS_MAX),
            ("buffer_events_max", 1, _EVENTS_MAX),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidDeliveryConfigError(f"{name} is {value}; it must be {low} to {high}")
        if self.backoff_max_ms < self.backoff_min_ms:
            raise InvalidDeliveryConfigError(
                f"backoff_max_ms is {self.backoff_max_ms}, "
                f"less than backoff_min_ms ({self.backoff_min_ms})"
            )

    def backoff_ms(self, attempts: int) -> int:
        """How long an event rests that was delivered ``attempts`` times in vain."""
        if self.backoff_min_ms == 0:
            return 0
        doublings = min(attempts - 1, self.backoff_max_ms.bit_length())
        return min(self.backoff_min_ms << doublings, self.backoff_max_ms)


class Handout(msgspec.Struct, frozen=True):
    """Events to hand to the consumer, in this order; ``attempts[i]`` counts from 1."""

    offsets: list[int]
    attempts: list[int]
    deadline_ms: int

    def __len__(self) -> int:
        return len(self.offsets)


class Retry(msgspec.Struct, frozen=True):
    """A refused event comes again at ``due_ms``, before the next of its key."""

    offset: int
    attempts: int
    due_ms: int
    reason: Reason


class DeadLetter(msgspec.Struct, frozen=True):
    """An event to be stored in the dead-letter stream; then confirm with ``dead_lettered``."""

    offset: int
    attempts: int
    reason: Reason
    detail: str = ""


class Stalled(msgspec.Struct, frozen=True):
    """The consumer holds events and has answered none since ``silent_since_ms``."""

    silent_since_ms: int
    unanswered: int
    oldest_offset: int


class Statistics(msgspec.Struct, frozen=True):
    """Counts for explain, metrics and tests."""

    floor: int
    acked_ranges: int
    buffered: int
    parked_keys: int
    in_flight: int
    refused: int
    dying: int
