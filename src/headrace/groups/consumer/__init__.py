"""The delivery runtime: what an application consumes with, the same for every kind of group."""

from typing import TYPE_CHECKING

from headrace.loading import later

if TYPE_CHECKING:
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

# Whoever only looks at groups needs the types, and nothing that runs.
__getattr__ = later(
    __name__,
    {
        "headrace.groups.consumer.acks": ("CatalogAcks",),
        "headrace.groups.consumer.batches": ("Batch",),
        "headrace.groups.consumer.consume": ("Handler",),
        "headrace.groups.consumer.consumer": ("Consumer",),
        "headrace.groups.consumer.delivery": ("Delivery",),
        "headrace.groups.consumer.transaction": ("AckTransaction",),
        "headrace.groups.consumer.types": (
            "AckStore", "ConsumerOptions", "OwnedUnit", "UnitAck", "UnitEvents", "UnitStanding",
        ),
    },
)  # fmt: skip
