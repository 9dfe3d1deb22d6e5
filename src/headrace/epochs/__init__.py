"""Epochs: a subscriber sees all of an epoch or nothing of it, and knows which are complete.

Pure cores, without I/O or clocks: :class:`Publisher` for one partition, :class:`Subscriber` for
many, and between them the messages and bounded queues of a link.

They work with numpy, and are loaded when they are first used: who only looks needs none of them.
"""

from typing import TYPE_CHECKING

from headrace.loading import later

if TYPE_CHECKING:
    from headrace.epochs.core.antichains import Antichain, CountedAntichain, Frontier, counted
    from headrace.epochs.core.effects import (
        Advanced,
        Deliver,
        Drop,
        Dropped,
        Effect,
        End,
        Ended,
        Epoch,
        GaveUp,
        Joined,
        Mode,
        Ready,
        Skipped,
        TakenBack,
        WhenFull,
    )
    from headrace.epochs.core.messages import (
        Aborted,
        Data,
        FrontierUpdate,
        Heartbeat,
        Message,
        Skip,
        Snapshot,
        TakeBack,
    )
    from headrace.epochs.core.publisher import CutOff, Published, Publisher
    from headrace.epochs.core.queues import QueuePolicy, QueueSettings
    from headrace.epochs.core.subscriber import Subscriber
    from headrace.epochs.core.times import INTEGERS, PAIRS, Time, TimeShape
    from headrace.epochs.core.token import ResumeToken

__all__ = [
    "INTEGERS",
    "PAIRS",
    "Aborted",
    "Advanced",
    "Antichain",
    "CountedAntichain",
    "CutOff",
    "Data",
    "Deliver",
    "Drop",
    "Dropped",
    "Effect",
    "End",
    "Ended",
    "Epoch",
    "Frontier",
    "FrontierUpdate",
    "GaveUp",
    "Heartbeat",
    "Joined",
    "Message",
    "Mode",
    "Published",
    "Publisher",
    "QueuePolicy",
    "QueueSettings",
    "Ready",
    "ResumeToken",
    "Skip",
    "Skipped",
    "Snapshot",
    "Subscriber",
    "TakeBack",
    "TakenBack",
    "Time",
    "TimeShape",
    "WhenFull",
    "counted",
]

__getattr__ = later(
    __name__,
    {
        "headrace.epochs.core.antichains": (
            "Antichain",
            "CountedAntichain",
            "Frontier",
            "counted",
        ),
        "headrace.epochs.core.effects": (
            "Advanced",
            "Deliver",
            "Drop",
            "Dropped",
            "Effect",
            "End",
            "Ended",
            "Epoch",
            "GaveUp",
            "Joined",
            "Mode",
            "Ready",
            "Skipped",
            "TakenBack",
            "WhenFull",
        ),
        "headrace.epochs.core.messages": (
            "Aborted",
            "Data",
            "FrontierUpdate",
            "Heartbeat",
            "Message",
            "Skip",
            "Snapshot",
            "TakeBack",
        ),
        "headrace.epochs.core.publisher": (
            "CutOff",
            "Published",
            "Publisher",
        ),
        "headrace.epochs.core.queues": (
            "QueuePolicy",
            "QueueSettings",
        ),
        "headrace.epochs.core.subscriber": ("Subscriber",),
        "headrace.epochs.core.times": (
            "INTEGERS",
            "PAIRS",
            "Time",
            "TimeShape",
        ),
        "headrace.epochs.core.token": ("ResumeToken",),
    },
)
