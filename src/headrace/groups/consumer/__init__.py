"""The delivery runtime: what an application consumes with, the same for every kind of group."""

from headrace.groups.consumer.acks import CatalogAcks
from headrace.groups.consumer.types import (
    AckStore,
    ConsumerOptions,
    OwnedUnit,
    UnitAck,
    UnitEvents,
)

__all__ = [
    "AckStore",
    "CatalogAcks",
    "ConsumerOptions",
    "OwnedUnit",
    "UnitAck",
    "UnitEvents",
]
