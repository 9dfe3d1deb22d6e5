"""Reader groups on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.markup import escape

from headrace.cli.output import counted, table
from headrace.cli.screens import time_text
from headrace.groups.decisions import units_text
from headrace.groups.readers.info import (
    ReaderExplanation,
    ReaderGroupInfo,
    ReaderGroupLag,
    ReaderGroupSummary,
)

SEGMENTS_SHOWN = 12


def groups_table(found: Sequence[ReaderGroupSummary]) -> RenderableType:
    """All groups."""
    if not found:
        return "no reader groups; make one with: headrace reader create NAME --streams STREAM"
    rows = [
        (
            each.group,
            ", ".join(each.streams),
            each.readers,
            each.segments,
            each.unassigned,
            each.last_checkpoint or "none",
        )
        for each in found
    ]
    headings = ("group", "streams", ">readers", ">segments", ">unassigned", "last checkpoint")
    return table(headings, rows)


def _segments(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SEGMENTS_SHOWN])
    left = len(names) - SEGMENTS_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown or "nothing"


def info_lines(info: ReaderGroupInfo) -> list[RenderableType]:
    """One group."""
    ends = f", ends at {info.end}" if info.end else ""
    lines: list[RenderableType] = [
        f"reader group [bold]{escape(info.group)}[/bold]: reads {escape(', '.join(info.streams))} "
        f"from {escape(info.start)}{escape(ends)}; retains {info.retain}",
    ]
    if info.end_of_data:
        lines.append("it has come to its end")
    if info.readers:
        rows = [
            (
                each.reader,
                len(each.segments),
                _segments(each.segments),
                f"{each.lag_ms / 1000:.1f} s",
                ", ".join(each.owes) or "none",
                each.instance,
            )
            for each in info.readers
        ]
        headings = ("reader", ">segments", "reads", "behind", "owes checkpoints", "runs in")
        lines.append(table(headings, rows))
    elif not info.waits:
        lines.append("no reader is online")
    lines += _waits(info.waits)
    if info.unassigned and not info.waits:
        lines.append(f"nobody reads: {escape(_segments(info.unassigned))}")
    for segment, before in list(info.waiting.items())[:SEGMENTS_SHOWN]:
        lines.append(f"{escape(segment)} waits for {escape(_segments(before))}")
    for each in info.checkpoints:
        blocked = f", waits for {', '.join(each.blockers)}" if each.blockers else ""
        lines.append(f"checkpoint {escape(repr(each.name))}: {each.status}{escape(blocked)}")
    return lines


def _waits(why: str) -> list[RenderableType]:
    return [f"readers wait in this region: {escape(why)}"] if why else []


def lag_lines(lag: ReaderGroupLag) -> list[RenderableType]:
    """How far a group is behind."""
    rows = [
        (each.reader or "nobody", each.segments, each.events, each.bytes, f"{each.seconds:.1f}")
        for each in lag.readers
        if each.segments and (each.reader or each.events)
    ]
    behind = [
        (each.segment, each.reader or "nobody", each.events, each.bytes, f"{each.seconds:.1f}")
        for each in lag.segments
        if each.events
    ]
    total = (
        f"reader group [bold]{escape(lag.group)}[/bold]: {'' if lag.exact else 'up to '}"
        f"{counted(lag.events, 'event')} behind, "
        f"{lag.bytes:,} bytes, {lag.seconds:.1f} s"
    )
    lines: list[RenderableType] = [total, *_waits(lag.waits)]
    if rows:
        lines.append(table(("reader", ">segments", ">events", ">bytes", ">seconds"), rows))
    if behind:
        lines.append(table(("segment", "reader", ">events", ">bytes", ">seconds"), behind))
    return lines


def explain_lines(found: ReaderExplanation) -> list[RenderableType]:
    """What a group is doing and why."""
    lines: list[RenderableType] = [escape(line) for line in found.lines]
    rows = [
        (
            time_text(each.at_us // 1_000_000 * 1_000_000),
            each.what.value,
            each.source or each.target,
            units_text(each.units),
            each.reason,
        )
        for each in found.decisions
    ]
    if rows:
        lines.append(table(("when", "what", "who", "segments", "why"), rows))
    return lines
