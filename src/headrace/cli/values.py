"""Text from a command line, as values; each refuses what it cannot take, and says what it takes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.cli.failures import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import Token

    from headrace.log.query import Place

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
}  # fmt: skip
_PLAIN = re.compile(r"\d+(?:\.\d+)?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,18}")
_POSITION = re.compile(rf"({_NUMBER.pattern}):({_NUMBER.pattern})")
_NUMBER_MAX = 10**18
_SECONDS_MAX = 2000 * 365 * 86_400
"""More seconds than that ago there was no calendar."""


def duration_s(text: str, option: str) -> float:
    """Seconds.

    >>> duration_s("90m", "--older-than"), duration_s("7d", "--retention-age")
    (5400.0, 604800.0)
    """
    seconds = _seconds(text)
    if seconds is None:
        raise UsageError(f"{option}: {text!r} is not a duration; write 30s, 15m, 2h, 7d or 4w")
    return seconds


def some_seconds(_: type, tokens: Sequence[Token]) -> float:
    """What an option takes that waits (a converter for Cyclopts): 30 is the same as 30s."""
    text = tokens[0].value
    seconds = _seconds(f"{text}s" if _PLAIN.fullmatch(text.strip()) else text)
    if seconds is None:
        raise ValueError(f"{text!r} is not a duration; write 30, 30s, 15m or 2h")
    return seconds


def _seconds(text: str) -> float | None:
    found = _DURATION.fullmatch(text.strip().lower())
    seconds = None if found is None else float(found[1]) * _SECONDS[found[2]]
    return None if seconds is None or seconds > _SECONDS_MAX else seconds


def size_bytes(text: str, option: str) -> int:
    """Bytes.

    >>> size_bytes("10GB", "--retention-bytes"), size_bytes("1KiB", "--scale-bytes")
    (10000000000, 1024)
    """
    found = _SIZE.fullmatch(text.strip())
    unit = None if found is None else _BYTES.get(found[2].lower())
    if found is None or unit is None or float(found[1]) * unit >= _NUMBER_MAX:
        raise UsageError(f"{option}: {text!r} is not a size; write 500000, 10MB, 2GiB or 1TB")
    return int(float(found[1]) * unit)


def numbers(text: str, option: str) -> list[int]:
    """Whole numbers between commas.

    >>> numbers("0, 3", "--merge")
    [0, 3]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise UsageError(f"{option}: {text!r} is not a list of whole numbers like 0,1")
    return [int(part) for part in parts]


def key_ranges(text: str, option: str) -> list[tuple[int, int]]:
    """Ranges of key hashes, low-high, the high end not included.

    >>> key_ranges("0-1000,0x3e8-4294967296", "--ranges")
    [(0, 1000), (1000, 4294967296)]
    """
    found = []
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        try:
            found.append((int(low, 0), int(high, 0)))
        except ValueError:
            raise UsageError(
                f"{option}: {part.strip()!r} is not a range of key hashes like 0-2147483648 (the "
                "high end is not included)"
            ) from None
    return found


def words(text: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def regions(text: str, option: str) -> list[str]:
    """Names of regions between commas; nothing at all stands for none.

    >>> regions("us, ap", "--regions"), regions("", "--regions")
    (['us', 'ap'], [])
    """
    if text.strip() and not all(part.strip() for part in text.split(",")):
        raise UsageError(f"{option}: {text!r} names an empty region; write us,ap, or '' for none")
    return words(text)


def moment(text: str, option: str) -> datetime:
    """A time, or how long ago; a time without a zone is UTC.

    >>> moment("2013-07-04", "--from").isoformat()
    '2013-07-04T00:00:00+00:00'
    """
    ago_s = _seconds(text)
    if ago_s is not None:
        return datetime.now(UTC) - timedelta(seconds=ago_s)
    try:
        parsed = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"{option}: {text!r} is not a time; write 2013-07-04, 2013-07-04T10:30Z, or 15m for "
            "15 minutes ago"
        ) from None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def positions(text: str, option: str) -> dict[int, int]:
    """Offsets by segment.

    >>> positions("0:120,3:7", "--from")
    {0: 120, 3: 7}
    """
    found: dict[int, int] = {}
    for part in text.split(","):
        position = _POSITION.fullmatch(part.strip())
        if position is None:
            raise UsageError(f"{option}: {part.strip()!r} is not a position like 0:120")
        if int(position[1]) in found:
            raise UsageError(f"{option}: segment {position[1]} is given twice")
        found[int(position[1])] = int(position[2])
    return found


def place(text: str, option: str) -> Place:
    """Anywhere in a stream: earliest, latest, a time, an offset or positions.

    >>> place("latest", "--from"), place("0:7", "--from"), place("12", "--from")
    ('latest', {0: 7}, 12)
    """
    text = text.strip()
    if text in ("earliest", "latest"):
        return text
    if _NUMBER.fullmatch(text):
        return int(text)
    if _POSITION.fullmatch(text.split(",")[0].strip()):
        return positions(text, option)
    try:
        return moment(text, option)
    except UsageError:
        raise UsageError(
            f"{option}: {text!r} is not a place; write earliest, latest, a time (2013-07-04, "
            "2013-07-04T10:30Z), 15m for 15 minutes ago, or positions (0:120,1:98)"
        ) from None


def pair(text: str, option: str) -> tuple[str, str]:
    """A name and a value.

    >>> pair("source=till 7", "--header")
    ('source', 'till 7')
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        given = (
            "an address" if "://" in text or "@" in text else repr(text)
        )  # which may hold a password
        raise UsageError(f"{option}: {given} is not name=value")
    return name, value
