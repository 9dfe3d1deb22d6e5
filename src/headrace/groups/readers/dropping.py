"""Reader groups and the deletion of streams: who reads one, and letting go of it by force."""

from __future__ import annotations

from headrace.catalog import Tx, reader_groups
from headrace.catalog.records import left_out
from headrace.catalog.streams import Stream, removable
from headrace.groups import decisions
from headrace.groups.readers import names
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime import record, streams
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.readers.runtime.transaction import Committed, GroupCommit
from headrace.log.log import Log


def reading(tx: Tx, stream: Stream) -> list[str]:
    """The reader groups that read a stream; what one reads that is damaged cannot be told."""
    found = []
    for row in reader_groups.all_rows(tx):
        with left_out():
            if any(each.id == stream.id for each in names.decode(row).streams):
                found.append(row.name)
    return found


def drop_stream(log: Log, stream: str) -> None:
    """Let every reader group that reads a stream drop it."""
    found = log.catalog.read(lambda tx: removable(tx, stream), snapshot=True)
    for group in log.catalog.read(lambda tx: reading(tx, found)):
        _drop(log, ReaderGroupName(group), found)


def _drop(log: Log, name: ReaderGroupName, stream: Stream) -> None:
    made: list[Committed] = []

    def run(tx: Tx) -> None:
        made.clear()
        commit = GroupCommit(tx, name, StampedReplica(name.group), made)
        if commit.record.stream_id(stream.name) == stream.id:
            streams.drop(commit, [stream.name])
            record.put(commit, made)

    log.catalog.write(run, locks=[reader_groups.lock(name.group), *decisions.locks(str(name))])
