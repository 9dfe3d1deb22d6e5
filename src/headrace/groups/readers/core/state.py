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
:meth:`ReaderGroupState.evolve` carries out what it decided and asks no questions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from headrace.groups.readers.core.checkpoints import Checkpoint, CheckpointKind, Checkpoints
from headrace.groups.readers.core.loads import Loads
from headrace.groups.readers.core.segments import Cut, SegmentId, SegmentStatus, as_cut, positions
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.core.updates import (
    Awaited,
    CheckpointAcked,
    CheckpointCreated,
    Completed,
    Freed,
    LagReported,
    Opened,
    PositionRecorded,
    ReaderAdded,
    ReaderRemoved,
    SegmentClaimed,
    StateChange,
    Successor,
    WasReset,
)


class Holding(NamedTuple):
    """A segment in the hands of a reader: the recorded offset, and the token of the claim."""

    offset: int
    token: int


class OnlineReader:
    """A reader that is online."""

    __slots__ = ("lag_ms", "lease_token", "name", "owned", "token")

    def __init__(self, name: str, token: int, lease_token: int) -> None:
        self.name = name
        self.token = token
        self.lease_token = lease_token
        self.lag_ms = 0
        self.owned: dict[SegmentId, Holding] = {}


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
        waiting = {wait.segment: frozenset(wait.predecessors) for wait in waits}
        end = as_cut(positions(end_cut or {}), "end cut")
        self._begin(as_cut(positions(start), "start"), waiting, end)

    def _begin(
        self, cut: Cut, waits: Mapping[SegmentId, frozenset[SegmentId]], end_cut: Cut
    ) -> None:
        self.members: dict[str, OnlineReader] = {}
        self.unassigned: OrderedDict[SegmentId, int] = OrderedDict(cut)
        self.future: dict[SegmentId, frozenset[SegmentId]] = dict(waits)
        self.end_cut: dict[SegmentId, int] = dict(end_cut)
        self.checkpoints = Checkpoints(self.config.checkpoints_kept_max)
        self._owner: dict[SegmentId, OnlineReader] = {}
        self.loads = Loads(self.config.lag_assumed_ms)

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

    def evolve(self, changes: Iterable[StateChange]) -> int:
        """Carry out what was decided on this very revision; returns the new one."""
        self.revision += 1
        touched: dict[str, None] = {}
        for change in changes:
            self._change(change, touched)
        for reader in touched:
            member = self.members.get(reader)
            if member is not None:
                self.loads.put(reader, len(member.owned), member.lag_ms)
        return self.revision

    def _change(self, change: StateChange, touched: dict[str, None]) -> None:
        match change:
            case SegmentClaimed(reader=reader, segment=segment, offset=offset, token=token):
                del self.unassigned[segment]
                self._hold(self.members[reader], segment, offset, token)
                touched[reader] = None
            case Freed(reader=reader, segment=segment, offset=offset):
                self._drop(reader, segment)
                self.unassigned[segment] = offset
                touched[reader] = None
            case Completed(reader=reader, segment=segment):
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
            case LagReported(reader=reader, lag_ms=lag_ms):
                self.members[reader].lag_ms = lag_ms
                touched[reader] = None
            case CheckpointCreated(name=name, kind=kind):
                self._checkpoint(name, kind)
            case CheckpointAcked(name=name, reader=reader, positions=given):
                cut = {position.segment: position.offset for position in given}
                self.checkpoints.acknowledge(name, reader, cut)
            case WasReset(cut=cut_, waits=waits, end_cut=end_cut):
                self._begin(
                    as_cut(cut_, "cut"),
                    {wait.segment: frozenset(wait.predecessors) for wait in waits},
                    as_cut(end_cut, "end cut"),
                )

    def _hold(self, member: OnlineReader, segment: SegmentId, offset: int, token: int) -> None:
        member.owned[segment] = Holding(offset, token)
        self._owner[segment] = member

    def _drop(self, reader: str, segment: SegmentId) -> None:
        del self.members[reader].owned[segment]
        del self._owner[segment]

    def _checkpoint(self, name: str, kind: CheckpointKind) -> None:
        self.checkpoints.add(Checkpoint(name, kind, self.members, self.unassigned, self.future))

    # --- restoring, see records.py -----------------------------------------------------

    def restore_member(self, member: OnlineReader) -> None:
        """Put back a reader, with what it owns, into a state that is being decoded."""
        self.members[member.name] = member
        for segment in member.owned:
            self._owner[segment] = member
        self.loads.put(member.name, len(member.owned), member.lag_ms)
