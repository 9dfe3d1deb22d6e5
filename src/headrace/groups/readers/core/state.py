"""The state that all readers of a group share.

Theory of operation
-------------------
The state is revisioned: every update that changes something makes the next revision.  It is
changed in place and a step at a time, never copied: a claim at ten thousand segments and five
hundred readers touches one segment, one reader and two sorted lists.

A segment is in one of three maps or unknown: *assigned* (to one reader), *unassigned* (can be
claimed; longest waiting first) or *future* (waits for predecessors).  The position kept here is
where the segment was claimed, moved on by checkpoints; it is where reading begins again if
nothing better is known.  The reader's own place is its business.

Tokens are revisions.  A reader's token is the revision at which it joined, a segment's the one at
which it was claimed, so tokens grow with every change of hands, across resets too, without
anything being remembered of segments that are over.

:func:`headrace.groups.readers.core.rules.decide` is the only judge of what may happen;
:meth:`ReaderGroupState.evolve` carries out what it decided, here and wherever the log is
followed, asks no questions and knows no rules.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from headrace.groups.readers.core.changes import (
    Awaited,
    CheckpointAcked,
    CheckpointCreated,
    CheckpointForgotten,
    Completed,
    Configured,
    Freed,
    LagReported,
    Opened,
    PositionRecorded,
    ReaderAdded,
    ReaderRemoved,
    SegmentClaimed,
    SegmentDropped,
    StateChange,
    StreamDropped,
    StreamsAdded,
    WasReset,
)
from headrace.groups.readers.core.checkpoints import Checkpoint, Checkpoints
from headrace.groups.readers.core.loads import Load, Loads
from headrace.groups.readers.core.segments import (
    Cut,
    Position,
    SegmentId,
    SegmentStatus,
    Successor,
    as_cut,
    positions,
)
from headrace.groups.readers.core.settings import GroupConfig


class Holding(NamedTuple):
    """A segment in the hands of a reader: the recorded offset, and the token of the claim."""

    offset: int
    token: int


class OnlineReader:
    """A reader that is online."""

    __slots__ = ("far_behind", "lag_ms", "lease_token", "name", "owned", "streak", "token")

    def __init__(self, name: str, token: int, lease_token: int) -> None:
        self.name = name
        self.token = token
        self.lease_token = lease_token
        self.lag_ms: int | None = None
        """As it told last while it owned something."""
        self.far_behind = False
        self.streak = 0
        self.owned: dict[SegmentId, Holding] = {}

    @property
    def load(self) -> Load:
        """What counts when readers are compared."""
        return Load(len(self.owned), self.lag_ms, self.far_behind)


class ReaderGroupState:
    """Who reads what, from where, and what waits for whom."""

    def __init__(
        self,
        config: GroupConfig,
        start: Cut,
        *,
        waits: Iterable[Successor] = (),
        end_cut: Cut | None = None,
        revision: int = 0,
    ) -> None:
        self.config = config
        self.revision = revision
        self.checkpoints = Checkpoints()
        self.streams: dict[str, None] = {}
        """Every stream that the group reads, also one of which nothing is left to read."""
        end = as_cut(positions(end_cut or {}), "end cut")
        self._begin(as_cut(positions(start), "start"), waits, end)

    def _begin(self, cut: Cut, waits: Iterable[Successor], end_cut: Cut) -> None:
        self.members: dict[str, OnlineReader] = {}
        self.unassigned: OrderedDict[SegmentId, int] = OrderedDict(cut)
        self.future: dict[SegmentId, frozenset[SegmentId]] = _awaited(waits)
        self.end_cut: dict[SegmentId, int] = dict(end_cut)
        self._owner: dict[SegmentId, OnlineReader] = {}
        self.loads = Loads(self.config.lag_assumed_ms)
        self.streams |= dict.fromkeys(segment.stream for segment in (*cut, *self.future))

    # --- reading -----------------------------------------------------------------------

    @property
    def segment_count(self) -> int:
        """Segments that are owned or can be claimed; those that wait do not count."""
        return len(self._owner) + len(self.unassigned)

    @property
    def assigned_count(self) -> int:
        """Segments that are owned."""
        return len(self._owner)

    @property
    def end_of_data(self) -> bool:
        """Whether nothing is left to read, now or later."""
        return not (self._owner or self.unassigned or self.future)

    def member(self, reader: str, token: int) -> OnlineReader | None:
        """The reader, if it is online in the life that this token belongs to."""
        found = self.members.get(reader)
        return found if found is not None and found.token == token else None

    def owner(self, segment: SegmentId) -> OnlineReader | None:
        """Who owns a segment."""
        return self._owner.get(segment)

    def owned(self, reader: str) -> Mapping[SegmentId, Holding]:
        """What a reader owns; nothing if it is not online."""
        found = self.members.get(reader)
        return {} if found is None else found.owned

    def status(self, segment: SegmentId) -> SegmentStatus:
        """Where a segment stands; what is over is as unknown as what is still to come."""
        if segment in self._owner:
            return SegmentStatus.ASSIGNED
        if segment in self.unassigned:
            return SegmentStatus.UNASSIGNED
        return SegmentStatus.FUTURE if segment in self.future else SegmentStatus.UNKNOWN

    def first_unassigned(self, count: int) -> list[SegmentId]:
        """The segments that have waited longest for a reader."""
        return list(islice(self.unassigned, count))

    def position(self, segment: SegmentId) -> int | None:
        """The recorded offset of a segment that is owned or can be claimed."""
        owner = self._owner.get(segment)
        return self.unassigned.get(segment) if owner is None else owner.owned[segment].offset

    def positions(self) -> dict[SegmentId, int]:
        """The recorded offsets of everything that is owned or can be claimed."""
        found = dict(self.unassigned)
        for member in self.members.values():
            for segment, holding in member.owned.items():
                found[segment] = holding.offset
        return found

    def named(self) -> set[SegmentId]:
        """Every segment that the state or one of its checkpoints speaks of."""
        found = {*self.positions(), *self.end_cut}
        waits = [self.future]
        for checkpoint in self.checkpoints.known():
            found.update(checkpoint.positions)
            waits.append(checkpoint.waits)
        for each in waits:
            found.update(each, *each.values())
        return found

    def blockers(self) -> dict[str, tuple[str, ...]]:
        """Which readers each outstanding checkpoint waits for, oldest checkpoint first."""
        return {c.name: tuple(c.pending) for c in self.checkpoints.all() if c.pending}

    def describe(self) -> str:
        """The state in a few words, for errors."""
        return (
            f"revision {self.revision}: {len(self.members)} readers, {len(self._owner)} segments "
            f"assigned, {len(self.unassigned)} unassigned, {len(self.future)} future"
        )

    # --- changing ----------------------------------------------------------------------

    def evolve(self, changes: Iterable[StateChange]) -> tuple[Checkpoint, ...]:
        """Carry out what was decided on this very revision, which makes the next one.

        Returns the checkpoints that are complete now and were not before; they may be forgotten
        already.
        """
        self.revision += 1
        touched: dict[str, None] = {}
        completed: list[Checkpoint] = []
        for change in changes:
            self._change(change, touched, completed)
        for reader in touched:
            member = self.members.get(reader)
            if member is not None:
                self.loads.put(reader, member.load)
        return tuple(completed)

    def _change(
        self, change: StateChange, touched: dict[str, None], completed: list[Checkpoint]
    ) -> None:
        match change:
            case SegmentClaimed(reader=reader, segment=segment, offset=offset, token=token):
                del self.unassigned[segment]
                self._hold(self.members[reader], segment, offset, token)
                touched[reader] = None
            case Freed(reader=reader, segment=segment, offset=offset):
                self._drop(reader, segment)
                self.unassigned[segment] = offset
                touched[reader] = None
            case (
                Completed(reader=reader, segment=segment)
                | SegmentDropped(reader=reader, segment=segment)
            ):
                self._drop(reader, segment)
                touched[reader] = None
            case Opened(segment=segment):
                self.future.pop(segment, None)
                self.unassigned[segment] = 0
            case Awaited(segment=segment, predecessors=predecessors):
                self.future[segment] = predecessors
            case PositionRecorded(reader=reader, segment=segment, offset=offset):
                owned = self.members[reader].owned
                owned[segment] = Holding(offset, owned[segment].token)
            case ReaderAdded(reader=reader, lease_token=lease_token):
                self.members[reader] = OnlineReader(reader, self.revision, lease_token)
                touched[reader] = None
            case ReaderRemoved(reader=reader):
                del self.members[reader]
                self.loads.remove(reader)
            case LagReported(reader=reader):
                member = self.members[reader]
                member.lag_ms = change.lag_ms
                member.far_behind, member.streak = change.far_behind, change.streak
                touched[reader] = None
            case CheckpointCreated() | CheckpointAcked() | CheckpointForgotten():
                self._change_checkpoint(change, completed)
            case _:
                self._change_group(change)

    def _change_checkpoint(
        self,
        change: CheckpointCreated | CheckpointAcked | CheckpointForgotten,
        completed: list[Checkpoint],
    ) -> None:
        match change:
            case CheckpointCreated(name=name, kind=kind, readers=readers):
                made = Checkpoint(name, kind, self.revision, readers, self.unassigned, self.future)
                self.checkpoints.add(made)
                if not readers:
                    completed.append(made)
            case CheckpointAcked(name=name, reader=reader, positions=stood, complete=complete):
                cut = {position.segment: position.offset for position in stood}
                found = self.checkpoints.acknowledge(name, reader, cut, complete=complete)
                if complete:
                    completed.append(found)
            case CheckpointForgotten(name=name):
                self.checkpoints.forget(name)

    def _change_group(self, change: StateChange) -> None:
        match change:
            case StreamsAdded(cut=cut, waits=waits, end_cut=end_cut):
                self._add(cut, waits, end_cut)
            case StreamDropped(stream=stream):
                self._forget(stream)
            case Configured(config=config):
                self.config = config
                self.loads = Loads(config.lag_assumed_ms)
                for member in self.members.values():
                    self.loads.put(member.name, member.load)
            case WasReset(cut=cut, waits=waits, end_cut=end_cut):
                self._begin(as_cut(cut, "cut"), waits, as_cut(end_cut, "end cut"))
                self.checkpoints.was_reset()

    def _hold(self, member: OnlineReader, segment: SegmentId, offset: int, token: int) -> None:
        member.owned[segment] = Holding(offset, token)
        self._owner[segment] = member

    def _drop(self, reader: str, segment: SegmentId) -> None:
        del self.members[reader].owned[segment]
        del self._owner[segment]

    def _add(
        self,
        added: tuple[Position, ...],
        waits: tuple[Successor, ...],
        end_cut: tuple[Position, ...],
    ) -> None:
        cut, waiting = as_cut(added, "cut"), _awaited(waits)
        self.streams |= dict.fromkeys(segment.stream for segment in (*cut, *waiting))
        self.unassigned.update(cut)
        self.future.update(waiting)
        self.end_cut.update(as_cut(end_cut, "end cut"))
        for checkpoint in self._known_checkpoints():
            checkpoint.add(cut, waiting)

    def _forget(self, stream: str) -> None:
        """Nothing of a stream is left; its segments were taken from their readers before."""
        self.streams.pop(stream, None)
        self.unassigned = OrderedDict(
            (s, at) for s, at in self.unassigned.items() if s.stream != stream
        )
        self.future = {s: before for s, before in self.future.items() if s.stream != stream}
        self.end_cut = {s: at for s, at in self.end_cut.items() if s.stream != stream}
        for checkpoint in self._known_checkpoints():
            checkpoint.drop(stream)

    def _known_checkpoints(self) -> list[Checkpoint]:
        known, last = self.checkpoints.all(), self.checkpoints.last
        return known if last is None or last in known else [*known, last]

    # --- restoring, see records.py -----------------------------------------------------

    def restore_member(self, member: OnlineReader) -> None:
        """Put back a reader, with what it owns, into a state that is being decoded."""
        self.members[member.name] = member
        for segment in member.owned:
            self._owner[segment] = member
        self.loads.put(member.name, member.load)


def _awaited(waits: Iterable[Successor]) -> dict[SegmentId, frozenset[SegmentId]]:
    return {wait.segment: frozenset(wait.predecessors) for wait in waits}
