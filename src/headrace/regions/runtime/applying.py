"""Another region's progress and groups, taken over here.

*One snapshot.*  What is read of a neighbour (groups, cursors, how far its streams had come) belongs
together.  *Behind the data*: it is applied when everything that the neighbour had published by then
is here too.  Otherwise an event could count as processed whose output was lost with its region.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from headrace.catalog import Tx, entries, lanes, replicas, streams
from headrace.catalog.replicas import CursorRow
from headrace.catalog.streams import Segment
from headrace.groups.homes import GROUPS_BUCKET, ORIGIN, GroupRecord, Handing
from headrace.groups.progress import AckedRanges, Progress
from headrace.log.log import Log
from headrace.regions import kinds
from headrace.regions.core.origins import base_region
from headrace.regions.core.progress import Merged, OriginProgress
from headrace.regions.core.translation import is_ahead
from headrace.regions.records import (
    LINKS_BUCKET,
    LinkRecord,
    Region,
    get_group,
    get_link,
    groups,
    links,
    lost_of,
    put_group,
)
from headrace.regions.runtime import cursors, readers
from headrace.regions.runtime.joining import (
    ack_lane,
    decode_delta,
    encode_cursor,
    join,
)
from headrace.regions.runtime.joining import locks as unit_locks
from headrace.regions.runtime.roster import Roster, changed_records
from headrace.regions.twins import are_others


class TheirCursor(msgspec.Struct, frozen=True):
    """A neighbour's progress by origin in a segment."""

    reader: str
    stream: str
    number: int
    state: bytes


class Theirs(msgspec.Struct, frozen=True):
    """What one snapshot of a neighbour says."""

    source: str
    revision: int
    groups_revision: int
    heads: dict[str, dict[int, int]]
    groups: dict[str, GroupRecord]
    cursors: tuple[TheirCursor, ...]
    places: dict[str, dict[str, dict[int, int]]] = {}
    """How far it had copied other regions, by stream, region and segment."""
    closed: dict[str, dict[int, dict[str, int]]] = {}
    """The ends of lanes of regions that are lost, by stream and segment."""
    links: dict[str, LinkRecord] = {}
    links_revision: int = 0

    @property
    def seen(self) -> tuple[int, int, int]:
        """What :func:`has_news` said when it was read."""
        return self.revision, self.groups_revision, self.links_revision


def look(
    tx: Tx,
    source: str,
    since: int,
    linked: Mapping[str, LinkRecord],
    roster: Roster | None = None,
) -> Theirs:
    """Read a neighbour: the cursors after a revision, and all else; ``linked`` are links here.

    ``roster`` keeps its groups from one look to the next.
    """
    heads: dict[str, dict[int, int]] = {}
    copied: dict[str, dict[str, dict[int, int]]] = {}
    closed: dict[str, dict[int, dict[str, int]]] = {}
    for name, link in linked.items():
        found = streams.get(tx, name)
        if found is None:
            continue
        numbers = {segment.id: segment.number for segment in found.segments}
        heads[name] = {segment.number: segment.head for segment in found.segments}
        for member in link.members if len(link.members) > 1 else ():
            at = replicas.places(tx, member.region)
            copied.setdefault(name, {})[member.region] = {
                number: at[each].next_offset for each, number in numbers.items() if each in at
            }
        lost = lost_of(link, get_link(tx, name)) - {source}
        if lost:
            closed[name] = {
                number: {n: end for n, end in lanes.ends(tx, at).items() if base_region(n) in lost}
                for at, number in numbers.items()
            }
    cursors = tuple(
        TheirCursor(row.reader, stream, number, row.state)
        for row, stream, number in replicas.changed_since(tx, since)
    )
    return Theirs(
        source,
        replicas.revision(tx),
        entries.latest(tx, GROUPS_BUCKET),
        heads,
        groups(tx) if roster is None else roster.within(tx).records,
        cursors,
        copied,
        closed,
        links(tx),
        entries.latest(tx, LINKS_BUCKET),
    )


def has_news(tx: Tx) -> tuple[int, int, int]:
    """What changes when :func:`look` has something new to say: progress, groups, links."""
    groups_revision = entries.latest(tx, GROUPS_BUCKET)
    return replicas.revision(tx), groups_revision, entries.latest(tx, LINKS_BUCKET)


# --- groups ----------------------------------------------------------------------------------


