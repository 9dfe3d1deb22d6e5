"""Times as the log has them: whole microseconds since 1970, UTC."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_us() -> int:
    return time.time_ns() // 1000


def to_us(moment: datetime) -> int:
    """Microseconds since 1970; a time without zone is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


TIME_MIN_US = to_us(datetime.min.replace(tzinfo=UTC))
TIME_MAX_US = to_us(datetime.max.replace(tzinfo=UTC))
