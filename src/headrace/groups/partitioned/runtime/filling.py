"""Whether anybody fills the work queue of an elastic group.

The queue is filled by the partition job of the pipeline, which is another program.  Where none
runs, members wait for ever and nothing is wrong with any of them: so the group says it.  What is
known of the pipeline is its lease and what its supervisor wrote down about the group's job.
"""

from __future__ import annotations

import logging

import msgspec

from headrace.catalog import Tx, entries, leases, markers, streams
from headrace.catalog.records import Records
from headrace.errors import HeadraceError
from headrace.groups.partitioned.names import ELASTIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime.units import retained
from headrace.groups.progress.store import load_all
from headrace.host import Host

PIPELINE = "pipeline"
"""The lease of the supervisor that leads, and the bucket of what it wrote down."""
LOOK_S = 4.0
LOOK_S_MAX = 60.0

_log = logging.getLogger(__name__)


class JobNote(msgspec.Struct, frozen=True):
    """What matters here of what the supervisor wrote down about a job."""

    failures: int = 0
    last_error: str | None = None


class Filling(msgspec.Struct, frozen=True):
    """The way into a work queue, at one moment."""

    name: GroupName
    floors: tuple[int, ...]
    """How far each segment of the source was read."""
    behind: int
    """Events of the source that are not read yet."""
    led: bool
    """Whether a pipeline runs."""
    job: JobNote | None

    @property
    def finding(self) -> str:
        """What is wanting and what to do about it; nothing if all is well."""
        if not self.behind or (self.led and self.job is not None and not self.job.failures):
            return ""
        one = self.behind == 1
        what = (
            f"{self.behind:,} event{'' if one else 's'} of stream {self.name.stream!r} "
            f"{'is' if one else 'are'} not in the work queue of group {self.name.group!r}"
        )
        if not self.led:
            return f"{what}, and no pipeline runs to fill it; start one with: headrace pipeline"
        if self.job is None:
            return f"{what}: the pipeline has not begun with it; see: headrace pipeline status"
        return f"{what}: the job of the pipeline fails ({self.job.last_error})"


_notes = Records(JobNote, "the state of job")


def job_key(name: GroupName) -> str:
    """Where the supervisor writes down how the group's job is doing."""
    return f"job/partition/{name.key}"


def look(tx: Tx, name: GroupName) -> Filling | None:
    """How it stands; None if there is no such elastic group, or no stream."""
    config = entries.get(tx, ELASTIC_BUCKET, name.key)
    source = streams.get(tx, name.stream)
    if config is None or config.value is None or source is None:
        return None
    read = load_all(tx, name.partition_job)
    floors = [retained(read.get(segment.id), segment).floor for segment in source.segments]
    entry = entries.get(tx, PIPELINE, job_key(name))
    return Filling(
        name=name,
        floors=tuple(floors),
        behind=sum(
            markers.events_in(tx, segment, [(floor, segment.head)])
            for segment, floor in zip(source.segments, floors, strict=True)
        ),
        led=leases.get(tx, PIPELINE) is not None,
        job=_notes.decode_or(job_key(name), entry.value, None) if entry is not None else None,
    )


async def warn_if_nobody_fills(host: Host, name: GroupName) -> None:
    """Look now and then while the group is consumed here; say once that nothing will come.

    A queue that moves is filled by somebody, pipeline or not.
    """
    pause_s = LOOK_S
    before: Filling | None = None
    while True:
        try:
            found = await host.in_thread(
                host.log.catalog.read, lambda tx: look(tx, name), snapshot=True
            )
        except HeadraceError as error:
            _log.debug("group %s: %s", name.key, error)
        else:
            if found is None:
                return
            waited = before is not None and before.floors == found.floors and before.finding
            if waited and found.finding:
                _log.warning("%s", found.finding)
                return
            before = found
        await host.sleep(pause_s)
        pause_s = min(pause_s * 1.5, LOOK_S_MAX)
