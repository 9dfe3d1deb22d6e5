"""Making reader groups and removing them; each is one transaction.

What a group begins with: a record that names its streams by their ids, a first snapshot of its
state at a revision above every token that its name ever had, and a row of progress for every
segment that lies behind or within its start.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from headrace.catalog import Tx, claims, entries, leases, reader_groups, spark_readers, streams
from headrace.catalog import progress as stored
from headrace.catalog.records import left_out
from headrace.catalog.streams import Stream
from headrace.errors import (
    InvalidInputError,
    InvalidPositionError,
    ReaderGroupExistsError,
    ReadersOnlineError,
    UnreadableRecordError,
)
from headrace.groups import decisions, homes
from headrace.groups.decisions import Decision, What
from headrace.groups.letter_names import stream_of
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join
from headrace.groups.readers import names, places
from headrace.groups.readers.core import cuts
from headrace.groups.readers.core.records import encode_state
from headrace.groups.readers.core.segments import END, Cut
from headrace.groups.readers.core.settings import GroupConfig, Retain
from headrace.groups.readers.names import ReaderGroupName, ReaderGroupRecord
from headrace.groups.readers.positions import offsets_of
from headrace.groups.readers.runtime import retention
from headrace.groups.readers.runtime.moment import GroupMoment, Map
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.readers.runtime.resets import check_kept
from headrace.log import internal
from headrace.log.log import Log
from headrace.subjects import check_filter, overlaps

STREAMS_MAX = 1000


def group_config(
    *,
    retain: str,
    checkpoint_every_s: float | None,
    checkpoints_kept: int,
    checkpoints_outstanding: int,
) -> GroupConfig:
    """The config of a group as people give it."""
    try:
        kept = Retain(retain)
    except ValueError:
        known = ", ".join(repr(each.value) for each in Retain)
        raise InvalidInputError(f"retain is {retain!r}; it has to be one of {known}") from None
    every_s = 0 if checkpoint_every_s is None else checkpoint_every_s
    if isinstance(every_s, bool) or not isinstance(every_s, int | float) or not 0 <= every_s < 1e8:
        raise InvalidInputError(
            f"checkpoint_every_s is {checkpoint_every_s!r}; it has to be a number of seconds"
        )
    return GroupConfig(
        checkpoints_outstanding_max=checkpoints_outstanding,
        checkpoints_kept_max=checkpoints_kept,
        retain=kept,
        checkpoint_every_ms=round(every_s * 1000),
    )


def stream_names(given: object) -> list[str]:
    """Names of streams, from whatever was given for them."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidInputError(f"streams is {given!r}; it has to be a list of names")
    wanted = list(given)
    for name in wanted:
        if not isinstance(name, str):
            raise InvalidInputError(f"streams holds {name!r}; it has to be a list of names")
    return wanted


def require_streams(log: Log, given: Iterable[str]) -> list[Stream]:
    """The streams that a group is to read, each once, none of them a group's own."""
    wanted = list(given)
    if not 1 <= len(wanted) <= STREAMS_MAX:
        raise InvalidInputError(
            f"{len(wanted)} streams are given; a reader group reads 1 to {STREAMS_MAX}"
        )
    twice = sorted({name for name in wanted if wanted.count(name) > 1})
    if twice:
        raise InvalidInputError(f"stream {twice[0]!r} is given twice")
    found = []
    for name in wanted:
        stream = log.stream(name)
        internal.refuse(stream, "read by a reader group")
        found.append(stream)
    return found


def create(
    log: Log,
    group: str,
    *,
    given: Iterable[str],
    start: object,
    end: object | None,
    filter: str | None,
    config: GroupConfig,
) -> ReaderGroupRecord:
    """Make a group; making it again in the same way changes nothing."""
    name = ReaderGroupName(group)
    read = require_streams(log, given)
    if filter is not None:
        _check_filter(filter, read)
    wanted = ReaderGroupRecord(
        id=0,
        streams=places.ids_of(read),
        start=places.described(start),
        filter=filter,
        end="" if end is None else places.described(end),
    )

    def made(tx: Tx) -> ReaderGroupRecord | None:
        row = reader_groups.get(tx, group)
        return None if row is None or row.config is None else _same(tx, row, wanted, config)

    # One that is there stays, though its start may be no place by now.
    if (there := log.catalog.read(made, snapshot=True)) is not None:
        return there
    begin = places.cut_at(log, read, start)
    stop = None if end is None else places.cut_at(log, read, end)
    wanted = msgspec.structs.replace(wanted, begin=offsets_of(begin))

    def run(tx: Tx) -> ReaderGroupRecord:
        if (there := made(tx)) is not None:
            return there
        revision = next_revision(tx, name)
        record = msgspec.structs.replace(wanted, id=revision, created_us=tx.now_us())
        put_new(GroupMoment(tx, name, record), begin, stop, config)
        return record

    locks = [reader_groups.lock(group), streams.LOCK_ALL, *decisions.locks(str(name))]
    return log.catalog.write(run, locks=locks)


