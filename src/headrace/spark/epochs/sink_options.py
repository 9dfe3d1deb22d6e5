"""Options of a write to an epoch stream: which epoch a row is of, and what is complete after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from headrace.epochs.core.times import TimeShape
from headrace.errors import InvalidOptionError, InvalidSinkError
from headrace.spark.epochs.texts import parse_frontier
from headrace.subjects import check_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

EPOCH_OPTIONS = (
    "epochColumn",
    "epochUnit",
    "epoch",
    "frontier",
    "advanceTo",
    "publisher",
    "lateRows",
    "takeover",
)
UNITS_US = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}
LATE = ("fail", "drop", "deadLetter")
PUBLISHER = "spark"
"""The publisher's name where none is given."""


class FrontierRule(msgspec.Struct, frozen=True):
    """How far the publisher goes with a batch: ``batch``, ``delay``, ``column`` or ``none``."""

    kind: str
    delay: int = 0
    column: str = ""


class EpochWrite(msgspec.Struct, frozen=True):
    """A write to an epoch stream, checked as far as its options go."""

    publisher: str
    frontier: FrontierRule
    column: str | None = None
    unit_us: int | None = None
    by_batch: bool = False
    """Every micro-batch is one epoch."""
    time: str | None = None
    """One epoch for all rows of a batch write."""
    advance_to: str | None = None
    late: str = "fail"
    takeover: bool = False


def parse_epoch_write(given: Mapping[str, str]) -> EpochWrite | None:
    """The options whose names are in lower case; None if none of them is about epochs."""
    if not any(name.lower() in given for name in EPOCH_OPTIONS):
        return None
    column, epoch = given.get("epochcolumn"), given.get("epoch")
    if (column is None) == (epoch is None):
        raise InvalidOptionError(
            "give one of epochColumn (a column with the epoch of each row) and epoch (one for all "
            "rows, or 'batch')" + (", not both" if column is not None else "")
        )
    by_batch = epoch is not None and epoch.lower() == "batch"
    advance_to = given.get("advanceto")
    rule = given.get("frontier")
    if advance_to is not None and rule is not None:
        raise InvalidOptionError("give frontier or advanceTo, not both")
    unit = given.get("epochunit")
    if unit is not None and (column is None or unit.lower() not in UNITS_US):
        raise InvalidOptionError(
            f"epochUnit={unit!r}: it is for an epochColumn of timestamps, and is one of "
            f"{', '.join(UNITS_US)}"
        )
    late = given.get("laterows", "fail")
    if late not in LATE:
        raise InvalidOptionError(f"lateRows={late!r}: give {', '.join(LATE)}")
    if late == "deadLetter" and "deadletterstream" not in given:
        raise InvalidOptionError("lateRows=deadLetter needs the option deadLetterStream")
    takeover = given.get("takeover", "false").lower()
    if takeover not in ("true", "false"):
        raise InvalidOptionError(f"takeover={given['takeover']!r}: give true or false")
    return EpochWrite(
        publisher=check_name(given.get("publisher", PUBLISHER), "publisher"),
        frontier=_rule(rule, by_batch),
        column=column,
        unit_us=None if unit is None else UNITS_US[unit.lower()],
        by_batch=by_batch,
        time=None if by_batch else epoch,
        advance_to=advance_to,
        late=late,
        takeover=takeover == "true",
    )


def _rule(text: str | None, by_batch: bool) -> FrontierRule:
    if text is None:
        return FrontierRule("batch" if by_batch else "none")
    kind, _, rest = text.partition(":")
    if kind in ("batch", "none") and not rest and ":" not in text:
        return FrontierRule(kind)
    if kind == "delay" and rest.isascii() and rest.isdigit() and int(rest) < 1 << 62:
        return FrontierRule("delay", delay=int(rest))
    if kind == "column" and rest:
        return FrontierRule("column", column=rest)
    raise InvalidOptionError(
        f"frontier={text!r}: give batch, delay:N (the greatest time less N), column:NAME or none"
    )


def check_epoch_write(
    wanted: EpochWrite, given: Mapping[str, str], shape: TimeShape, schema: StructType
) -> None:
    """Refuse what does not fit the stream's times or the data frame's columns."""
    if wanted.frontier.kind == "delay" and shape.length:
        raise InvalidOptionError(
            f"frontier=delay:{wanted.frontier.delay} counts integers, and this stream's times are "
            f"{shape}; use column:NAME"
        )
    if wanted.by_batch and shape.length:
        raise InvalidOptionError(f"epoch=batch counts integers; this stream's times are {shape}")
    if wanted.time is not None:
        times = parse_frontier(shape, wanted.time, "epoch")
        if len(times) != 1:
            raise InvalidOptionError(f"epoch={wanted.time!r}: give one time, or 'batch'")
    if wanted.advance_to is not None and not parse_frontier(shape, wanted.advance_to, "advanceTo"):
        raise InvalidOptionError(
            "advanceTo is empty, which would close the publisher; headrace epoch close does that"
        )
    _check_columns(wanted, shape, schema, given)


def _check_columns(
    wanted: EpochWrite, shape: TimeShape, schema: StructType, given: Mapping[str, str]
) -> None:
    from pyspark.sql import types as t

    found = {field.name: field.dataType for field in schema.fields}
    named = [("epochColumn", wanted.column), ("frontier", wanted.frontier.column or None)]
    for option, name in named:
        if name is not None and name not in found:
            raise InvalidSinkError(
                f"{option}={given.get(option.lower(), name)}: there is no such column; there are "
                f"{', '.join(found)}"
            )
    if wanted.column is not None:
        kind = found[wanted.column]
        stamps = isinstance(kind, t.TimestampType | t.TimestampNTZType)
        if stamps and wanted.unit_us is None:
            raise InvalidOptionError(
                f"epochColumn={wanted.column} is a timestamp: say with epochUnit what an epoch is "
                f"({', '.join(UNITS_US)})"
            )
        if wanted.unit_us is not None and not stamps:
            raise InvalidOptionError(
                f"epochUnit is for timestamps, and {wanted.column} is {kind.simpleString()}"
            )
        array = isinstance(kind, t.ArrayType) and isinstance(kind.elementType, t.IntegralType)
        single = isinstance(kind, t.IntegralType) or stamps
        if not (array or (single and shape.length == 0)):
            accepted = "array<bigint>" if shape.length else "an integer, a timestamp or an array"
            raise InvalidSinkError(
                f"epochColumn={wanted.column} is {kind.simpleString()}; the stream takes {accepted}"
            )
    if wanted.frontier.kind == "column":
        kind = found[wanted.frontier.column]
        array = isinstance(kind, t.ArrayType) and isinstance(kind.elementType, t.IntegralType)
        if not (array or isinstance(kind, t.StringType | t.IntegralType)):
            raise InvalidSinkError(
                f"frontier=column:{wanted.frontier.column} is {kind.simpleString()}; it must be an "
                "integer, an array of integers, or a frontier as text (includeFrontier gives one)"
            )
