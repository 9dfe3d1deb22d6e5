"""The agent's part in the mode of snapshots: it follows segments, and writes what they ask for.

Theory of operation
-------------------
For every segment of a stream with a group in this mode there is a
:class:`~headrace.regions.runtime.following.FollowedSegment`.  One look costs a read.  Where
something is due (events or markers came, a group moved, a snapshot is to be taken), one transaction
under the stream's lock and the agent's lease does all of it: the log is read up to its head, what
was trimmed and what the groups acked is taken in, markers are written behind the head, updates of
other regions are joined to rows of progress, and the place is stored.  Markers are decoded before
it, so a transaction that finds one that was not read does nothing, and the next does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from headrace.catalog import Tx, entries, leases, markers, replicas, streams
from headrace.catalog.streams import Segment
from headrace.errors import (
    DamagedBatchError,
    HeadraceError,
    OriginOrderError,
    RoundOvertakenError,
    StoreError,
    TrimmedError,
    UnreadableRecordError,
)
from headrace.groups.homes import GroupRecord
from headrace.host.clock import steady_s
from headrace.log.log import Log
from headrace.regions import kinds
from headrace.regions.core.effects import SnapshotSettings
from headrace.regions.core.markers import Command, UpdateMarker
from headrace.regions.core.stamps import Life
from headrace.regions.records import AGENT_LEASE, LinkRecord, Region, get_link
from headrace.regions.runtime import joining
from headrace.regions.runtime.following import FollowedSegment, Payloads
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.roster import Roster, TheirRosters
from headrace.regions.runtime.turns import SegmentTurn, SnapshotBegin, TurnDue, life_of
from headrace.regions.snapshots import (
    ASKED_BUCKET,
    FORCED_BUCKET,
    SNAPSHOTS_BUCKET,
    get_state,
    state_key,
)

BUCKETS = (SNAPSHOTS_BUCKET, FORCED_BUCKET, ASKED_BUCKET)
ACKS_S = 0.1
"""How often it is looked at what groups acked, at most: a snapshot is taken every second."""

_AMISS = (
    DamagedBatchError,
    OriginOrderError,
    StoreError,
    TrimmedError,
    UnreadableRecordError,
)
"""What is wrong with one segment, and no reason to leave the others alone."""

_log = logging.getLogger(__name__)


class Snapshotting:
    """All segments that one agent follows."""

    def __init__(
        self, log: Log, neighbours: Neighbours, roster: Roster, theirs: TheirRosters
    ) -> None:
        self._log, self._neighbours, self.roster = log, neighbours, roster
        self._theirs = theirs
        self._segments: dict[int, _Segment] = {}
        self.settings = SnapshotSettings()

    def step(self, me: Region, lease: leases.Lease | None) -> bool:
        """Do what is due, once; true if something moved."""
        names = self.roster.read().streams_under_snapshots()
        found = {n: s for n in sorted(names) if (s := self._log.catalog.read(_stream_of(n)))}
        alive = {s.id for stream in found.values() for s in stream.segments}
        for gone in self._segments.keys() - alive:
            del self._segments[gone]
        moved = False
        for name, stream in found.items():
            link = self._log.catalog.read(lambda tx, name=name: get_link(tx, name))  # type: ignore[misc]
            for segment in stream.segments:
                if link is None or segment.lane is None or segment.sealed_us is not None:
                    continue
                if segment.id not in self._segments:
                    self._segments[segment.id] = _Segment(self, me, name, stream.id)
                moved |= self._step(self._segments[segment.id], link, segment, lease)
        return moved

    def _step(
        self, one: _Segment, link: LinkRecord, segment: Segment, lease: leases.Lease | None
    ) -> bool:
        try:
            moved = one.step(link, segment, lease)
        except RoundOvertakenError:
            return True  # it is read anew
        except _AMISS as error:
            if str(error) != one.error:
                _log.warning("snapshots of %s/%s: %s", link.stream, segment.number, error)
            one.error = str(error)
            return False
        one.error = ""
        return moved

    @property
    def log(self) -> Log:
        return self._log

    def connected(self, me: Region, link: LinkRecord, number: int) -> set[str]:
        """The members that can be read now, copy from here, and follow the segment themselves."""

        def look(tx: Tx) -> bool:
            back = get_link(tx, link.stream)
            begun = get_state(tx, link.stream, number) is not None
            return back is not None and back.reads(me.name) and begun

        found = set()
        for member in link.members:
            try:
                if member.state != "active":
                    continue
                followed = self._theirs.of(member).read().streams_under_snapshots()
                if link.stream in followed and self._neighbours.log(member).catalog.read(look):
                    found.add(member.region)
            except HeadraceError:
                continue  # it is named as away by whoever reads its progress
        return found


def _stream_of(name: str) -> Callable[[Tx], streams.Stream | None]:
    return lambda tx: streams.get(tx, name)


class _Segment:
    """One segment under way."""

    def __init__(self, all_of: Snapshotting, me: Region, stream: str, stream_id: int) -> None:
        self._all, self._log = all_of, all_of.log
        self._me, self._stream, self._stream_id = me, stream, stream_id
        self._followed: FollowedSegment | None = None
        self.error = ""
        self._begun: dict[str, SnapshotBegin] = {}
        self._ticked_s = self._acked_s = -1e9

    # -- looking ------------------------------------------------------------------------

    def step(self, link: LinkRecord, segment: Segment, lease: leases.Lease | None) -> bool:
        members = tuple(sorted(m.region for m in link.members if m.state != "lost"))
        if self._followed is None:
            self._followed = FollowedSegment(
                self._log, self._stream, segment, self._me.name, members, self._all.settings
            )
            self._begun = {}
        followed = self._followed
        roster = self._all.roster
        records = roster.read().under_snapshots(self._stream)
        tick = self._is_tick(link, segment)
        forced = self._log.catalog.read(self._wanted(FORCED_BUCKET, segment.number))
        asked = self._log.catalog.read(self._wanted(ASKED_BUCKET, segment.number))
        wanted = tick is not None or forced or asked or self._unanswered()
        if not (wanted or self._is_due(segment, records, members)):
            return False
        payloads = followed.unread(segment.head)
        updated = {name for name, group in followed.state.groups.items() if group.owed}
        told, commanded = self._told(payloads)
        updated |= told
        joined = updated & records.keys()
        locks = {streams.lock(self._stream_id), replicas.LOCK, *map(entries.lock, BUCKETS)}
        for reader in joined:
            locks |= joining.locks(reader, self._stream, segment.number)
        for reader in joined & commanded:
            record = records[reader]
            locks |= set(kinds.seek_locks(record, reader, self._stream, segment.number))
        due = TurnDue(
            *(members, payloads, frozenset(updated), frozenset(joined), frozenset(commanded)),
            *(tick, forced, asked),
            reached=self._reached(link, segment) if asked else frozenset(),
        )
        turn = SegmentTurn(self._stream, followed, self._begun, due, roster)

        def run(tx: Tx) -> bool:
            if lease is not None:
                leases.check(tx, AGENT_LEASE, lease.token)
            return turn.take(tx, segment.number)

        self._followed = None  # what a transaction leaves half done is not used again
        moved = self._log.catalog.write(run, locks=sorted(locks))
        self._followed, followed.state = followed, turn.state
        followed.is_new = followed.is_new and not turn.taken
        turn.tell()
        return moved

    def _told(self, payloads: Payloads) -> tuple[set[str], set[str]]:
        """The groups that other regions' markers move, and those whose acks they may take back."""
        assert self._followed is not None
        lives = self._followed.core.lives
        moved, commanded = set(), set()
        for marker in payloads.values():
            if isinstance(marker, UpdateMarker | Command) and marker.source != self._me.name:
                moved.add(marker.group)
                if marker.life > lives.get(marker.group, Life()):
                    commanded.add(marker.group)
        return moved, commanded

    def _unanswered(self) -> bool:
        """Whether somebody waits for a snapshot that an agent before this one began."""
        assert self._followed is not None
        asked, pending = self._followed.state.asked, self._followed.core.controller.pending()
        return asked is not None and not asked.outcome and asked.snapshot_id not in pending

    def _wanted(self, bucket: str, number: int) -> Callable[[Tx], str | None]:
        """The snapshot that an operator wants now, or to be forced."""

        def look(tx: Tx) -> str | None:
            entry = entries.get(tx, bucket, state_key(self._stream, number))
            return None if entry is None or entry.value is None else entry.value.decode()

        return look

    def _is_due(
        self, segment: Segment, records: Mapping[str, GroupRecord], members: tuple[str, ...]
    ) -> bool:
        """Whether something cannot wait for the timer: markers, groups that came or moved."""
        assert self._followed is not None
        core, state = self._followed.core, self._followed.state
        known, end = core.snapshot_groups, core.log.end
        if self._followed.is_new or members != core.controller.members:
            return True
        if not records.keys() <= known.keys() or any(
            (name in records) == group.owed for name, group in state.groups.items()
        ):
            return True
        if any(life_of(record) > known[name].life for name, record in records.items()):
            return True
        if end != segment.head and self._log.catalog.read(
            lambda tx: markers.spans(tx, segment.id, end, segment.head)
        ):
            return True
        now_s = steady_s()
        if now_s - self._acked_s < min(ACKS_S, self._all.settings.interval_ms / 10_000):
            return False
        self._acked_s = now_s
        return core.log.first != segment.tail or self._log.catalog.read(
            lambda tx: bool(replicas.untranslated(tx, list(records)))
        )

    def _is_tick(self, link: LinkRecord, segment: Segment) -> frozenset[str] | None:
        """The regions that can be asked, if the timer is due and has something to do."""
        assert self._followed is not None
        controller = self._followed.core.controller
        now_s = steady_s()
        if now_s - self._ticked_s < self._all.settings.interval_ms / 1000:
            return None
        if controller.is_idle and self._followed.core.log.end == segment.head:
            return None
        self._ticked_s = now_s
        return self._reached(link, segment)

    def _reached(self, link: LinkRecord, segment: Segment) -> frozenset[str]:
        return frozenset(self._all.connected(self._me, link, segment.number))
