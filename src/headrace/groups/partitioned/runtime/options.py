"""How a member consumes: what an application may say when it joins."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError, InvalidDeliveryConfigError, InvalidInputError
from headrace.groups.consumer import ConsumerOptions
from headrace.groups.delivery import DeliveryConfig
from headrace.groups.partitioned.core.partitions import PinTimings
from headrace.groups.partitioned.names import GroupName
from headrace.subjects.arguments import check_value

PIN_TTL_MS = 5_000


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
    delivery = set(DeliveryConfig.__struct_fields__)
    consumer = set(ConsumerOptions.__struct_fields__) - {"delivery", "member"}
    unknown = sorted(options.keys() - delivery - consumer)
    if unknown:
        known = ", ".join(sorted({"pin_ttl_ms", "drain_limit_ms", *delivery, *consumer}))
        raise InvalidInputError(f"unknown option {unknown[0]!r}; options are: {known}")
    for option, value in (("pin_ttl_ms", pin_ttl_ms), ("drain_limit_ms", drain_limit_ms)):
        check_value(option, value, int)
        if value < 10:
            raise InvalidInputError(f"{option} is {value!r}; it must be 10 or more")
    chosen = {option: value for option, value in options.items() if option in consumer}
    chosen.setdefault("dead_letters", name.dead_letters)
    try:
        made = msgspec.convert(
            {**chosen, "delivery": {k: v for k, v in options.items() if k in delivery}},
            type=ConsumerOptions,
        )
    except (msgspec.ValidationError, UnicodeError) as error:
        if isinstance(error.__cause__, HeadraceError):
            raise error.__cause__ from None
        raise InvalidDeliveryConfigError(f"an option of the join: {error}") from None
    return JoinOptions(
        consumer=msgspec.structs.replace(made, member=member),
        timings=PinTimings(
            pin_ttl_ms=pin_ttl_ms,
            renew_every_ms=max(1, pin_ttl_ms * 3 // 10),
            # A standby is told when the pin is given up, and else knows when it runs out.
            standby_retry_ms=pin_ttl_ms,
            drain_limit_ms=drain_limit_ms,
        ),
    )


def warm_up() -> None:
    """Load now what the first event would load: with pandas installed, Arrow loads it then.

    That takes the better part of a second, in which no pin is renewed.
    """
    pa.array([0]).to_numpy()
