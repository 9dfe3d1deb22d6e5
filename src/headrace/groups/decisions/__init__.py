"""What was decided about groups, and why: one record for every kind of group."""

from headrace.groups.decisions.core.record import Decision, UnitRange, What, ranges, units_text
from headrace.groups.decisions.store import (
    LIMIT,
    LIMIT_MAX,
    after,
    asking,
    channel,
    check_limit,
    count,
    counts,
    forget,
    latest,
    locks,
    newest,
    read,
    record,
)

__all__ = [
    "LIMIT",
    "LIMIT_MAX",
    "Decision",
    "UnitRange",
    "What",
    "after",
    "asking",
    "channel",
    "check_limit",
    "count",
    "counts",
    "forget",
    "latest",
    "locks",
    "newest",
    "ranges",
    "read",
    "record",
    "units_text",
]