def take_over_groups(
    log: Log, me: Region, theirs: Mapping[str, GroupRecord], roster: Roster
) -> list[str]:
    """Make groups that are new here, and follow homes and deletions with a later stamp.

    Returns those that are here on their own and so are left alone: :func:`are_others`.
    """
    changed = changed_records(roster.read().records, theirs)
    others = log.catalog.read(lambda tx: are_others(tx, changed)) if changed else []
    for key, record in changed.items():
        mine = log.catalog.read(partial(get_group, key=key))
        if mine is None:
            if not record.deleted and key not in others:
                _begin(log, me, record)
            continue
        if record.stamp > mine.stamp:
            _follow(log, me, record)
            mine = log.catalog.read(partial(get_group, key=key))
        if mine is not None and not mine.ready:
            _settle(log, mine)
    return others


def _begin(log: Log, me: Region, record: GroupRecord) -> None:
    here = log.catalog.read(lambda tx: sorted(links(tx)))
    names = tuple(name for name in record.streams if name in here)
    if not names or (record.family == kinds.READER and names != record.streams):
        return  # it reads all of its streams or none

    def put(tx: Tx) -> None:
        if get_group(tx, record.key) is not None or are_others(tx, {record.key: record}):
            return
        handing = record.handing and Handing(record.handing.source)
        put_group(tx, msgspec.structs.replace(record, ready=False, streams=names, handing=handing))
        if record.adopted and kinds.exists(tx, record):
            kinds.reset(tx, record)
        cursors.begin(tx, me, msgspec.structs.replace(record, streams=names), placed=False)

    # Members wait from the first moment on, until its progress is here.
    locks = log.catalog.read(lambda tx: kinds.reset_locks(tx, record))
    log.catalog.write(put, locks=sorted({entries.lock(GROUPS_BUCKET), replicas.LOCK, *locks}))
    kinds.make(log, record)


def _settle(log: Log, record: GroupRecord) -> None:
    """Finish what was begun: a group that is to be made or deleted here, after a crash too.

    A deletion is carried out once: a group that is made under the name afterwards is another one.
    """
    there = log.catalog.read(lambda tx: kinds.exists(tx, record))
    if not record.deleted:
        if not there:
            kinds.make(log, record)
        return
    if there:
        kinds.remove(log, record)

    def carried_out(tx: Tx) -> None:
        if get_group(tx, record.key) == record:
            put_group(tx, msgspec.structs.replace(record, ready=True))

    log.catalog.write(carried_out, locks=(entries.lock(GROUPS_BUCKET),))


def _follow(log: Log, me: Region, record: GroupRecord) -> None:
    """A neighbour has a later home, deletion or life of a group than this region knows of."""

    def put(tx: Tx) -> None:
        mine = get_group(tx, record.key)
        if mine is None or mine.stamp >= record.stamp:
            return
        again = record.life > mine.life
        # Made anew, a reader group may read other streams.
        read = record.streams if again and record.family == kinds.READER else mine.streams
        if again or record.deleted:
            for reader in kinds.readers(tx, mine):
                replicas.forget_reader(tx, reader)
        if again:
            changed = {"life": record.life, "config": record.config, "streams": read}
            anew = msgspec.structs.replace(mine, **changed)
            kinds.restart(tx, anew)
            cursors.begin(tx, me, anew, placed=False)
        elif record.config != mine.config:
            kinds.configure(tx, record)
        put_group(
            tx,
            msgspec.structs.replace(
                mine,
                streams=read,
                home=record.home,
                stamp=record.stamp,
                handing=record.handing and Handing(record.handing.source),
                deleted=record.deleted,
                life=record.life,
                config=record.config,
                mode=record.mode if again else mine.mode,
                adopted=record.adopted,
                ready=mine.ready and not again and not record.deleted,
            ),
        )
        if again or (record.home is not None and record.home != me.name):
            # Somebody else moved it, or began it anew: whoever still has it here, frozen or not,
            # is out.
            kinds.fence(tx, mine)

    def held(tx: Tx) -> set[str]:
        return {*kinds.fence_locks(tx, record), *kinds.reset_locks(tx, record)}

    locks = {entries.lock(GROUPS_BUCKET), replicas.LOCK, *log.catalog.read(held)}
    log.catalog.write(put, locks=sorted(locks))


# --- progress --------------------------------------------------------------------------------


