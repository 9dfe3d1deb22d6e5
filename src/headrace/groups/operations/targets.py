"""A group as the operations see it: who of it reads which stream, under which names.

The kinds of groups differ in how they share their units, and keep all else alike: *readers* have
a place in every segment of the streams that they read, in rows of progress, and own it by claims.

=========== ============================================= =======================================
kind        readers                                       read
=========== ============================================= =======================================
static      the group, or the share of each member        its stream
elastic     the group; the partition job that fills for it its work queue; its stream
shared      the group                                     every stream that its filter can match
private     the subscription                              every stream that its filter can match
reader      the group                                     its streams, up to its end if it has one
=========== ============================================= =======================================

A private subscription has no group's name; here it is ``session/NAME/FILTER``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog import Tx, streams
from headrace.catalog.streams import Segment, Stream
from headrace.errors import (
    InvalidGroupConfigError,
    UnknownStreamError,
    UnknownSubscriptionError,
    UnreadableRecordError,
)
from headrace.groups import names
from headrace.groups.letter_names import stream_of
from headrace.groups.names import PARTITIONED, SHARED, FullName
from headrace.groups.partitioned.core.config import ElasticGroupConfig
from headrace.groups.partitioned.entry import require
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.units import (
    kind_of,
    layout_of,
    progress_names,
    read_stream,
)
from headrace.groups.progress import Progress
from headrace.groups.progress.store import load_all
from headrace.groups.readers import names as readers
from headrace.groups.readers.names import FAMILY, ReaderGroupName
from headrace.groups.shared import properties, sessions, starts
from headrace.groups.shared.runtime.state import claim_unit
from headrace.subjects import check_name, parse_filter

if TYPE_CHECKING:
    from headrace.groups.readers.core.state import ReaderGroupState

SESSION = "session/"


class GroupReader(msgspec.Struct, frozen=True):
    """Who has a place of its own in a stream."""

    reader: str
    """The name of its rows of progress."""
    stream: str
    member: str = ""
    """Whose share it is, where members read shares of every segment."""
    fills: bool = False
    """It is the partition job, and reads for the work queue."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One group, or one private subscription."""

    name: str
    """As people write it."""
    kind: str
    key: str
    """As the catalog has it."""
    incarnation: str
    """Differs when the group was deleted and made again."""
    filter: str
    """What it consumes of its streams; empty for all."""
    readers: tuple[GroupReader, ...]
    partitioned: GroupName | None = None
    reading: ReaderGroupName | None = None
    """Reader groups only: the name of the group."""
    session: str = ""
    """Private subscriptions only: the session that it belongs to."""

    @property
    def dead_letters(self) -> str:
        """The stream of what it gave up on."""
        return stream_of(self.key)

    def claim_of(self, stream: str, number: int) -> str:
        """The name of a segment in the claims of the group."""
        if self.partitioned is not None:
            return str(number)
        if self.reading is not None:
            return f"{stream}/{number}"
        return claim_unit(self.key, f"{stream}/{number}")

    def unit(self, stream: str, number: int) -> str:
        """The name of a segment as people see it."""
        return str(number) if self.partitioned is not None else f"{stream}/{number}"


class Spot(msgspec.Struct, frozen=True):
    """A reader in one segment, and how far it has come."""

    reader: GroupReader
    stream: Stream
    segment: Segment
    progress: Progress


def find(tx: Tx, text: str) -> Target:
    """The group, or the private subscription, that a person means."""
    if text.startswith(SESSION):
        return _private(tx, text)
    return of_name(tx, names.resolve(tx, text))


def of_name(tx: Tx, name: FullName) -> Target:
    """The group of a name."""
    if name.family == PARTITIONED:
        return _partitioned(tx, name)
    return _shared(tx, name) if name.family == SHARED else _of_readers(tx, name)


def all_targets(tx: Tx) -> Iterator[Target]:
    """Every group and private subscription that can be read."""
    for name in names.all_names(tx):
        try:
            found = of_name(tx, name)
        except (InvalidGroupConfigError, UnknownStreamError, UnreadableRecordError):
            continue  # of a group without its stream, or with a broken record, nothing can be said
        yield found
    for info in sessions.all_sessions(tx):
        for each in info.record.subscriptions:
            if not each.shared:
                yield _of_session(tx, info.record, each.filter)


