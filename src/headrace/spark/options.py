"""The options of a Spark read: names as users of Kafka's source know them, checked before use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from headrace.errors import InvalidOptionError
from headrace.log.events import to_us
from headrace.spark.connection import CONNECTION_OPTIONS, Connection, connection_of, lower
from headrace.subjects import parse_filter

WHICH = ("subscribe", "subscribePattern", "assign", "group")
STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "maxEpochsPerTrigger",
    "subscriptionName",
)
EPOCHS = (
    "startingFrontier",
    "endingFrontier",
    "maxEpochsPerTrigger",
    "subscriptionName",
    "includeFrontier",
)
"""Options of a read of whole epochs."""
NOT_FOR_EPOCHS = {
    "subscribePattern": "name the streams with subscribe",
    "assign": "an epoch is whole over all segments",
    "startingOffsets": "use startingFrontier",
    "startingTimestamp": "use startingFrontier",
    "startingOffsetsByTimestamp": "use startingFrontier",
    "endingOffsets": "use endingFrontier",
    "endingTimestamp": "use endingFrontier",
    "endingOffsetsByTimestamp": "use endingFrontier",
    "minOffsetsPerTrigger": "an epoch is given when it is complete",
    "maxTriggerDelay": "an epoch is given when it is complete",
    "maxRecordsPerPartition": "use minPartitions",
}
STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
OPTIONS = (
    *CONNECTION_OPTIONS,
    *WHICH,
    "reader",
    "stallAfter",
    *STARTS,
    *ENDS,
    *STREAM_ONLY,
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "subject",
    "epochs",
    *EPOCHS,
)
INTERNAL = ("spans",)
"""Options that a native read gives to its source."""
NOT_OF_GROUP = (
    *STARTS,
    *ENDS,
    "subject",
    "epochs",
    *INTERNAL,
)
"""What a reader group has decided for all its readers."""
BATCH_ONLY = (*ENDS, "endingFrontier", *INTERNAL)
Spans = dict[str, dict[int, tuple[tuple[int, int], ...]]]
KAFKA_LATEST, KAFKA_EARLIEST = -1, -2
TRIGGER_DELAY_MAX_S = 15 * 60.0

T = TypeVar("T")


class Times(msgspec.Struct, frozen=True):
    """A place by times, in microseconds: the first event at or after each."""

    at_us: dict[str, dict[int, int]]


Spot = str | int | dict[str, dict[int, int]] | Times
"""``earliest``, ``latest``, a time in microseconds, {stream: {segment: offset}}, or by times."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, and how."""

    connection: Connection
    subscribe: tuple[str, ...] = ()
    pattern: str | None = None
    assign: dict[str, tuple[int, ...]] = {}
    start: Spot | None = None
    end: Spot | None = None
    rows_max: int | None = None
    rows_min: int | None = None
    bytes_max: int | None = None
    trigger_delay_s: float = TRIGGER_DELAY_MAX_S
    partitions_min: int = 1
    partition_rows_max: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    subject: str | None = None
    spans: Spans | None = None
    group: str | None = None
    reader: str | None = None
    stall_after_s: float = 0
    epochs: bool = False
    frontier_start: str | None = None
    frontier_end: str | None = None
    epochs_max: int | None = None
    subscription: str | None = None
    include_frontier: bool = False
    given: frozenset[str] = frozenset()

    def wait_for_more(self, events: int, waited_s: float) -> bool:
        """Whether a batch of this number of events is put off (``minOffsetsPerTrigger``)."""
        least = self.rows_min
        return least is not None and events < least and waited_s < self.trigger_delay_s

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        """An error if any of these options was given."""
        found = [name for name in names if name.lower() in self.given]
        if found:
            raise InvalidOptionError(f"option {found[0]!r} {why}")


def is_read(options: Mapping[str, str]) -> bool:
    """Whether these options say what to read."""
    return any(name.lower() in options for name in WHICH)


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Checked options; the names' case does not matter."""
    given = lower(options, OPTIONS, hidden=INTERNAL)
    which = [name for name in WHICH if name.lower() in given]
    if len(which) != 1:
        raise InvalidOptionError(
            f"give one of the options {', '.join(map(repr, WHICH))}"
            + (f", not {' and '.join(map(repr, which))}" if which else "")
        )
    _check_group(given)
    _one_of(given, STARTS)
    _one_of(given, ENDS)
    epochs = _whole_epochs(given)
    subject, spans = given.get("subject"), given.get("spans")
    return SourceOptions(
        connection=connection_of(given),
        subscribe=_names(given),
        pattern=_pattern(given),
        assign=_assign(given),
        start=_spot(given, STARTS),
        end=_spot(given, ENDS),
        rows_max=_count(given, "maxOffsetsPerTrigger"),
        rows_min=_count(given, "minOffsetsPerTrigger"),
        bytes_max=_count(given, "maxBytesPerTrigger"),
        trigger_delay_s=_duration_s(given, "maxTriggerDelay", TRIGGER_DELAY_MAX_S),
        partitions_min=_count(given, "minPartitions") or 1,
        partition_rows_max=_count(given, "maxRecordsPerPartition"),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        include_headers=_flag(given, "includeHeaders", False),
        subject=None if subject is None else parse_filter(subject),
        spans=None if spans is None else _json(spans, Spans, "spans is for native reads"),
        group=given.get("group"),
        reader=given.get("reader"),
        stall_after_s=_duration_s(given, "stallAfter", 0),
        epochs=epochs,
        frontier_start=given.get("startingfrontier"),
        frontier_end=given.get("endingfrontier"),
        epochs_max=_count(given, "maxEpochsPerTrigger"),
        subscription=given.get("subscriptionname"),
        include_frontier=_flag(given, "includeFrontier", False),
        given=frozenset(given),
    )


