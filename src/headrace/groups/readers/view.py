"""Reader groups as everybody sees them: readers, segments, lag and what is wanting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from headrace.catalog import Tx, reader_groups
from headrace.catalog.reader_groups import ReaderGroupRow, StoredState
from headrace.catalog.streams import Segment, Stream
from headrace.errors import UnknownReaderGroupError
from headrace.groups import findings, hearing, homes, lag
from headrace.groups.kinds import Basis, KindOfGroups
from headrace.groups.names import FullName
from headrace.groups.picture import CatalogReach, Picture, UnitFrame
from headrace.groups.readers import names
from headrace.groups.readers.core.segments import SegmentId, SegmentStatus
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.names import (
    FAMILY,
    ReaderGroupName,
    ReaderGroupRecord,
    readable_rows,
    unit_of,
)
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.shapes import Finding, GroupLag, GroupMember, GroupView, UnitView
from headrace.log import order

OTHERS_HAVE_S = 30
"""A reader that is dead for longer than this should have been put offline by the others."""


class _Restored(msgspec.Struct, frozen=True):
    """A group, and what it was made of; nobody changes it here."""

    row: ReaderGroupRow
    stored: StoredState
    record: ReaderGroupRecord
    state: ReaderGroupState


class _Stored(msgspec.Struct, frozen=True):
    """Groups as the catalog has them; each is read when it is looked at."""

    rows: Mapping[str, ReaderGroupRow]
    states: Mapping[str, StoredState]
    known: dict[str, _Restored]
    """What was made of them at earlier looks; used where all that it was made of is the same."""

    def record(self, group: str) -> ReaderGroupRecord:
        return names.decode(self._row(group))

    def restored(self, group: str) -> _Restored:
        """The record of a group, and its state."""
        row, stored = self._row(group), self.states.get(group, StoredState([], []))
        known = self.known.get(group)
        if known is None or known.row != row or known.stored != stored:
            replica = StampedReplica(group)
            replica.restore(row, stored)
            record = names.decode(row)
            known = self.known[group] = _Restored(row, stored, record, replica.state)
        return known

    def _row(self, group: str) -> ReaderGroupRow:
        row = self.rows.get(group)
        if row is None or row.config is None:
            raise UnknownReaderGroupError(group, sorted(self.rows))
        return row


class Readers(KindOfGroups):
    """Groups that nobody leads."""

    family = FAMILY

    def __init__(self) -> None:
        self._known: dict[str, _Restored] = {}

    def load(self, tx: Tx, name: FullName | None) -> object:
        if name is not None:
            row = reader_groups.get(tx, name.group)
            found = {} if row is None else {row.name: row}
            return _Stored(found, reader_groups.states(tx, name.group), {})
        found = {row.name: row for row in readable_rows(tx)}
        self._known = {group: made for group, made in self._known.items() if group in found}
        return _Stored(found, reader_groups.states(tx), self._known)

    def reach(
        self,
        name: FullName,
        entries: Mapping[str, Mapping[str, bytes]],  # noqa: ARG002
        own: object,
    ) -> CatalogReach:
        record = cast(_Stored, own).record(name.group)
        return CatalogReach(
            readers=[name.key],
            streams=[stream.name for stream in record.streams],
            leases=[ReaderGroupName(name.group).leases],
        )

    def view(self, name: FullName, picture: Picture) -> GroupView:
        stored = cast(_Stored, picture.own[FAMILY])
        known = stored.restored(name.group)
        look = _Look(picture, ReaderGroupName(name.group), known.record, known.state)
        units = look.units()
        behind = lag.total(str(name), FAMILY, units)
        members = look.members()
        read = tuple(stream.name for stream in look.record.streams)
        return GroupView(
            group=str(name),
            kind=FAMILY,
            stream=read[0] if len(read) == 1 else None,
            streams=read,
            filter=look.record.filter,
            members=members,
            members_active=sum(member.instance is not None for member in members),
            members_wanted=len(members),
            lag=behind,
            units=tuple(units),
            findings=tuple(look.findings(members, behind)),
        )

    def basis(self, name: FullName, picture: Picture) -> Basis:
        stored = cast(_Stored, picture.own[FAMILY])
        known = stored.restored(name.group)
        group, leases = ReaderGroupName(name.group), picture.leases
        key = group.key
        return Basis(
            (
                known.record,
                known.state,
                _read(known.record, picture),
                picture.claims.get(key),
                picture.progress.get(key),
            ),
            (key,),
            tuple([leases.get(group.lease(each)) for each in known.state.members]),
        )


KIND = Readers()

_STATES = {
    SegmentStatus.ASSIGNED: "unowned",
    SegmentStatus.UNASSIGNED: "unowned",
    SegmentStatus.FUTURE: "waits",
}
"""What a segment is called by its status while no reader that lives has it; else by _HELD."""
_HELD = _STATES | {SegmentStatus.ASSIGNED: "owned", SegmentStatus.UNASSIGNED: "owned"}


def _read(record: ReaderGroupRecord, picture: Picture) -> tuple[Stream, ...]:
    """The streams that a group reads: those that are still the ones that it was told to."""
    found = [(each, picture.streams.get(each.name)) for each in record.streams]
    return tuple(stream for each, stream in found if stream is not None and stream.id == each.id)


class _Look:
    """One group in a picture."""

    def __init__(
        self,
        picture: Picture,
        name: ReaderGroupName,
        record: ReaderGroupRecord,
        state: ReaderGroupState,
    ) -> None:
        self.picture = picture
        self.name = name
        self.key = name.key
        self.claims = picture.claims.get(self.key, {})
        self.record = record
        self.state = state
        self.read = _read(record, picture)
        leases = {name: picture.held(self.name.lease(name)) for name in state.members}
        self.held = {name: lease for name, lease in leases.items() if lease is not None}

    def units(self) -> list[UnitView]:
        owners = {name: lease.owner for name, lease in self.held.items()}
        basis = self.record, self.state, self.read, self.claims, owners
        frames, ended = self.picture.memory.made(
            ("units", self.key), basis, lambda _: self._frames()
        )
        found = self.picture.units(frames, self.key)
        for at in ended:
            if not found[at].events:
                # What is over is forgotten; what is still to come is not known yet.
                found[at] = msgspec.structs.replace(found[at], state="finished")
        return found

    def _frames(self) -> tuple[list[UnitFrame], list[int]]:
        """The units but for what was acked; and which are over when nothing is left."""
        found: list[UnitFrame] = []
        ended = []
        for stream in self.read:
            exact = lag.is_exact([self.record.filter or ">"], stream)
            for segment in within_end(self.state, stream):
                frame, over = self._frame(stream, segment, exact)
                if over:
                    ended.append(len(found))
                found.append((segment, frame))
        return found, ended

    def _frame(self, stream: Stream, segment: Segment, exact: bool) -> tuple[UnitView, bool]:
        place = SegmentId(stream.name, segment.number)
        unit = unit_of(place)
        owner = self.state.owner(place)
        lease = None if owner is None else self.held.get(owner.name)
        _, token = self.claims.get(unit, (None, 0))
        status = self.state.status(place)
        frame = UnitView(
            unit=unit,
            stream=stream.name,
            member=None if owner is None else owner.name,
            instance=None if lease is None else lease.owner,
            token=token,
            state=_STATES.get(status, "waits") if lease is None else _HELD.get(status, "waits"),
            exact=exact,
        )
        ends = segment.sealed or place in self.state.end_cut
        return frame, status not in _STATES and ends

    def members(self) -> tuple[GroupMember, ...]:
        found = []
        for member in self.state.members.values():
            owned = len(member.owned)
            held = self.held.get(member.name)
            if held is not None:
                seen = GroupMember(
                    member=member.name,
                    state="active" if owned else "stands by",
                    instance=held.owner,
                    units=owned,
                    share=owned,
                    why="" if owned else "no segment is free for it",
                )
                found.append(hearing.heard(seen, held, self.picture.now_us))
                continue
            last = self.picture.leases.get(self.name.lease(member.name))
            found.append(
                GroupMember(
                    member=member.name,
                    state="lost",
                    share=owned,
                    lost_at=None if last is None else findings.moment(last.expires_us),
                    why="its lease is gone"
                    if last is None
                    else f"{last.owner} was lost at {findings.moment_words(last.expires_us)}",
                )
            )
        return tuple(found)

    def findings(self, members: Sequence[GroupMember], behind: GroupLag) -> list[Finding]:
        found = [
            Finding(
                finding="no_stream",
                about=str(self.name),
                sentence=f"its stream {each.name!r} was deleted, or made anew, and is not read",
                next=f"drop it: headrace reader streams drop {self.name.group} {each.name}",
            )
            for each in self.record.streams
            if (stream := self.picture.streams.get(each.name)) is None or stream.id != each.id
        ]
        alive = any(member.instance is not None for member in members)
        for member in members:
            if member.state == "lost":
                found.append(self._lost(member, alive))
        found += hearing.silent(str(self.name), members)
        waits = ""
        if self.record.away:  # else it is read here, if it is read
            waits = homes.waiting(self.picture.tx, [self.key]).get(self.key, "")
        if waits:
            found.append(
                Finding(
                    finding="no_members",
                    about=str(self.name),
                    sentence=f"readers wait in this region: {waits}",
                    next=f"see where it is read: headrace region explain {self.name}",
                    needs_person=False,
                )
            )
        elif not members and not self.state.end_of_data:
            found.append(
                Finding(
                    finding="no_members",
                    about=str(self.name),
                    sentence="nobody reads: no reader is online",
                    next=f"start one: headrace reader read {self.name.group} READER",
                    needs_person=behind.events > 0,
                )
            )
        return [*found, *findings.of_lag(behind)]

    def _lost(self, member: GroupMember, alive: bool) -> Finding:
        segments = "1 segment" if member.share == 1 else f"{member.share} segments"
        for_s = OTHERS_HAVE_S + 1.0
        if member.lost_at is not None:
            now = findings.moment(self.picture.now_us)
            for_s = (now - member.lost_at).total_seconds()
        then = "the other readers are about to take over" if alive else "nobody took over"
        return Finding(
            finding="member_lost",
            about=str(self.name),
            sentence=f"reader {member.member!r} was lost: {member.why}; it had {segments}, and "
            f"{then}",
            next=f"start it again: headrace reader read {self.name.group} {member.member}",
            needs_person=not alive or for_s > OTHERS_HAVE_S,
        )


def within_end(state: ReaderGroupState, stream: Stream) -> list[Segment]:
    """The segments of a stream that a group reads, none beyond its end, cut off where it ends."""
    ends = {s.number: at for s, at in state.end_cut.items() if s.stream == stream.name}
    graph = {segment.number: segment.predecessors for segment in stream.segments}
    beyond = order.following(ends, graph) if ends else set()
    found = []
    for segment in stream.segments:
        end = ends.get(segment.number, -1)
        if segment.number in beyond:
            continue
        if 0 <= end < segment.head:
            tail = min(segment.tail, end)
            segment = msgspec.structs.replace(segment, head=end, tail=tail)
        found.append(segment)
    return found
