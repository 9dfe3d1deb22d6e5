"""What the node answers: one line for a stream, one for a group, and all of it at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from headrace.catalog.streams import Stream
from headrace.groups import lag
from headrace.groups.decisions import Decision
from headrace.groups.findings import moment
from headrace.groups.shapes import Finding, GroupView
from headrace.groups.shared.sessions import SessionInfo
from headrace.groups.status import ChoreLine
from headrace.spark.records import PipelineStatus


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The catalog as the observer saw it; shared by all who ask."""

    number: int
    seen_us: int
    """By the catalog's clock."""
    streams: Mapping[str, Stream]
    """Those that people made."""
    groups: Mapping[str, GroupView]
    units_us: Mapping[str, int]
    """When the units of a group were as they stand there, if that is not now."""
    consumers: Mapping[str, tuple[str, ...]]
    """The groups of each stream."""
    findings: tuple[Finding, ...]
    pipeline: PipelineStatus
    sessions: tuple[SessionInfo, ...]
    chores: tuple[ChoreLine, ...]
    letters: Mapping[str, int]
    """Dead letters by group."""
    epochs: tuple[str, ...]
    """Streams that are published by epochs."""
    counts: Mapping[str, int]
    """The number of each group's last decision."""
    catalog_bytes: int
    cpu_s: float
    """What the look cost."""

    def whole(self, name: str) -> GroupView | None:
        """A group with its units as old as they are."""
        view, made_us = self.groups.get(name), self.units_us.get(name)
        if view is None or made_us is None:
            return view
        return msgspec.structs.replace(view, units=lag.aged(view.units, self.seen_us - made_us))


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in a line."""

    stream: str
    subjects: tuple[str, ...]
    segments_open: int
    segments_sealed: int
    retained_events: int
    retained_bytes: int
    appended_events: int
    """Since it was made."""
    rate_events_per_s: float | None
    newest_at: datetime | None
    groups: tuple[str, ...]
    """Who consumes it."""
    lag_events_max: int
    """Of the group that is furthest behind."""
    epochs: bool
    trend: tuple[float, ...] = ()
    """Events a second in the last ten minutes."""


class GroupLine(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a line."""

    group: str
    kind: str
    streams: tuple[str, ...]
    filter: str | None
    members_active: int
    members_wanted: int
    leader: str | None
    units: int
    units_unowned: int
    lag_events: int
    lag_bytes: int
    lag_seconds: float
    exact: bool
    acked_per_s: float | None
    dead_letters: int
    findings: tuple[str, ...]
    """In a word each; those that need a person first."""
    well: bool
    trend: tuple[float, ...] = ()
    """Its lag in events in the last ten minutes."""


class DecisionLine(
    msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}
):
    """A decision, as the console shows it."""

    group: str
    number: int
    at: datetime
    what: str
    source: str
    target: str
    instance: str
    units: str
    unit_count: int
    token: int
    reason: str
    cause: int
    took_ms: int | None


class SegmentTile(msgspec.Struct, frozen=True, kw_only=True):
    """A segment on the map: time to the right, key space downwards."""

    segment: int
    opened_at: datetime
    sealed_at: datetime | None
    key_from: float
    """Where its part of the key space begins: 0 to 1."""
    key_to: float
    events: int
    """Since it was opened."""
    retained_events: int
    retained_bytes: int
    tail: int
    head: int
    predecessors: tuple[int, ...]
    successors: tuple[int, ...]


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the pipeline."""

    job: str
    kind: str
    target: str
    state: str
    since_at: datetime
    starts: int
    events: int
    rate_per_s: float
    lag_events: int | None
    failures: int
    due_at: datetime | None
    last_error: str | None
    last_error_at: datetime | None
    note: str


class PipelineView(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs the jobs that move data in bulk, and how they do."""

    led: bool
    leader: str | None
    host: str | None
    pid: int | None
    master: str | None
    leads_since_at: datetime | None
    wanted: bool
    jobs: tuple[JobLine, ...]


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session of a worker."""

    session: str
    instance: str | None
    subscriptions: tuple[str, ...]
    token: int
    expires_at: datetime | None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in a page."""

    look: int
    seen_at: datetime
    look_age_s: float
    away: str | None
    """Why the catalog cannot be read, if it cannot."""
    well: bool
    findings: tuple[Finding, ...]
    streams: tuple[StreamLine, ...]
    groups: tuple[GroupLine, ...]
    groups_count: int
    streams_count: int
    decisions: tuple[DecisionLine, ...]
    pipeline: PipelineView
    sessions_running: int
    sessions_count: int
    chores: tuple[ChoreLine, ...]
    epochs: tuple[str, ...]


def decision_line(one: Decision) -> DecisionLine:
    """A decision for people and programs outside."""
    from headrace.groups.decisions import units_text

    return DecisionLine(
        group=one.group,
        number=one.number,
        at=moment(one.at_us),
        what=one.what.value,
        source=one.source,
        target=one.target,
        instance=one.instance,
        units=units_text(one.units),
        unit_count=one.unit_count,
        token=one.token,
        reason=one.reason,
        cause=one.cause,
        took_ms=one.took_ms,
    )


def tiles(stream: Stream) -> tuple[SegmentTile, ...]:
    """The segments of a stream as they lie on the map."""
    space = float(1 << 32)
    return tuple(
        SegmentTile(
            segment=each.number,
            opened_at=moment(each.created_us),
            sealed_at=None if each.sealed_us is None else moment(each.sealed_us),
            key_from=each.range_lo / space,
            key_to=each.range_hi / space,
            events=each.head,
            retained_events=each.events,
            retained_bytes=each.retained_bytes,
            tail=each.tail,
            head=each.head,
            predecessors=each.predecessors,
            successors=each.successors,
        )
        for each in stream.segments
    )


def revision(config: msgspec.Struct) -> str:
    """What a change of the settings of a stream or a group is based on."""
    import hashlib

    return hashlib.sha256(msgspec.json.encode(config)).hexdigest()[:16]


def session_view(one: SessionInfo) -> SessionView:
    """A session for people and programs outside."""
    return SessionView(
        session=one.record.name,
        instance=one.node,
        subscriptions=tuple(each.text for each in one.record.subscriptions),
        token=one.token,
        expires_at=None if one.expires_us is None else moment(one.expires_us),
    )


def pipeline_view(found: PipelineStatus, *, wanted: bool) -> PipelineView:
    """The pipeline for people and programs outside."""
    head = found.supervisor
    led = head is not None and found.led
    return PipelineView(
        led=found.led,
        leader=head.owner if head and led else None,
        host=head.host if head and led else None,
        pid=head.pid if head and led else None,
        master=head.master if head and led else None,
        leads_since_at=moment(head.leads_since_us) if head and led else None,
        wanted=wanted,
        jobs=tuple(
            JobLine(
                job=job.name,
                kind=str(getattr(job.kind, "value", job.kind)),
                target=job.target,
                state=job.state,
                since_at=moment(job.since_us),
                starts=job.starts,
                events=job.events,
                rate_per_s=job.rate_per_s,
                lag_events=job.lag_events,
                failures=job.failures,
                due_at=None if job.due_us is None else moment(job.due_us),
                last_error=job.last_error,
                last_error_at=None if job.last_error_us is None else moment(job.last_error_us),
                note=job.note,
            )
            for job in found.jobs
        ),
    )
