"""How a member consumes: what an application may say when it joins."""

from __future__ import annotations

import msgspec

from headrace.errors import InvalidInputError
from headrace.groups.consumer import ConsumerOptions
from headrace.groups.consumer.options import consumer_options
from headrace.groups.partitioned.core.partitions import PinTimings
from headrace.groups.partitioned.names import GroupName
from headrace.subjects.arguments import check_value

PIN_TTL_MS = 5_000
OWN = ("pin_ttl_ms", "drain_limit_ms")


class JoinOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a member consumes."""

    consumer: ConsumerOptions
    timings: PinTimings


def join_options(
    name: GroupName,
    member: str,
    *,
    pin_ttl_ms: int = PIN_TTL_MS,
    drain_limit_ms: int = 10_000,
    **options: object,
) -> JoinOptions:
    """Options as an application gives them: those of delivery and of the consumer in one list."""
    for option, value in (("pin_ttl_ms", pin_ttl_ms), ("drain_limit_ms", drain_limit_ms)):
        check_value(option, value, int)
        if value < 10:
            raise InvalidInputError(f"{option} is {value!r}; it must be 10 or more")
    given = {"dead_letters": name.dead_letters, **options}
    return JoinOptions(
        consumer=consumer_options(given, member, "join", OWN),
        timings=PinTimings(
            pin_ttl_ms=pin_ttl_ms,
            renew_every_ms=max(1, pin_ttl_ms * 3 // 10),
            # A standby is told when the pin is given up, and else knows when it runs out.
            standby_retry_ms=pin_ttl_ms,
            drain_limit_ms=drain_limit_ms,
        ),
    )
