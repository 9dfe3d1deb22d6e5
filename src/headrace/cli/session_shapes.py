"""The JSON of sessions, and of the pipeline."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from headrace.groups.findings import moment
from headrace.groups.shared.sessions import SessionInfo, Subscription

if TYPE_CHECKING:
    from headrace.spark.records import JobRecord, PipelineStatus, SupervisorRecord


class SessionShape(msgspec.Struct, frozen=True, kw_only=True):
    """A session of a worker."""

    session: str
    persistent: bool
    """Whether it is kept while nobody runs it."""
    expiry_ms: int
    """How long it is kept then."""
    created_at: datetime
    seen_at: datetime
    subscriptions: tuple[Subscription, ...]
    instance: str | None
    """The process that runs it; null if none does."""
    token: int
    expires_at: datetime | None
    """When it will be forgotten; null while it is run."""


class SupervisorShape(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor that leads the pipeline, or the last one that did."""

    instance: str
    host: str
    pid: int
    master: str
    elected_at: datetime
    seen_at: datetime
    stopped: bool


class JobShape(msgspec.Struct, frozen=True, kw_only=True):
    """A job as its supervisor last saw it."""

    job: str
    kind: str
    target: str
    state: str
    """``running``, ``stopping``, ``waiting`` (to be started again) or ``stopped``."""
    changed_at: datetime
    """Since when it is in that state."""
    starts: int
    rounds: int
    moved_events: int
    rate_events_per_s: float
    lag_events: int | None
    failures: int
    """In a row, since it last worked."""
    due_at: datetime | None
    """When it is started again."""
    last_error: str | None
    failed_at: datetime | None
    note: str
    seen_at: datetime


class PipelineShape(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a catalog's pipeline."""

    led: bool
    """Whether a supervisor leads now."""
    supervisor: SupervisorShape | None
    jobs: tuple[JobShape, ...]


def session_shape(info: SessionInfo) -> SessionShape:
    """A session for programs."""
    record = info.record
    return SessionShape(
        session=record.name,
        persistent=record.persistent,
        expiry_ms=record.expiry_ms,
        created_at=moment(record.created_us),
        seen_at=moment(record.seen_us),
        subscriptions=record.subscriptions,
        instance=info.node,
        token=info.token,
        expires_at=None if info.expires_us is None else moment(info.expires_us),
    )


def pipeline_shape(found: PipelineStatus) -> PipelineShape:
    """The pipeline for programs."""
    return PipelineShape(
        led=found.led,
        supervisor=None if found.supervisor is None else _supervisor(found.supervisor),
        jobs=tuple(job_shape(job) for job in found.jobs),
    )


def _supervisor(found: SupervisorRecord) -> SupervisorShape:
    return SupervisorShape(
        instance=found.owner,
        host=found.host,
        pid=found.pid,
        master=found.master,
        elected_at=moment(found.leads_since_us),
        seen_at=moment(found.updated_us),
        stopped=found.stopped,
    )


def job_shape(job: JobRecord) -> JobShape:
    """A job for programs."""
    return JobShape(
        job=job.name,
        kind=str(job.kind),
        target=job.target,
        state=job.state,
        changed_at=moment(job.since_us),
        starts=job.starts,
        rounds=job.rounds,
        moved_events=job.events,
        rate_events_per_s=job.rate_per_s,
        lag_events=job.lag_events,
        failures=job.failures,
        due_at=None if job.due_us is None else moment(job.due_us),
        last_error=job.last_error,
        failed_at=None if job.last_error_us is None else moment(job.last_error_us),
        note=job.note,
        seen_at=moment(job.updated_us),
    )
