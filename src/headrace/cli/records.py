"""Events as JSON objects: what ``read --json`` prints is what ``publish --json-lines`` takes.

Bytes that are UTF-8 stand as text, others in base64: ``value`` or ``value_base64``.  ``headers``
is an object; a header that is not text is ``{"base64": …}``, and a repeated name has a list.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.cli.screens import time_text
from headrace.errors import InvalidEventError

if TYPE_CHECKING:
    from headrace.log.events import Event
    from headrace.log.plain import Row

FIELDS = {"subject", "key", "value", "value_base64", "headers", "timestamp", "epoch"}
IGNORED = {"stream", "segment", "offset", "origin"}
"""Fields that ``read`` prints and ``publish`` ignores, since an event gets a new place.  An origin
that is not null is refused: whoever publishes must decide to leave it out."""


class EventShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event, with the names of its columns: a line of it can be published again.

    Fields that are null are left out.
    """

    segment: int | None
    """Null where the event is not stored."""
    offset: int | None
    timestamp: datetime
    subject: str
    key: str | None = None
    value: str | None = None
    value_base64: str | None = None
    """In place of ``value`` where that is not text."""
    headers: dict[str, Any] | None = None
    """A value that is no text is ``{"base64": …}``, a repeated name has a list."""
    epoch: tuple[int, ...] | None = None
    origin: Origin | None = None


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where an event of a linked stream was published."""

    region: str
    sequence: int


class DeliveredEvent(EventShape, frozen=True, kw_only=True, omit_defaults=True):
    """An event that a member was delivered."""

    stream: str
    attempt: int
    """1 at first."""


class SkippedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged batch that ``read --skip-damaged`` stepped over: ``{"skipped": …}``."""

    stream: str
    segment: int
    start: int
    """Its first offset."""
    end: int
    """The offset after its last one."""
    reason: str


def shown(row: Row) -> dict[str, Any]:
    """A row of a read as a JSON object."""
    found: dict[str, Any] = {
        "segment": row.segment,
        "offset": row.offset,
        "timestamp": time_text(row.timestamp_us),
        "subject": row.subject,
    }
    if row.key is not None:
        found["key"] = row.key
    try:
        found["value"] = row.value.decode()
    except UnicodeDecodeError:
        found["value_base64"] = base64.b64encode(row.value).decode()
    if row.headers:
        found["headers"] = _headers_shown(row.headers)
    if row.epoch is not None:
        found["epoch"] = row.epoch
    if row.origin is not None:
        region, sequence = row.origin
        found["origin"] = {"region": region, "sequence": sequence}
    return found


def _headers_shown(headers: tuple[tuple[str, bytes], ...]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for key, value in headers:
        text: Any
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = {"base64": base64.b64encode(value).decode()}
        found.setdefault(key, []).append(text)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def parsed(line: bytes, number: int) -> Event:
    """The event of one JSON line."""
    from headrace.log.events import ORIGIN_REFUSED, Event

    at = f"line {number}"
    try:
        data = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidEventError(f"{at} is not JSON: {error}") from None
    except RecursionError:
        raise InvalidEventError(f"{at} is nested too deeply") from None
    if not isinstance(data, dict):
        raise InvalidEventError(f'{at} is not an object like {{"subject": …, "value": …}}')
    unknown = sorted(set(data) - FIELDS - IGNORED)
    if unknown:
        raise InvalidEventError(
            f"{at} has unknown fields {', '.join(unknown)}; an event has "
            f"{', '.join(sorted(FIELDS))}"
        )
    if data.get("origin") is not None:
        raise InvalidEventError(f"{at}: {ORIGIN_REFUSED}")
    subject = data.get("subject")
    if not isinstance(subject, str):
        raise InvalidEventError(f"{at} has no subject")
    key = data.get("key")
    if key is not None and not isinstance(key, str):
        raise InvalidEventError(f"{at}: the key must be text")
    return Event(
        subject=subject,
        value=_value(data, at),
        key=key,
        headers=_headers(data.get("headers"), at),
        timestamp=_timestamp(data.get("timestamp"), at),
        epoch=_epoch(data.get("epoch"), at),
    )


def _value(data: dict[str, Any], at: str) -> bytes:
    if ("value" in data) == ("value_base64" in data):
        raise InvalidEventError(f"{at} must have either a value or a value_base64")
    if "value_base64" in data:
        return _from_base64(data["value_base64"], f"{at}: value_base64")
    value = data["value"]
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _from_base64(text: Any, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidEventError(f"{what} is not base64") from None


def _headers(data: Any, at: str) -> list[tuple[str, bytes | str]] | None:
    if data is None:
        return None
    if not isinstance(data, dict):
        raise InvalidEventError(f"{at}: headers must be an object of names and values")
    found: list[tuple[str, bytes | str]] = []
    for name, given in data.items():
        for value in given if isinstance(given, list) else [given]:
            match value:
                case str():
                    found.append((name, value))
                case {"base64": text, **rest} if not rest:
                    found.append((name, _from_base64(text, f"{at}: header {name!r}")))
                case _:
                    raise InvalidEventError(
                        f'{at}: header {name!r} must be text, or {{"base64": …}}'
                    )
    return found


def _timestamp(data: Any, at: str) -> datetime | None:
    if data is None:
        return None
    try:
        found = datetime.fromisoformat(data)
    except (TypeError, ValueError):
        raise InvalidEventError(
            f"{at}: the timestamp must be a time like 2013-07-04T10:30:00Z"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _epoch(data: Any, at: str) -> tuple[int, ...] | None:
    if data is None:
        return None
    if not isinstance(data, list) or not all(type(part) is int for part in data):
        raise InvalidEventError(f"{at}: the epoch must be a list of integers")
    return tuple(data)