def apply(
    log: Log, me: Region, theirs: Theirs, *, eager_only: bool, roster: Roster | None = None
) -> None:
    """Join a neighbour's progress to what is known here, in one transaction."""
    roster = roster or Roster(log.catalog)
    roll = roster.read()
    found = {name: log.stream(name) for name in log.catalog.read(links)}
    due: list[tuple[TheirCursor, GroupRecord, Segment]] = []
    for cursor in theirs.cursors:
        record = roll.readers.get(cursor.reader)
        stream = found.get(cursor.stream)
        segment = stream.segment(cursor.number) if stream is not None else None
        if record is None or segment is None or (eager_only and not record.eager):
            continue
        due.append((cursor, record, segment))
    locks = {replicas.LOCK, entries.lock(GROUPS_BUCKET)}
    for cursor, record, _ in due:
        locks |= unit_locks(cursor.reader, cursor.stream, cursor.number)
        locks |= set(kinds.seek_locks(record, cursor.reader, cursor.stream, cursor.number))

    def run(tx: Tx) -> None:
        readers.hold(tx, [(each.reader, f"{each.stream}/{each.number}") for each, _, _ in due])
        for cursor, record, segment in due:
            _merge(tx, me, record, cursor, segment)
        if not eager_only:
            _arrived(tx, theirs, roster.within(tx).records)

    if due or _is_awaited(roll.records, theirs):
        log.catalog.write(run, locks=sorted(locks))


def _merge(tx: Tx, me: Region, record: GroupRecord, cursor: TheirCursor, segment: Segment) -> None:
    row = replicas.cursor(tx, cursor.reader, segment.id)
    if row is not None and record.mode == ORIGIN:
        row = cursors.translate_seek(tx, me, record, segment, row)
    base = row or CursorRow(cursor.reader, segment.id, 0, False, 0, b"", b"")
    known = cursors.known_of(record, base)
    merged = known.merge(decode_delta(cursor.state))
    if row is not None and not merged.changed:
        return
    local = base.local
    if merged.rewound and row is not None and record.ready:
        whole = _whole(tx, known, segment)
        kinds.seek(tx, record, cursor.reader, cursor.stream, (segment.number, segment.id), whole)
        local = whole.encode()  # what is acked again from here on is news
    else:
        join(tx, cursor.reader, segment.id, _gained(tx, known, merged, segment, row is None))
    replicas.put_cursor(
        tx,
        msgspec.structs.replace(
            base,
            revision=replicas.next_revision(tx),
            ahead=is_ahead(known, lanes.ends(tx, segment.id), me.name),
            sought=0,
            state=encode_cursor(known),
            local=local,
        ),
    )


def _gained(
    tx: Tx, known: OriginProgress, merged: Merged, segment: Segment, all_of_it: bool
) -> AckedRanges:
    """The offsets here of what is newly acked."""
    found = AckedRanges()
    if all_of_it:
        for lane in known.lanes():
            acked = known.acked(lane)
            if acked is not None:
                ack_lane(tx, segment.id, lane, acked, found)
        return found
    for lane, lo, hi in merged.gains:
        acked = AckedRanges()
        acked.ack_range(lo, hi)
        ack_lane(tx, segment.id, lane, acked, found, lo)
    return found


def _whole(tx: Tx, known: OriginProgress, segment: Segment) -> Progress:
    """All that is acked, by offsets: where a reader stands after a command of another region."""
    found = AckedRanges(floor=segment.tail)
    for lane in known.lanes():
        acked = known.acked(lane)
        if acked is not None:
            ack_lane(tx, segment.id, lane, acked, found)
    return Progress.of(found, {})


def _is_awaited(mine: Mapping[str, GroupRecord], theirs: Theirs) -> bool:
    return any(
        not record.ready or (record.handing is not None and record.handing.source == theirs.source)
        for record in mine.values()
    )


def _arrived(tx: Tx, theirs: Theirs, mine: Mapping[str, GroupRecord]) -> None:
    """All that the neighbour knew is here: groups that waited for it may begin."""
    for key, record in mine.items():
        found = theirs.groups.get(key)
        if found is None or found.stamp != record.stamp:
            continue
        changed = record
        if not record.ready and found.ready:
            changed = msgspec.structs.replace(changed, ready=True)
        handing = found.handing
        if (
            record.handing is not None
            and record.handing.source == theirs.source
            and handing is not None
            and handing.drained
        ):
            changed = msgspec.structs.replace(changed, handing=None)
        if changed != record:
            put_group(tx, changed)
            tx.notify(replicas.CHANNEL)
