"""Which jobs a catalog asks for, and how each is made.

Elastic groups need their stream partitioned, streams with a compaction policy need compaction, and
the other regions of linked streams are copied from.
"""

from __future__ import annotations

from headrace.errors import InvalidNameError
from headrace.groups.partitioned.names import ELASTIC_BUCKET, GroupName
from headrace.log import compact_policy
from headrace.log.log import Log
from headrace.regions.records import LINKS_BUCKET, links
from headrace.spark.connection import Connection
from headrace.spark.jobs import COMPACTION, PARTITION, REPLICATION, Job, JobSpec

BUCKETS = (ELASTIC_BUCKET, compact_policy.BUCKET, LINKS_BUCKET)
"""The buckets whose entries ask for jobs."""


def wanted_jobs(log: Log) -> list[JobSpec]:
    """The jobs that should run now."""
    names = {stream.name for stream in log.streams(internal=True)}
    found = []
    for entry in log.catalog.entries.list(compact_policy.BUCKET):
        if entry.key in names and log.store is not None:
            found.append(JobSpec(COMPACTION, entry.key, (entry.value or b"").decode()))
    for entry in log.catalog.entries.list(ELASTIC_BUCKET):
        # The job looks at its group's configuration itself, with every round.
        if _stream_of(entry.key) in names:
            found.append(JobSpec(PARTITION, entry.key))
    linked = log.catalog.read(links).values()
    sources = {member.region for link in linked for member in link.members}
    # The job looks at its links itself, with every round.
    found += [JobSpec(REPLICATION, source) for source in sources]
    return sorted(found)


def _stream_of(key: str) -> str | None:
    try:
        return GroupName.of_key(key).stream
    except InvalidNameError:
        return None


def make_job(connection: Connection, spec: JobSpec) -> Job:
    """The job that a spec asks for."""
    if spec.kind == COMPACTION:
        from headrace.spark.compact import CompactionJob

        return CompactionJob(connection, spec.target)
    if spec.kind == REPLICATION:
        from headrace.spark.replicate import ReplicateJob

        return ReplicateJob(connection, spec.target)
    from headrace.spark.partition import PartitionJob

    return PartitionJob(
        connection.catalog,
        connection.store,
        GroupName.of_key(spec.target),
        store_options=dict(connection.store_options),
    )