def _check_group(given: Mapping[str, str]) -> None:
    if "group" not in given:
        if "reader" in given:
            raise InvalidOptionError("option 'reader' is the name of a reader in a 'group'")
        if "stallafter" in given:
            raise InvalidOptionError("option 'stallAfter' is for queries that read for a 'group'")
        return
    for name in NOT_OF_GROUP:
        if name.lower() in given:
            raise InvalidOptionError(
                f"option {name!r} cannot be given with 'group': where a reader group begins and "
                "what it reads was said when it was made, and holds for all its readers"
            )


def _whole_epochs(given: Mapping[str, str]) -> bool:
    """Whether whole epochs are wanted; an error names an option of the other way of reading."""
    text = given.get("epochs")
    if text is None:
        for name in EPOCHS:
            if name.lower() in given:
                raise InvalidOptionError(f"option {name!r} is for reads with epochs=whole")
        return False
    if text.lower() != "whole":
        raise InvalidOptionError(
            f"epochs={text!r}: give 'whole', or leave it out to read rows as they come"
        )
    for name, instead in NOT_FOR_EPOCHS.items():
        if name.lower() in given:
            raise InvalidOptionError(f"option {name!r} is not for epochs=whole: {instead}")
    return True


def _one_of(given: Mapping[str, str], names: tuple[str, ...]) -> None:
    found = [name for name in names if name.lower() in given]
    if len(found) > 1:
        raise InvalidOptionError(f"give {' or '.join(map(repr, found))}, not both")


def _names(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("subscribe")
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise InvalidOptionError(f"subscribe={text!r}: give streams' names, with commas between")
    return names


def _pattern(given: Mapping[str, str]) -> str | None:
    text = given.get("subscribepattern")
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidOptionError(
                f"subscribePattern={text!r} is not a regular expression: {error}"
            ) from error
    return text


def _assign(given: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    if "assign" not in given:
        return {}
    shown = 'assign: give JSON such as {"orders": [0, 1]}'
    found = _json(given["assign"], dict[str, tuple[int, ...]], shown)
    if not found or not all(found.values()):
        raise InvalidOptionError(f"{shown}, with at least one segment")
    return found


def _spot(given: Mapping[str, str], names: tuple[str, ...]) -> Spot | None:
    offsets, time, times = names
    if time.lower() in given:
        return _time_us(given[time.lower()], time)
    if times.lower() in given:
        return _times(given[times.lower()], times)
    text = given.get(offsets.lower())
    if text is None:
        return None
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    return _json(
        text,
        dict[str, dict[int, int]],
        f"{offsets}={text!r}: give 'earliest', 'latest' or JSON such as "
        '{"orders": {"0": 17, "1": -2}} (-2 is earliest, -1 latest)',
    )


def _times(text: str, name: str) -> Times:
    shown = f'{name}: give JSON such as {{"orders": {{"0": 1767225600000}}}}, in milliseconds'
    found = _json(text, dict[str, dict[int, int | str]], shown)
    return Times(
        {
            stream: {number: _time_us(str(time), name) for number, time in each.items()}
            for stream, each in found.items()
        }
    )


def _time_us(text: str, name: str) -> int:
    try:
        return int(text) * 1000
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOptionError(
            f"{name}={text!r}: give milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z"
        ) from error
    return to_us(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 0 < count < 1 << 62:
        raise InvalidOptionError(f"{name}={text!r}: give a whole number above 0")
    return count


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidOptionError(f"{name}={text!r}: give true or false")
    return text.lower() == "true"


_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def _duration_s(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", text)
    if found is None:
        raise InvalidOptionError(f"{name}={text!r}: give a time such as 500ms, 30s, 15m or 2h")
    return float(found[1]) * _UNITS_S[found[2]]


def _json(text: str, type_: type[T], hint: str) -> T:
    try:
        return msgspec.convert(json.loads(text), type_, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidOptionError(f"{hint} ({error})") from error
