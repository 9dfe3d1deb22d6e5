"""How a reader reads: what an application may say when it joins."""

from __future__ import annotations

import msgspec

from headrace.errors import HeadraceError, InvalidDeliveryConfigError, InvalidInputError
from headrace.groups.consumer import ConsumerOptions
from headrace.groups.delivery import DeliveryConfig
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
    delivery = set(DeliveryConfig.__struct_fields__)
    consumer = set(ConsumerOptions.__struct_fields__) - {"delivery", "member"}
    unknown = sorted(options.keys() - delivery - consumer - set(TIMERS))
    if unknown:
        known = ", ".join(sorted({*TIMERS, *delivery, *consumer}))
        raise InvalidInputError(f"unknown option {unknown[0]!r}; options are: {known}")
    timers = {name: options[name] for name in TIMERS if name in options}
    for name, value in timers.items():
        check_value(name, value, int)
    ttl_ms = timers.get("lease_ttl_ms", LEASE_TTL_MS)
    timers.setdefault("heartbeat_ms", max(1, int(ttl_ms) * 3 // 10))  # type: ignore[call-overload]
    chosen = {name: value for name, value in options.items() if name in consumer}
    try:
        made = msgspec.convert(
            {**chosen, "delivery": {k: v for k, v in options.items() if k in delivery}},
            type=ConsumerOptions,
        )
    except (msgspec.ValidationError, UnicodeError) as error:
        if isinstance(error.__cause__, HeadraceError):
            raise error.__cause__ from None
        raise InvalidDeliveryConfigError(f"an option of the reader: {error}") from None
    return ReaderOptions(
        consumer=msgspec.structs.replace(made, member=reader),
        settings=ReaderSettings(**timers),  # type: ignore[arg-type]
    )
