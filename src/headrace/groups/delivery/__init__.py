"""Delivery: what a consumer is handed, and what becomes of it (one core for all groups)."""

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
    "DeadLetter",
    "DeliveryConfig",
    "Dispatcher",
    "Handout",
    "Reason",
    "Retry",
    "Stalled",
    "Statistics",
]
