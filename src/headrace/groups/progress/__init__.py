"""How far a group is in a unit: the record, and the acked ranges that it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.groups.progress.bounds import OFFSET_MAX
from headrace.loading import later

if TYPE_CHECKING:
    from headrace.groups.progress.ranges import AckedRanges
    from headrace.groups.progress.record import Progress

__all__ = ["OFFSET_MAX", "AckedRanges", "Progress"]

# Whoever takes a glance at what is stored needs no numpy.
__getattr__ = later(
    __name__,
    {
        "headrace.groups.progress.ranges": ("AckedRanges",),
        "headrace.groups.progress.record": ("Progress",),
    },
)