def spots(tx: Tx, target: Target) -> list[Spot]:
    """Where each reader of a group is, in every segment of what it reads."""
    found = []
    known: dict[str, Stream | None] = {}
    state = None if target.reading is None else state_of(tx, target.reading)
    for reader in target.readers:
        if reader.stream not in known:
            known[reader.stream] = streams.get(tx, reader.stream)
        stream = known[reader.stream]
        if stream is None:
            continue
        rows = load_all(tx, reader.reader, [segment.id for segment in stream.segments])
        read = stream.segments if state is None else _within_end(state, stream)
        found += [
            Spot(reader, stream, segment, rows.get(segment.id, Progress(0))) for segment in read
        ]
    return found


def state_of(tx: Tx, name: ReaderGroupName) -> ReaderGroupState:
    """What the readers of a group have agreed on."""
    from headrace.groups.readers.runtime.replicas import StampedReplica

    row, _ = readers.require(tx, name.group)
    replica = StampedReplica(name.group)
    replica.catch_up(tx, row)
    return replica.state


def _within_end(state: ReaderGroupState, stream: Stream) -> list[Segment]:
    from headrace.groups.readers.view import within_end

    return within_end(state, stream)


def _partitioned(tx: Tx, name: FullName) -> Target:
    group = name.partitioned
    info = require(tx, group, None)
    config = info.config
    source = streams.require(tx, group.stream)
    layout = layout_of(config, source.config)
    reads = read_stream(group, config)
    shares = {group.share(member): member for member in config.assignment()}
    readers = [
        GroupReader(reader, reads, shares.get(reader, ""))
        for reader in progress_names(group, config, layout)
    ]
    if isinstance(config, ElasticGroupConfig):
        readers.append(GroupReader(group.partition_job, group.stream, fills=True))
    # The entry of a static group never changes; that of an elastic one does, its queue does not.
    life = streams.id_of(tx, reads) if reads != source.name else info.revision
    return Target(
        name=str(name),
        kind=kind_of(config).value,
        key=group.key,
        incarnation=f"{source.id}:{life}",
        filter=config.filter,
        readers=tuple(readers),
        partitioned=group,
    )


def _shared(tx: Tx, name: FullName) -> Target:
    found = properties.require(tx, name.key)
    return Target(
        name=str(name),
        kind="shared",
        key=name.key,
        incarnation=str(found.created_us),
        filter=found.filter,
        readers=_matching(tx, name.key, found.filter),
    )


def _of_readers(tx: Tx, name: FullName) -> Target:
    _, record = readers.require(tx, name.group)
    there = [each for each in record.streams if streams.id_of(tx, each.name) == each.id]
    return Target(
        name=str(name),
        kind=FAMILY,
        key=name.key,
        incarnation=str(record.id),
        filter=record.filter or "",
        readers=tuple(GroupReader(name.key, each.name) for each in there),
        reading=ReaderGroupName(name.group),
    )


def _private(tx: Tx, text: str) -> Target:
    session, slash, filter = text.removeprefix(SESSION).partition("/")
    if not slash:
        raise UnknownSubscriptionError(f"{text!r}: write session/NAME/FILTER")
    record = sessions.require(tx, check_name(session, "session name")).record
    wanted = parse_filter(filter)
    own = [each.filter for each in record.subscriptions if not each.shared]
    if wanted not in own:
        listed = f"it has {', '.join(own)}" if own else "it has none of its own"
        raise UnknownSubscriptionError(
            f"session {session!r} is not subscribed to {wanted!r}; {listed}"
        )
    return _of_session(tx, record, wanted)


def _of_session(tx: Tx, record: sessions.SessionRecord, filter: str) -> Target:
    key = sessions.private_group(record.name, filter)
    return Target(
        name=f"{SESSION}{record.name}/{filter}",
        kind="private",
        session=record.name,
        key=key,
        incarnation=str(record.created_us),
        filter=filter,
        readers=_matching(tx, key, filter),
    )


def _matching(tx: Tx, key: str, filter: str) -> tuple[GroupReader, ...]:
    return tuple(GroupReader(key, stream.name) for stream in starts.matching(tx, filter))
