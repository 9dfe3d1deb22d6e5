"""How far a group is in a unit: the record, and the acked ranges that it is made of."""

from headrace.groups.progress.ranges import OFFSET_MAX, AckedRanges
from headrace.groups.progress.record import Progress

__all__ = ["OFFSET_MAX", "AckedRanges", "Progress"]
