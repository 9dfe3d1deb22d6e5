"""How streams and segments look: as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headrace.catalog.streams import NO_TIME_US, Segment, Stream
from headrace.cli.output import Cell, table
from headrace.cli.policies import described, size_text
from headrace.cli.stream_shapes import consumer

if TYPE_CHECKING:
    from headrace.groups.shapes import GroupView
    from headrace.log.log import Scaled


def time_text(us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC.

    >>> time_text(0)
    '1970-01-01T00:00:00Z'
    """
    moment = datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)
    return moment.isoformat().replace("+00:00", "Z")


def scaled_text(name: str, done: Scaled, *, dry_run: bool = False) -> str:
    """A scaling in words."""
    sealed = ", ".join(map(str, done.sealed))
    verb = "merge" if len(done.sealed) > 1 else "split"
    because = f" ({done.reason})" if done.reason else ""
    if dry_run:
        return f"stream [bold]{escape(name)}[/bold]: would {verb} {sealed}{because}"
    opened = ", ".join(map(str, done.opened))
    return f"stream [bold]{escape(name)}[/bold]: {sealed} → {opened}{because}"


def streams_table(streams: Iterable[Stream]) -> Table:
    """One line for each stream."""
    headings = ("stream", "subjects", ">segments", ">events", ">size", "newest event")
    rows: list[tuple[Cell, ...]] = []
    for stream in streams:
        newest = max((segment.max_ts_us for segment in stream.segments), default=NO_TIME_US)
        rows.append(
            (
                stream.name,
                ", ".join(stream.config.subjects),
                len(stream.open_segments),
                sum(segment.events for segment in stream.segments),
                size_text(sum(segment.retained_bytes for segment in stream.segments)),
                None if newest == NO_TIME_US else _short(newest),
            )
        )
    return table(headings, rows)


def stream_head(stream: Stream) -> str:
    """What a stream is, in a few lines."""
    tokens = stream.config.key_tokens
    key = f"subject tokens {', '.join(map(str, tokens))}" if tokens else "the whole subject"
    return (
        f"stream [bold]{escape(stream.name)}[/bold] captures "
        f"{escape(', '.join(stream.config.subjects))}\n"
        f"created {_short(stream.created_us)}; {described(stream.config)}\n"
        f"an event without a key is kept in order by {key}\n"
    )


def segments_table(stream: Stream) -> Table:
    """One line for each segment, with the split and merge edges."""
    rows = (
        (
            str(segment.number),
            f"{segment.range_lo:08x}-{segment.range_hi - 1:08x}",
            segment.tail,
            segment.head,
            segment.events,
            size_text(segment.retained_bytes),
            Text.from_markup(_state(segment)),
        )
        for segment in stream.segments
    )
    headings = (">segment", ">key hashes", ">tail", ">head", ">events", ">size", "state")
    return table(headings, rows, dim=[segment.sealed for segment in stream.segments])


def _state(segment: Segment) -> str:
    came = f"{', '.join(map(str, segment.predecessors))} → " if segment.predecessors else ""
    went = f" → {', '.join(map(str, segment.successors))}" if segment.successors else ""
    return f"{came}{'sealed' if segment.sealed else '[green]open[/green]'}{went}"


def _short(us: int) -> str:
    return time_text(us - us % 1_000_000).replace("T", " ")


def consumers_table(groups: Iterable[GroupView]) -> Table:
    """One line for each group that consumes a stream."""
    rows = []
    for group in groups:
        found = consumer(group)
        most = "" if found.exact else "≤ "
        rows.append(
            (
                group.group,
                group.kind,
                f"{most}{found.lag_events:,}",
                size_text(found.lag_bytes),
                f"{found.lag_seconds:,.1f}",
            )
        )
    return table(("consumer", "kind", ">events behind", ">bytes", ">seconds"), rows)
