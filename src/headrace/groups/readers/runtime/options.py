"""How a reader reads: what an application may say when it joins."""

from __future__ import annotations

import msgspec

from headrace.groups.consumer import ConsumerOptions
from headrace.groups.consumer.options import consumer_options
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.subjects.arguments import check_value

LEASE_TTL_MS = 10_000
TIMERS = ("lease_ttl_ms", "heartbeat_ms", "balance_ms", "join_delay_ms")


class ReaderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a reader reads."""

    consumer: ConsumerOptions
    settings: ReaderSettings


def reader_options(reader: str, **options: object) -> ReaderOptions:
    """Options as an application gives them: timers, delivery and consumer in one list."""
    timers = {name: options[name] for name in TIMERS if name in options}
    for name, value in timers.items():
        check_value(name, value, int)
    ttl_ms = timers.get("lease_ttl_ms", LEASE_TTL_MS)
    timers.setdefault("heartbeat_ms", max(1, int(ttl_ms) * 3 // 10))  # type: ignore[call-overload]
    given = {name: value for name, value in options.items() if name not in TIMERS}
    return ReaderOptions(
        consumer=consumer_options(given, reader, "reader", TIMERS),
        settings=ReaderSettings(**timers),  # type: ignore[arg-type]
    )
