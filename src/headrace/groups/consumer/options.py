"""Options of a consumer as an application gives them: all in one list, checked by name and type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.errors import HeadraceError, InvalidDeliveryConfigError, InvalidInputError
from headrace.groups.consumer.types import ConsumerOptions
from headrace.groups.delivery import DeliveryConfig

# Used here, since the first use of a type by msgspec is not safe in several threads at once.
msgspec.convert({}, ConsumerOptions)


def consumer_options(
    given: Mapping[str, object], member: str, what: str, beside: Sequence[str]
) -> ConsumerOptions:
    """Those of delivery and of the consumer; errors list the names in ``beside`` as well."""
    delivery = set(DeliveryConfig.__struct_fields__)
    consumer = set(ConsumerOptions.__struct_fields__) - {"delivery", "member"}
    unknown = sorted(given.keys() - delivery - consumer)
    if unknown:
        known = ", ".join(sorted({*beside, *delivery, *consumer}))
        raise InvalidInputError(f"unknown option {unknown[0]!r}; options are: {known}")
    chosen: dict[str, object] = {k: v for k, v in given.items() if k in consumer}
    chosen["delivery"] = {k: v for k, v in given.items() if k in delivery}
    try:
        made = msgspec.convert(chosen, type=ConsumerOptions)
    except (msgspec.ValidationError, UnicodeError) as error:
        if isinstance(error.__cause__, HeadraceError):
            raise error.__cause__ from None
        raise InvalidDeliveryConfigError(f"an option of the {what}: {error}") from None
    return msgspec.structs.replace(made, member=member)
