"""Places in a stream, as a word in an address or in a request."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime

from headrace.catalog.streams import Stream
from headrace.errors import InvalidInputError
from headrace.log.query import Place

LAST_MAX = 100_000
_PLACES = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*")


def is_place(text: str) -> bool:
    """Whether a text is ``SEGMENT:OFFSET,…``."""
    return _PLACES.fullmatch(text) is not None


def place_of(text: str, stream: Stream | None = None, what: str = "start") -> Place:
    """``earliest``, ``latest``, ``last:100``, a time with zone, or ``SEGMENT:OFFSET,…``."""
    if text in ("earliest", "latest"):
        return text
    if text.startswith("last:") and stream is not None:
        return _last(text, stream)
    if is_place(text):
        pairs = [each.split(":") for each in text.split(",")]
        return {int(segment): int(offset) for segment, offset in pairs}
    at: datetime | None = None
    with suppress(ValueError):
        at = datetime.fromisoformat(text)
    if at is None or at.tzinfo is None:
        raise InvalidInputError(
            f"{what}={text[:80]!r}: give earliest, latest, last:100, a time with its zone "
            "(2026-11-17T14:03:00Z), or SEGMENT:OFFSET,…"
        )
    return at


def _last(text: str, stream: Stream) -> Place:
    count = text.removeprefix("last:")
    if not count.isdigit() or not 1 <= int(count) <= LAST_MAX:
        raise InvalidInputError(f"start={text[:40]!r}: give last:1 to last:{LAST_MAX}")
    segments = stream.open_segments or stream.segments
    share = -(-int(count) // max(1, len(segments)))
    return {each.number: max(each.tail, each.head - share) for each in segments}
