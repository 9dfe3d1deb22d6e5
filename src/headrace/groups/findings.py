"""What can be said about groups of every kind that is not as it should be."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from headrace.groups.shapes import Finding, GroupLag

BEHIND_S = 900
"""A group that is further behind than this needs somebody to look at it."""

OF_LAG = ("behind", "lost_to_trimming")


def of_lag(lag: GroupLag, behind_s: float = BEHIND_S) -> list[Finding]:
    """What its lag says about a group."""
    found = []
    if lag.seconds > behind_s:
        found.append(
            Finding(
                finding="behind",
                about=lag.group,
                sentence=f"it is {time_words(lag.seconds)} behind: "
                f"{events_words(lag.events, exact=lag.exact)} not acked",
                next=f"see who consumes what: headrace group explain '{lag.group}'",
            )
        )
    if lag.lost_to_trimming:
        found.append(
            Finding(
                finding="lost_to_trimming",
                about=lag.group,
                sentence=f"up to {events_words(lag.lost_to_trimming)} trimmed before it had acked "
                "them: they are lost to it",
                next="keep what groups need: headrace stream set STREAM --retention groups",
            )
        )
    return found


def needs_person(findings: Iterable[Finding]) -> bool:
    """Whether one of them does."""
    return any(finding.needs_person for finding in findings)


def events_words(count: int, *, exact: bool = True) -> str:
    """A number of events in words."""
    text = "1 event" if count == 1 else f"{count:,} events"
    return text if exact else f"up to {text}"


def time_words(seconds: float) -> str:
    """A time in words.

    >>> time_words(7_260), time_words(42.4)
    ('2 h 1 min', '42 s')
    """
    whole = int(seconds)
    for size, unit, smaller, small in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def moment(us: int) -> datetime:
    """Microseconds since 1970 as a time."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)


def moment_words(us: int) -> str:
    """A time as people read it."""
    return f"{moment(us):%Y-%m-%d %H:%M:%S}Z"
