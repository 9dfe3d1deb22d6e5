"""``headrace group seek``: put a group elsewhere in what it reads."""

from __future__ import annotations

import re
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from headrace.cli import values
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, table
from headrace.groups.operations import seek as operation
from headrace.groups.operations.seek import Sought
from headrace.groups.operations.seek_places import To

SHOWN_MAX = 40
_AT = re.compile(r"([A-Za-z0-9_-]{1,64}/)?([0-9]{1,9}):([0-9]{1,18})")


def seek(
    name: str,
    /,
    *,
    to: str,
    units: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Put a group of any kind elsewhere; members that run go on from there.

    What is in hand meanwhile does not count, and comes again.

    * `headrace group seek orders/billing --to earliest --dry-run`
    * `headrace group seek '$share/audit/orders.>' --to 2026-01-01T10:30Z`
    * `headrace group seek billing --to 0:120,1:98`
    * `headrace group seek session/worker-1/orders.eu.> --to 15m`

    Parameters
    ----------
    name
        STREAM/GROUP, $share/GROUP/FILTER, reader/GROUP, session/NAME/FILTER, or a plain name.
    to
        earliest, latest, a time, 15m for 15 minutes ago, or positions (0:120,orders/1:98).
    units
        Only these segments, comma-separated: 0,1 or orders/0,orders/1.
    dry_run
        Only say how many events would come again, and how many would be skipped.
    """
    place = _place(to)
    chosen = None if units is None else values.words(units)
    if chosen is not None and not isinstance(place, dict) and not chosen:
        raise UsageError("--units: name at least one segment, like 0,1")
    if chosen is not None and isinstance(place, dict):
        raise UsageError("--units: positions say already which segments are meant; leave it out")
    with options.open() as log:
        done = operation.seek(log, name, place, units=chosen, dry_run=dry_run)
    _show(done, options)


def _show(done: Sought, options: Options) -> None:
    dry_run = done.dry_run
    most = "" if done.exact else "up to "
    would = "would come" if dry_run else "come"
    rows = (
        (each.unit, each.member, each.from_offset, each.to_offset, each.again_events,
         each.skipped_events)
        for each in done.units[:SHOWN_MAX]
    )  # fmt: skip
    heads = ("segment", "member", ">from", ">to", ">again", ">skipped")
    more = len(done.units) - SHOWN_MAX
    options.show(
        done,
        f"group [bold]{escape(done.group)}[/bold] {'would be' if dry_run else 'is'} put to "
        f"{escape(done.to)}: {most}{counted(done.again_events, 'event')} {would} again, "
        f"{most}{done.skipped_events:,} {'would be' if dry_run else 'are'} skipped",
        table(heads, rows),
        *((f"and {more:,} more",) if more > 0 else ()),
    )


def _place(text: str) -> To:
    parts = [part.strip() for part in text.split(",")]
    if not _AT.fullmatch(parts[0]):
        found = values.place(text, "--to")
        if isinstance(found, int):
            raise UsageError(f"--to {text}: say in which segment: 0:{text}")
        return found  # type: ignore[return-value]
    positions: dict[str | int, int] = {}
    for part in parts:
        at = _AT.fullmatch(part)
        if at is None:
            raise UsageError(f"--to: {part!r} is not a position like 0:120 or orders/0:120")
        unit: str | int = f"{at[1]}{at[2]}" if at[1] else int(at[2])
        if unit in positions:
            raise UsageError(f"--to: segment {unit} is given twice")
        positions[unit] = int(at[3])
    return positions
