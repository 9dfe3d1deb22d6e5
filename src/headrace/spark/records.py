"""What a supervisor writes down for others to look at: entries of the bucket ``pipeline``.

One entry for the supervisor that leads, and one for each job.  They are for people and consoles:
no decision depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.catalog import Catalog, Tx, entries, leases
from headrace.catalog.records import Records
from headrace.errors import LeaseLost
from headrace.spark.jobs import Kind

BUCKET = "pipeline"
LEASE = "pipeline"
SUPERVISOR = "supervisor"
JOB = "job/"

ERROR_CHARS_MAX = 500


class SupervisorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor that leads, or the last one that did."""

    owner: str
    host: str
    pid: int
    master: str
    leads_since_us: int
    updated_us: int
    stopped: bool = False


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job as its supervisor last saw it."""

    name: str
    kind: Kind
    target: str
    state: str
    """``running``, ``stopping``, ``waiting`` (to be started again) or ``stopped``."""
    since_us: int
    starts: int = 1
    rounds: int = 0
    events: int = 0
    rate_per_s: float = 0.0
    lag_events: int | None = None
    failures: int = 0
    """In a row, since it last worked."""
    due_us: int | None = None
    """When it is started again."""
    last_error: str | None = None
    last_error_us: int | None = None
    note: str = ""
    updated_us: int = 0


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a catalog's pipeline; ``led`` is whether a supervisor leads now."""

    led: bool
    supervisor: SupervisorRecord | None
    jobs: tuple[JobRecord, ...]


_supervisors = Records(SupervisorRecord, "the pipeline's record")
_jobs = Records(JobRecord, "the pipeline's record")


def read_status(catalog: Catalog) -> PipelineStatus:
    """The status in the bucket; without a leader, no job is shown as running."""
    led = catalog.leases.get(LEASE) is not None
    found = catalog.entries.list(BUCKET)
    return status_of({each.key: each.value for each in found if each.value is not None}, led=led)


def status_of(stored: Mapping[str, bytes], *, led: bool) -> PipelineStatus:
    """The status that the entries of the bucket tell."""
    supervisor: SupervisorRecord | None = None
    jobs = []
    for key, value in stored.items():
        if key == SUPERVISOR:
            supervisor = _supervisors.decode_or(key, value, None)
        elif key.startswith(JOB):
            job = _jobs.decode_or(key, value, None)
            if job is not None:
                jobs.append(job if led else stopped(job))
    return PipelineStatus(led=led, supervisor=supervisor, jobs=tuple(jobs))


def stopped(job: JobRecord) -> JobRecord:
    """A job that nobody runs: it is due at no time, and has no rate."""
    return msgspec.structs.replace(job, state="stopped", due_us=None, rate_per_s=0.0)


def told(error: BaseException) -> str:
    """An error in a line or two, for an entry."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Spark puts the message of a Python worker below many lines of its own.
    own = [line for line in lines if line.startswith("headrace.errors.")]
    text = own[-1] if own else " ".join(lines[:2])
    return f"{type(error).__name__}: {text}"[:ERROR_CHARS_MAX]


def write(
    catalog: Catalog,
    token: int,
    supervisor: SupervisorRecord | None,
    jobs: list[JobRecord],
    gone: list[str],
) -> None:
    """Record what changed, in one transaction; raises LeaseLost when another leads by now."""

    def record(tx: Tx) -> None:
        held = leases.get(tx, LEASE)
        if held is None or held.token != token:
            raise LeaseLost(LEASE, token)
        if supervisor is not None:
            entries.put(tx, BUCKET, SUPERVISOR, _supervisors.encode(SUPERVISOR, supervisor))
        for job in jobs:
            entries.put(tx, BUCKET, f"{JOB}{job.name}", _jobs.encode(job.name, job))
        for name in gone:
            entries.delete(tx, BUCKET, f"{JOB}{name}")

    # A figure that a power failure takes back is no loss.
    catalog.write(record, locks=(entries.lock(BUCKET), leases.lock(LEASE)), sync=False)


def stored_jobs(catalog: Catalog) -> list[str]:
    """The names of jobs that have an entry."""
    found = catalog.entries.list(BUCKET)
    return [entry.key.removeprefix(JOB) for entry in found if entry.key.startswith(JOB)]
