"""What was decided about groups, and why: one record for every kind of group."""

from headrace.groups.decisions.core.record import Decision, UnitRange, What, ranges, units_text
from headrace.groups.decisions.store import (
    LIMIT,
    LIMIT_MAX,
    after,
    channel,
    check_limit,
    follow,
    forget,
    latest,
    locks,
    read,
    record,
    watch,
)

__all__ = [
    "LIMIT",
    "LIMIT_MAX",
    "Decision",
    "UnitRange",
    "What",
    "after",
    "channel",
    "check_limit",
    "follow",
    "forget",
    "latest",
    "locks",
    "ranges",
    "read",
    "record",
    "units_text",
    "watch",
]
