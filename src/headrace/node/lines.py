"""Lines of a look for somebody: what the scope lets through, with rates and trends."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.catalog.streams import Stream
from headrace.groups.findings import moment
from headrace.groups.shapes import Finding, GroupView
from headrace.node.access.roles import Who
from headrace.node.history import GROUP, STREAM_FIGURES, History
from headrace.node.shapes import GroupLine, Look, StreamLine


def stream_line(look: Look, history: History, stream: Stream, who: Who) -> StreamLine:
    """A stream in a line."""
    newest_us = max((segment.max_ts_us for segment in stream.segments), default=-1)
    consuming = consumers_of(look, stream.name, who)
    return StreamLine(
        stream=stream.name,
        subjects=stream.config.subjects,
        segments_open=len(stream.open_segments),
        segments_sealed=len(stream.segments) - len(stream.open_segments),
        retained_events=sum(segment.events for segment in stream.segments),
        retained_bytes=sum(segment.retained_bytes for segment in stream.segments),
        appended_events=sum(segment.head for segment in stream.segments),
        rate_events_per_s=history.rates.get((STREAM_FIGURES, stream.name)),
        newest_at=moment(newest_us) if newest_us >= 0 else None,
        groups=tuple(each.group for each in consuming),
        lag_events_max=max((each.lag.events for each in consuming), default=0),
        epochs=stream.config.epochs is not None,
        trend=history.trend(STREAM_FIGURES, stream.name, look.seen_us / 1e6),
    )


def consumers_of(look: Look, stream: str, who: Who) -> list[GroupView]:
    """The groups of a stream that somebody sees."""
    found = [look.groups[name] for name in look.consumers.get(stream, ())]
    return [each for each in found if who.sees_group(each, look)]


def group_line(look: Look, history: History, group: GroupView) -> GroupLine:
    """A group in a line."""
    person = [each.finding for each in group.findings if each.needs_person]
    other = [each.finding for each in group.findings if not each.needs_person]
    return GroupLine(
        group=group.group,
        kind=group.kind,
        streams=tuple(dict.fromkeys([*group.streams, *([group.stream] if group.stream else ())])),
        filter=group.filter,
        members_active=group.members_active,
        members_wanted=group.members_wanted,
        leader=group.leader,
        units=len(group.units),
        units_unowned=sum(unit.state == "unowned" for unit in group.units),
        lag_events=group.lag.events,
        lag_bytes=group.lag.bytes,
        lag_seconds=round(group.lag.seconds, 3),
        exact=group.lag.exact,
        acked_per_s=history.rates.get((GROUP, group.group)),
        dead_letters=look.letters.get(group.group, 0),
        findings=tuple(dict.fromkeys([*person, *other])),
        well=not person,
        trend=history.trend(GROUP, group.group, look.seen_us / 1e6),
    )


def seen_streams(look: Look, who: Who) -> list[Stream]:
    return [stream for stream in look.streams.values() if who.sees_stream(stream)]


def seen_groups(look: Look, who: Who) -> list[GroupView]:
    return [group for group in look.groups.values() if who.sees_group(group, look)]


def seen_findings(look: Look, who: Who) -> tuple[Finding, ...]:
    """Findings about what somebody sees."""
    if not who.scoped:
        return look.findings
    names = {stream.name for stream in seen_streams(look, who)}
    names |= {group.group for group in seen_groups(look, who)}
    return tuple(each for each in look.findings if each.about in names)


def worst_first(groups: Iterable[GroupView]) -> list[GroupView]:
    """What needs a person, then what is furthest behind."""
    return sorted(
        groups,
        key=lambda each: (
            not any(one.needs_person for one in each.findings),
            -each.lag.seconds,
            each.group,
        ),
    )
