"""The delivery runtime: what an application consumes with, the same for every kind of group."""

from headrace.groups.consumer.acks import CatalogAcks
from headrace.groups.consumer.batches import Batch
from headrace.groups.consumer.consume import Handler
from headrace.groups.consumer.consumer import Consumer
from headrace.groups.consumer.delivery import Delivery
from headrace.groups.consumer.transaction import AckTransaction
from headrace.groups.consumer.types import (
    AckStore,
    ConsumerOptions,
    OwnedUnit,
    UnitAck,
    UnitEvents,
    UnitStanding,
)

__all__ = [
    "AckStore",
    "AckTransaction",
    "Batch",
    "CatalogAcks",
    "Consumer",
    "ConsumerOptions",
    "Delivery",
    "Handler",
    "OwnedUnit",
    "UnitAck",
    "UnitEvents",
    "UnitStanding",
]
