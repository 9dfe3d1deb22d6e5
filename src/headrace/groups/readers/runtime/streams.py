"""The streams of a group change: some are added, some dropped, and some are gone.

The record of a group names its streams by id, and changes in the transaction in which its state
does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.catalog import progress as stored
from headrace.catalog import reader_groups, streams
from headrace.groups.progress import Progress
from headrace.groups.progress.store import SeekPlace, seek
from headrace.groups.readers.core.updates import AddStreams, DropStreams
from headrace.groups.readers.names import GroupStream, unit_of
from headrace.groups.readers.runtime.moment import GroupMoment
from headrace.groups.readers.runtime.transaction import Committed, GroupCommit


def put_floors(moment: GroupMoment, update: AddStreams) -> None:
    """Give every segment of streams that are new to a group its place; see ``Map.floors``."""
    cut = {position.segment: position.offset for position in update.cut}
    found = moment.map({segment.stream for segment in cut})
    floors = found.floors(cut, (wait.segment for wait in update.waits))
    places = [
        SeekPlace(unit_of(segment), found.extents[segment].id, Progress(floor))
        for segment, floor in floors.items()
    ]
    seek(moment.tx, moment.name.key, places)


def add(commit: GroupCommit, added: Sequence[GroupStream], update: AddStreams) -> Committed:
    """Read more streams, whose ids are known by now."""
    record = commit.record
    begin = (
        *record.begin,
        *((p.segment.stream, p.segment.number, p.offset) for p in update.cut),
    )
    streams_ = (*record.streams, *added)
    commit.configure(msgspec.structs.replace(record, streams=streams_, begin=begin))
    put_floors(commit.moment, update)
    return commit.put(update)


def drop(commit: GroupCommit, names: Iterable[str]) -> Committed:
    """Have done with streams; what the group knew of them is forgotten."""
    gone = list(names)
    before = commit.record
    committed = commit.put(DropStreams(tuple(gone)))
    for stream in before.streams:
        if stream.name in gone:
            stored.unsubscribe(commit.tx, stream.id, commit.name.key)
            stored.unsubscribe(commit.tx, stream.id, commit.name.kept)
            reader_groups.forget_stream(commit.tx, commit.name.group, stream.id)
    left = tuple(stream for stream in before.streams if stream.name not in gone)
    commit.configure(msgspec.structs.replace(before, streams=left))
    return committed


def drop_gone(commit: GroupCommit) -> Committed | None:
    """Drop the streams that were deleted, or made anew, from under the group."""
    gone = [
        stream.name
        for stream in commit.record.streams
        if streams.name_of(commit.tx, stream.id) != stream.name
    ]
    return drop(commit, gone) if gone else None
