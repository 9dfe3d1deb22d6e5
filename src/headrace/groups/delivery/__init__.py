"""Delivery: what a consumer is handed, and what becomes of it (one core for all groups)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.groups.delivery.messages import (
    DeadLetter,
    DeliveryConfig,
    Handout,
    Reason,
    Retry,
    Stalled,
    Statistics,
)
from headrace.loading import later

if TYPE_CHECKING:
    from headrace.groups.delivery.batch_dispatcher import (
        BatchDispatcher,
        BatchHandout,
        BatchRetry,
        DyingPiece,
    )
    from headrace.groups.delivery.dispatcher import Dispatcher
    from headrace.groups.delivery.pieces import Piece

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

# Whoever only has to do with the settings needs no numpy.
__getattr__ = later(
    __name__,
    {
        "headrace.groups.delivery.batch_dispatcher": (
            "BatchDispatcher", "BatchHandout", "BatchRetry", "DyingPiece",
        ),
        "headrace.groups.delivery.dispatcher": ("Dispatcher",),
        "headrace.groups.delivery.pieces": ("Piece",),
    },
)  # fmt: skip
