"""What people do to a reader group: each is a transaction of :class:`GroupCommit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.catalog import Tx, entries, extents, reader_groups, streams
from headrace.catalog import progress as stored
from headrace.catalog.extents import Extent
from headrace.errors import InvalidInputError, NotRetainedByHandError
from headrace.groups import homes
from headrace.groups.progress import Progress
from headrace.groups.progress.store import SeekPlace, decode, join, seek
from headrace.groups.readers import admin, places
from headrace.groups.readers.admin import check_heads, check_streams
from headrace.groups.readers.core import cuts
from headrace.groups.readers.core.checkpoints import Checkpoint
from headrace.groups.readers.core.segments import END, Cut, SegmentId, Successor, positions
from headrace.groups.readers.core.settings import GroupConfig, Retain
from headrace.groups.readers.core.updates import (
    AddStreams,
    Configure,
    RemoveReader,
    ResetToCheckpoint,
)
from headrace.groups.readers.names import GroupStream, ReaderGroupName, unit_of
from headrace.groups.readers.positions import GroupCheckpoint, StreamCut, offsets_of
from headrace.groups.readers.runtime import retention
from headrace.groups.readers.runtime import streams as of_group
from headrace.groups.readers.runtime.moment import GroupMoment
from headrace.groups.readers.runtime.record import EVICTED
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.readers.runtime.resets import Exact, check_kept
from headrace.groups.readers.runtime.transaction import Committed, GroupCommit
from headrace.log.log import Log

PUT_OFFLINE = f"{EVICTED}somebody put it offline"


# --- cuts and checkpoints as values --------------------------------------------------------


def cut_value(log: Log, name: ReaderGroupName, read: Sequence[GroupStream], cut: Cut) -> StreamCut:
    """A cut to be kept."""
    return StreamCut(
        catalog=log.prefix, group=name.group, streams=tuple(read), offsets=offsets_of(cut)
    )


def cut_at_rest(log: Log, name: ReaderGroupName) -> StreamCut | None:
    """Where a group stands that has no reader online; None if it has: they are to be asked."""

    def look(tx: Tx) -> tuple[Sequence[GroupStream], Cut] | None:
        commit = GroupCommit(tx, name, StampedReplica(name.group))
        if commit.state.members:
            return None
        if commit.record.away:
            from headrace.groups.readers.runtime import elsewhere

            elsewhere.check_here(tx, name, "checkpoints and cuts are taken where it is at home")
            return commit.record.streams, elsewhere.standing(commit)[0]
        return commit.record.streams, dict(commit.state.unassigned)

    found = log.catalog.read(look, snapshot=True)
    return None if found is None else cut_value(log, name, *found)


def checkpoint_value(
    log: Log, name: ReaderGroupName, read: Sequence[GroupStream], taken: Checkpoint
) -> GroupCheckpoint:
    """A checkpoint to be kept, with what was acked above its offsets."""

    def look(tx: Tx) -> list[tuple[str, int, bytes]]:
        by_id: dict[int, SegmentId] = {}
        for stream in read:
            for number, key, *_ in extents.every(tx, stream.id):
                by_id[key] = SegmentId(stream.name, number)
        return [
            (by_id[row.segment_id].stream, by_id[row.segment_id].number, row.state)
            for row in reader_groups.kept(tx, name.group, taken.created)
            if row.segment_id in by_id
        ]

    exact = log.catalog.read(look, snapshot=True)
    waits = (Successor(s, tuple(sorted(p))) for s, p in sorted(taken.waits.items()))
    return GroupCheckpoint(
        catalog=log.prefix,
        group=name.group,
        streams=tuple(read),
        offsets=offsets_of(taken.positions),
        name=taken.name,
        created=taken.created,
        exact=tuple(exact),
        waits=tuple(waits),
    )


def streams_of(log: Log, read: Sequence[GroupStream]) -> list[streams.Stream]:
    """The streams of a group that are still there."""
    found = [log.stream(stream.name) for stream in read]
    return [each for each, stream in zip(found, read, strict=True) if each.id == stream.id]


def cut_of_place(log: Log, read: Sequence[GroupStream], place: object) -> dict[SegmentId, int]:
    """The cut that a place is in the streams of a group."""
    return places.cut_at(log, streams_of(log, read), place)


def streams_at(
    log: Log, given: Sequence[str], start: object
) -> tuple[tuple[GroupStream, ...], dict[SegmentId, int]]:
    """Streams that a group is to read as well, and where it is to begin in them."""
    read = admin.require_streams(log, given)
    return places.ids_of(read), places.cut_at(log, read, start)


def check_value(log: Log, read: Sequence[GroupStream], checkpoint: GroupCheckpoint) -> None:
    """Refuse a checkpoint that does not fit the streams of a group."""
    places.check_fits(log, checkpoint, streams_of(log, read))


# --- resets --------------------------------------------------------------------------------


def reset_to_cut(commit: GroupCommit, cut: Cut, exact: Exact | None = None) -> Committed:
    """Begin again at a cut."""
    found = commit.moment.map()
    wanted = dict(cut)
    _check_streams(commit, wanted)
    check_heads(wanted, found, "cut")
    check_kept(commit.name.group, wanted, found)
    return commit.put(cuts.reset_to(wanted, found.graph), exact)


def _check_streams(commit: GroupCommit, cut: Cut) -> None:
    """Refuse a cut that leaves out a stream that is there."""
    read = commit.record.streams
    here = (each.name for each in read if streams.id_of(commit.tx, each.name) == each.id)
    check_streams(commit.name.group, here, cut)


def reset_to_value(commit: GroupCommit, checkpoint: GroupCheckpoint) -> Committed:
    """Begin again at a checkpoint that was kept elsewhere, or is known here still."""
    known = commit.state.checkpoints.get(checkpoint.name)
    if known is not None and known.created == checkpoint.created and not known.pending:
        return commit.put(ResetToCheckpoint(checkpoint.name))
    read = {stream.name for stream in commit.record.streams}  # some were dropped since, perhaps
    cut = {segment: at for segment, at in checkpoint.cut.items() if segment.stream in read}
    return reset_to_cut(commit, cut, checkpoint.progress)


def reset_to_last(commit: GroupCommit) -> Committed:
    """Begin again at the last checkpoint, or where the group began if there is none."""
    last = commit.state.checkpoints.last
    if last is not None:
        return commit.put(ResetToCheckpoint(last.name))
    return reset_to_cut(commit, _beginning(commit))


def _beginning(commit: GroupCommit) -> Cut:
    """Where the group began; what retention took meanwhile cannot be read again."""
    begin = {SegmentId(stream, number): at for stream, number, at in commit.record.begin}
    read = {stream.name for stream in commit.record.streams}
    cut = {segment: at for segment, at in begin.items() if segment.stream in read}
    for segment, extent in commit.moment.extents(cut).items():
        if END < cut[segment] < extent.tail:
            cut[segment] = extent.tail
    return cut


def plan_reset(log: Log, name: ReaderGroupName, to: object) -> dict[str, int]:
    """Where a reset would put a group; raises what the reset would."""
    read = admin.get(log, name.group).streams
    cut: Cut | None = None
    if isinstance(to, GroupCheckpoint):
        check_value(log, read, to)
        here = {stream.name for stream in read}
        cut = {segment: at for segment, at in to.cut.items() if segment.stream in here}
    elif to is not None and not (isinstance(to, str) and to not in ("earliest", "latest")):
        cut = cut_of_place(log, read, to)

    def look(tx: Tx) -> dict[str, int]:
        commit = GroupCommit(tx, name, StampedReplica(name.group))
        target = cut if cut is not None else _known(commit, to)
        found = commit.moment.map()
        _check_streams(commit, target)
        check_heads(target, found, "cut")
        check_kept(name.group, target, found)
        cuts.check_cut(target, found.graph)
        return {str(segment): offset for segment, offset in sorted(target.items())}

    return log.catalog.read(look, snapshot=True)


def _known(commit: GroupCommit, to: object) -> Cut:
    """The cut of a checkpoint by name, of the last one, or of the beginning."""
    checkpoints = commit.state.checkpoints
    if isinstance(to, str):
        found = checkpoints.get(to)
        if found is None or found.pending:
            commit.prepare(ResetToCheckpoint(to))  # says what is wrong with it
            raise AssertionError("a checkpoint that can be reset to is known")
        return found.positions
    return _beginning(commit) if checkpoints.last is None else checkpoints.last.positions


# --- readers -------------------------------------------------------------------------------


def put_offline(
    commit: GroupCommit, reader: str, given: Mapping[str, int] | None, *, rewind: bool
) -> bool:
    """Put a reader offline, where it has acked to or where somebody says; whether it was online."""
    owned = commit.state.owned(reader)
    if reader not in commit.state.members:
        return False
    wanted = _positions(given or {}, reader, owned)
    moment = commit.moment
    if rewind:
        commit.forget_openings(wanted.keys())
    here = moment.held_progress(wanted)
    for segment, offset in wanted.items():
        floor = here[segment].floor if segment in here else 0
        if offset < floor and not rewind:
            raise InvalidInputError(
                f"{segment} is acked up to {floor}, after {offset}; use rewind to take acks back"
            )
    extents = moment.extents(wanted)
    _check_extents(wanted, extents)
    commit.put(RemoveReader(reader, positions(wanted), rewind=rewind, why=PUT_OFFLINE))
    if rewind:
        seek(
            commit.tx,
            commit.name.key,
            [SeekPlace(unit_of(s), extents[s].id, Progress(at)) for s, at in wanted.items()],
        )
    else:
        join(commit.tx, commit.name.key, {extents[s].id: Progress(at) for s, at in wanted.items()})
    return True


def _positions(
    given: Mapping[str, int], reader: str, owned: Mapping[SegmentId, object]
) -> dict[SegmentId, int]:
    found = {}
    for text, offset in given.items():
        segment = SegmentId.parse(text)
        if segment not in owned:
            raise InvalidInputError(f"reader {reader!r} does not own {segment}")
        if type(offset) is not int or offset < 0:
            raise InvalidInputError(f"{text}: {offset!r} is not an offset")
        found[segment] = offset
    return found


def _check_extents(cut: Cut, extents: Mapping[SegmentId, Extent]) -> None:
    """Refuse offsets beyond heads, and before what is kept."""
    for segment, offset in cut.items():
        tail, head = extents[segment].tail, extents[segment].head
        if not tail <= offset <= head:
            raise InvalidInputError(f"{segment} has no offset {offset}; it has {tail} to {head}")


# --- streams, config, retention ------------------------------------------------------------


def add_streams(commit: GroupCommit, added: Sequence[GroupStream], cut: Cut) -> Committed:
    """Read more streams, from a cut."""
    record = msgspec.structs.replace(commit.record, streams=tuple(added))
    found = GroupMoment(commit.tx, commit.name, record).map()
    check_streams(commit.name.group, (stream.name for stream in added), cut)
    check_heads(cut, found, "start")
    check_kept(commit.name.group, cut, found)
    cuts.check_cut(cut, found.graph)
    update = AddStreams(positions(cut), cuts.waits_of(cut, found.graph))
    return of_group.add(commit, added, update)


CONFIGURE_LOCKS = (entries.lock(homes.GROUPS_BUCKET),)
"""The locks for :func:`configure`, beside those of the group."""


def configure(commit: GroupCommit, config: GroupConfig) -> Committed:
    """Give the group another config, in every region that it is in."""
    done = commit.put(Configure(config))
    if done.outcome.changes:
        from headrace.groups.readers.runtime import elsewhere

        elsewhere.configured(commit)
    return done


def release(commit: GroupCommit, cut: Cut) -> None:
    """Let go of everything before a cut."""
    retain = commit.state.config.retain
    if retain is not Retain.MANUAL:
        raise NotRetainedByHandError(commit.name.group, retain.value)
    from headrace.groups.readers.runtime import elsewhere

    elsewhere.check_here(commit.tx, commit.name, "it is released where it is at home")
    moment = commit.moment
    found = moment.map()
    check_heads(cut, found, "cut")
    cuts.check_cut(cut, found.graph)
    waits = [wait.segment for wait in cuts.waits_of(cut, found.graph)]
    wanted = found.floors(cut, waits)
    rows = stored.of_group(commit.tx, commit.name.kept)
    kept = {row.segment_id: decode(row).floor for row in rows}
    for segment, floor in wanted.items():
        before = kept.get(found.extents[segment].id, 0)
        if floor < before:
            raise InvalidInputError(
                f"{segment} was released up to {before}, after {floor}; what was let go of "
                "cannot be kept again"
            )
    retention.keep_cut(moment, cut, waits)