def next_revision(tx: Tx, name: ReaderGroupName) -> int:
    """The first revision of a new group: above every token that its name ever had."""
    row = reader_groups.get(tx, name.group)
    return 1 + max(0 if row is None else row.revision, claims.top(tx, name.key))


def _check_filter(filter: str, read: Iterable[Stream]) -> None:
    check_filter(filter)
    subjects = [subject for stream in read for subject in stream.config.subjects]
    if not any(overlaps(filter, subject) for subject in subjects):
        raise InvalidInputError(
            f"filter {filter!r} matches nothing that these streams capture: {', '.join(subjects)}"
        )


def put_new(moment: GroupMoment, begin: Cut, stop: Cut | None, config: GroupConfig) -> None:
    """Store a new group that begins at a cut."""
    tx, name, record = moment.tx, moment.name, moment.record
    found = moment.map()
    state = cuts.begin_at(begin, found.graph, config, end_cut=stop)
    state.revision = record.id
    check_streams(name.group, (stream.name for stream in record.streams), begin)
    check_kept(name.group, begin, found)
    check_heads(begin, found, "start")
    check_heads(stop or {}, found, "end")
    data = names.encode(name.group, record)
    reader_groups.create(tx, name.group, data, encode_state(state), record.id)
    floors = found.floors(begin, state.future)
    join(tx, name.key, {found.extents[s].id: Progress(at) for s, at in floors.items()})
    retention.keep(moment, state)
    listed = ", ".join(stream.name for stream in record.streams)
    reason = f"a reader group on {listed}, from {record.start}"
    decisions.record(tx, str(name), [Decision(what=What.CONFIGURED, reason=reason)])


def check_streams(group: str, read: Iterable[str], cut: Cut) -> None:
    """Refuse a cut that leaves out a stream: all of it would be passed over."""
    named = {segment.stream for segment in cut}
    for stream in read:
        if stream not in named:
            raise InvalidPositionError(
                f"reader group {group!r}: the place says nothing of stream {stream!r}; give it one "
                "as well"
            )


def check_heads(cut: Cut, found: Map, what: str) -> None:
    """Refuse offsets that no event has had yet, and the end of what has none."""
    extents = found.extents
    for segment, offset in cut.items():
        if offset == END and segment in extents and not extents[segment].sealed:
            raise InvalidInputError(
                f"{what}: {segment} has no end yet; its head is {extents[segment].head}"
            )
        if segment in extents and offset > extents[segment].head:
            raise InvalidInputError(
                f"{what}: {segment} has no offset {offset}; its head is {extents[segment].head}"
            )


def _same(
    tx: Tx, row: reader_groups.ReaderGroupRow, wanted: ReaderGroupRecord, config: GroupConfig
) -> ReaderGroupRecord:
    found = names.decode(row)
    replica = StampedReplica(row.name)
    replica.catch_up(tx, row)
    for what, there, here in (
        ("streams", found.streams, wanted.streams),
        ("filter", found.filter, wanted.filter),
        ("start", found.start, wanted.start),
        ("end", found.end, wanted.end),
        ("config", replica.state.config, config),
    ):
        if there != here:
            raise ReaderGroupExistsError(row.name, what)
    return found


def get(log: Log, group: str) -> ReaderGroupRecord:
    """The record of a group."""
    return log.catalog.read(lambda tx: names.require(tx, ReaderGroupName(group).group)[1])


def list_groups(log: Log) -> list[tuple[str, ReaderGroupRecord]]:
    """All groups by name."""
    rows = log.catalog.read(names.readable_rows)
    found = []
    for row in rows:
        with left_out():
            found.append((row.name, names.decode(row)))
    return found


def forget(tx: Tx, name: ReaderGroupName) -> None:
    """Nothing is left of a group that nobody reads any more, but for its dead letters."""
    claims.retire(tx, name.key)
    stored.forget(tx, name.key)
    stored.forget(tx, name.kept)
    reader_groups.delete(tx, name.group)
    spark_readers.forget_group(tx, name.group)


def delete(log: Log, group: str, *, force: bool = True) -> None:
    """Delete a group with its progress, checkpoints and dead letters; readers are told."""
    name = ReaderGroupName(group)
    dead = stream_of(name.key)
    letters = log.catalog.read(lambda tx: streams.id_of(tx, dead))

    def run(tx: Tx) -> None:
        with suppress(UnreadableRecordError):  # which goes all the same
            names.require(tx, group)
        alive = [lease.name for lease in leases.beginning_with(tx, name.leases)]
        if alive and not force:
            raise ReadersOnlineError(group, [each.removeprefix(name.leases) for each in alive])
        for lease in alive:
            leases.fence(tx, lease)
        forget(tx, name)
        internal.delete(tx, dead)
        decisions.forget(tx, str(name))
        homes.deleted_here(tx, name.key)

    locks = [
        reader_groups.lock(group),
        streams.LOCK_ALL,
        entries.lock(homes.GROUPS_BUCKET),
        *decisions.locks(str(name)),
    ]
    if letters is not None:
        locks.append(streams.lock(letters))
    log.catalog.write(run, locks=locks)
    log.routes.forget(dead)
