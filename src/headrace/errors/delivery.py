"""Delivery: progress, and answers to what was handed out."""

from __future__ import annotations

from headrace.errors.inputs import HeadraceError, InvalidInputError


class InvalidRangeError(InvalidInputError):
    """A range of offsets is backwards, out of bounds, or overlaps another."""


class ProgressDecodeError(HeadraceError, ValueError):
    """A stored progress record cannot have been written by this code."""


class DeliveryError(HeadraceError):
    """An event of the delivery core that is not allowed; nothing was changed."""


class InvalidDeliveryConfigError(InvalidInputError):
    """A delivery setting is out of its bounds."""


class InvalidDelayError(InvalidInputError):
    """A nack asks for a delay that is negative or too long."""


class FeedError(DeliveryError, ValueError):
    """Events fed to a dispatcher do not continue where it stands, or exceed what it wants."""


class UnknownDeliveryError(DeliveryError, LookupError):
    """An answer to a delivery that was never made."""

    def __init__(self, verb: str, offset: int, why: str) -> None:
        super().__init__(f"cannot {verb} offset {offset}: {why}")
        self.verb = verb
        self.offset = offset


class StaleDeliveryError(DeliveryError):
    """An answer that comes too late: the delivery it names no longer counts."""

    def __init__(self, verb: str, offset: int, attempt: int, state: str) -> None:
        super().__init__(f"cannot {verb} attempt {attempt} of offset {offset}: {state}")
        self.verb = verb
        self.offset = offset
        self.attempt = attempt


class AlreadyAckedError(DeliveryError):
    """A transaction acks what is acked already; it was not committed."""

    def __init__(self, group: str, unit: str, lo: int, hi: int) -> None:
        what = f"offset {lo}" if hi == lo + 1 else f"part of offsets {lo} to {hi - 1}"
        super().__init__(
            f"group {group!r}, unit {unit!r}: {what} is acked already, so the transaction was "
            "not committed; do not process it again"
        )
        self.group = group
        self.unit = unit
        self.lo = lo
        self.hi = hi


class UnknownTicketError(DeliveryError, LookupError):
    """An answer to a batch that was never handed out."""

    def __init__(self, verb: str, ticket: int) -> None:
        super().__init__(f"cannot {verb} batch {ticket}: it was never handed out")
        self.verb = verb
        self.ticket = ticket


class StaleBatchError(DeliveryError):
    """An answer that comes too late: the batch was answered, or timed out and comes again."""

    def __init__(self, verb: str) -> None:
        super().__init__(
            f"cannot {verb} this batch: it was answered before, or it timed out and comes again"
        )
        self.verb = verb


class AnsweredError(DeliveryError):
    """A delivery is answered once: it was acked, nacked or rejected before."""


class ConsumerClosedError(DeliveryError):
    """The consumer is closed, or has given the unit back: the answer does not count."""


class ConsumerModeError(DeliveryError):
    """A consumer is used event by event or in batches, not both."""


class UnknownUnitError(DeliveryError, LookupError):
    """A consumer is told about a unit that it does not hold."""
