"""How streams and segments look: as tables for people, as plain data for programs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headrace.catalog.streams import NO_TIME_US, Segment, Stream
from headrace.cli.output import Cell, table
from headrace.cli.policies import described, size_text

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


def stream_data(stream: Stream) -> dict[str, Any]:
    """A stream for programs."""
    return {
        "name": stream.name,
        "subjects": stream.config.subjects,
        "key_tokens": stream.config.key_tokens,
        "partitions": stream.config.partitions,
        "retention": msgspec.to_builtins(stream.config.retention),
        "scaling": msgspec.to_builtins(stream.config.scaling),
        "created": time_text(stream.created_us),
        "events": sum(segment.events for segment in stream.segments),
        "bytes": sum(segment.retained_bytes for segment in stream.segments),
        "segments": [_segment_data(segment) for segment in stream.segments],
    }


def _segment_data(segment: Segment) -> dict[str, Any]:
    return {
        "segment": segment.number,
        "range": [segment.range_lo, segment.range_hi],
        "tail": segment.tail,
        "head": segment.head,
        "events": segment.events,
        "bytes": segment.retained_bytes,
        "newest": None if segment.max_ts_us == NO_TIME_US else time_text(segment.max_ts_us),
        "created": time_text(segment.created_us),
        "sealed": None if segment.sealed_us is None else time_text(segment.sealed_us),
        "predecessors": segment.predecessors,
        "successors": segment.successors,
    }


def scaled_data(name: str, done: Scaled) -> dict[str, Any]:
    """A scaling for programs."""
    return {"stream": name, "sealed": done.sealed, "opened": done.opened, "reason": done.reason}


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


def consumer(group: GroupView) -> dict[str, Any]:
    """A group that consumes a stream, for programs: its lag in this stream alone."""
    from headrace.groups.lag import total

    # A group of this stream alone counts what its units do not: the source of a work queue.
    lag = group.lag if group.stream else total(group.group, group.kind, group.units)
    return {
        "group": group.group,
        "kind": group.kind,
        "lag_events": lag.events,
        "lag_bytes": lag.bytes,
        "lag_seconds": lag.seconds,
        "exact": lag.exact,
    }


def consumers_table(groups: Iterable[GroupView]) -> Table:
    """One line for each group that consumes a stream."""
    rows = []
    for group in groups:
        found = consumer(group)
        most = "" if found["exact"] else "≤ "
        rows.append(
            (
                group.group,
                group.kind,
                f"{most}{found['lag_events']:,}",
                size_text(found["lag_bytes"]),
                f"{found['lag_seconds']:,.1f}",
            )
        )
    return table(("consumer", "kind", ">events behind", ">bytes", ">seconds"), rows)
