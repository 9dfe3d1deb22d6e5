"""Delivery: what a consumer is handed, and what becomes of it (one core for all groups)."""

from headrace.groups.delivery.batch_dispatcher import (
    BatchDispatcher,
    BatchHandout,
    BatchRetry,
    DyingPiece,
    Piece,
)
from headrace.groups.delivery.dispatcher import Dispatcher
from headrace.groups.delivery.messages import (
    DeadLetter,
    DeliveryConfig,
    Handout,
    Reason,
    Retry,
    Stalled,
    Statistics,
)

__all__ = [
    "BatchDispatcher",
    "BatchHandout",
    "BatchRetry",
    "DeadLetter",
    "DeliveryConfig",
    "Dispatcher",
    "DyingPiece",
    "Handout",
    "Piece",
    "Reason",
    "Retry",
    "Stalled",
    "Statistics",
]
