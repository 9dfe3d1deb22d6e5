"""``headrace find``: where a key lies, who consumes it, and what became of its last events."""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import App
from rich.markup import escape
from rich.table import Table

from headrace.cli.options import NONE, Options
from headrace.cli.output import table
from headrace.cli.read import printable
from headrace.groups.operations.find_key import SCAN_EVENTS, FoundKey
from headrace.groups.operations.find_key import find_key as operation

app = App(name="find", help_epilogue="")


@app.default
def find(
    key: str,
    /,
    *,
    stream: str | None = None,
    scan_events: int = SCAN_EVENTS,
    options: Options = NONE,
) -> None:
    """Find a key: its segments, its units in every group with their owners, and its last events.

    Example: `headrace find customer-42 --stream orders`

    Parameters
    ----------
    key
        The key of events; for events without one, their subject.
    stream
        Only in this stream.
    scan_events
        How many of the latest events of a segment to look at.
    """
    with options.open() as log:
        found = operation(log, key, stream=stream, scan_events=scan_events)
    none = (
        f"no event of key {escape(printable(key))} among the last {scan_events:,} of its segments; "
        "look further with --scan-events"
    )
    groups = [_units(found)] if found.units else ["no group consumes it"]
    options.show(found, _segments(found), *groups, _events(found) if found.events else none)


def _segments(found: FoundKey) -> Table:
    return table(
        ("segment", "key", ">first", ">head", ">found"),
        (
            (
                f"{each.stream}/{each.segment}",
                "lives here" if each.lives else "lived here",
                each.tail,
                each.head,
                each.found_events,
            )
            for each in found.segments
        ),
    )


def _units(found: FoundKey) -> Table:
    return table(
        (
            "group",
            "unit",
            "member",
            "runs in",
            ">token",
            ">floor",
            "unacked",
            "in flight",
            "refused",
            "dead",
        ),
        (
            (
                each.group,
                each.unit,
                each.member or "nobody",
                each.instance or "nobody",
                str(each.token),
                each.floor,
                _few(each.unacked),
                "its process did not tell" if each.in_flight is None else _few(each.in_flight),
                _few([f"{offset} ({attempts}x)" for offset, attempts in each.refused]),
                _few(each.dead),
            )
            for each in found.units
        ),
    )


def _events(found: FoundKey) -> Table:
    return table(
        ("time (UTC)", "subject", "place", ">bytes"),
        (
            (
                each.published_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                printable(each.subject),
                f"{each.stream}/{each.segment}:{each.offset}",
                each.size_bytes,
            )
            for each in found.events
        ),
    )


def _few(items: Sequence[object]) -> str:
    more = len(items) - 8
    return ", ".join(map(str, items[:8])) + (f" and {more} more" if more > 0 else "")
