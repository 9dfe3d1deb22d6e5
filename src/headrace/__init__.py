"""Headrace: consumer groups over a durable log, for Python and Spark teams.

>>> import asyncio, tempfile, headrace
>>> async def main(folder):
...     async with headrace.open(folder) as hr:
...         await hr.create_stream("orders", subjects=["orders.>"], segments=4)
...         await hr.publish("orders.eu.42", b"12 apples", key="42")
...         return [batch.column("value").to_pylist() async for batch in hr.read("orders")]
>>> with tempfile.TemporaryDirectory() as folder:
...     asyncio.run(main(folder))
[[b'12 apples']]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import (
    DamagedBatchError,
    Fenced,
    HeadMoved,
    HeadraceError,
    InvalidInputError,
    TrimmedError,
)
from headrace.loading import later

if TYPE_CHECKING:
    from headrace.api.appender import Appender
    from headrace.api.client import Headrace, Transaction, open
    from headrace.api.places import Checkpoint, StreamCut
    from headrace.api.reading import Reading
    from headrace.catalog.producers import Placed
    from headrace.catalog.streams import (
        ByBytes,
        ByEvents,
        Consumed,
        Epochs,
        Fixed,
        Groups,
        Limits,
        Segment,
        Stream,
    )
    from headrace.groups.consumer import Batch, ConsumerOptions, Delivery
    from headrace.groups.delivery import DeliveryConfig
    from headrace.groups.shared.runtime.options import SharedOptions
    from headrace.groups.shared.runtime.session import Session
    from headrace.log.compact_policy import CompactionPolicy
    from headrace.log.events import Event
    from headrace.log.position import Position
    from headrace.net.tls import TLS

__version__ = "0.1.0"

__all__ = [
    "TLS",
    "Appender",
    "Batch",
    "ByBytes",
    "ByEvents",
    "Checkpoint",
    "CompactionPolicy",
    "Consumed",
    "ConsumerOptions",
    "DamagedBatchError",
    "Delivery",
    "DeliveryConfig",
    "Epochs",
    "Event",
    "Fenced",
    "Fixed",
    "Groups",
    "HeadMoved",
    "Headrace",
    "HeadraceError",
    "InvalidInputError",
    "Limits",
    "Placed",
    "Position",
    "Reading",
    "Segment",
    "Session",
    "SharedOptions",
    "Stream",
    "StreamCut",
    "Transaction",
    "TrimmedError",
    "open",
]

# The command line and the pure cores need no Arrow to start.
__getattr__ = later(
    __name__,
    {
        "headrace.catalog.producers": ("Placed",),
        "headrace.catalog.streams": (
            "ByBytes", "ByEvents", "Consumed", "Epochs", "Fixed", "Groups", "Limits", "Segment",
            "Stream",
        ),
        "headrace.api.appender": ("Appender",),
        "headrace.api.places": ("Checkpoint", "StreamCut"),
        "headrace.api.client": ("Headrace", "Transaction", "open"),
        "headrace.groups.consumer": ("Batch", "ConsumerOptions", "Delivery"),
        "headrace.groups.delivery": ("DeliveryConfig",),
        "headrace.groups.shared.runtime.options": ("SharedOptions",),
        "headrace.groups.shared.runtime.session": ("Session",),
        "headrace.log.compact_policy": ("CompactionPolicy",),
        "headrace.log.events": ("Event",),
        "headrace.log.position": ("Position",),
        "headrace.net.tls": ("TLS",),
        "headrace.api.reading": ("Reading",),
    },
)  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
