"""One transaction over a followed segment: what came is taken in, what follows from it is written.

See :mod:`headrace.regions.runtime.snapshotting`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping

import msgspec

from headrace.catalog import Tx, batches, entries, progress, replicas, streams
from headrace.catalog.streams import Segment
from headrace.errors import RoundOvertakenError
from headrace.groups.homes import GroupRecord
from headrace.groups.progress import AckedRanges, Progress, store
from headrace.host.clock import steady_s
from headrace.log import events, limits
from headrace.log.shares import Rows, inline
from headrace.log.times import now_us
from headrace.regions import kinds
from headrace.regions.core.effects import (
    Append,
    MarkerRefused,
    RegionEffect,
    SkipReason,
    SnapshotAborted,
    SnapshotSkipped,
)
from headrace.regions.core.markers import Marker, RequestMarker, SnapshotMarker, encode_marker
from headrace.regions.core.progress import OriginProgress
from headrace.regions.core.stamps import Life, Stamp
from headrace.regions.runtime import joining, wishes
from headrace.regions.runtime.following import FollowedSegment, Payloads
from headrace.regions.runtime.roster import Roster
from headrace.regions.snapshots import (
    ASKED_BUCKET,
    FORCED_BUCKET,
    PendingSnapshot,
    SnapshotState,
    get_state,
    put_state,
    state_key,
)

_log = logging.getLogger(__name__)

_UNTOLD = (SkipReason.TOO_SOON, SkipReason.NO_TRAFFIC)
"""Reasons that are the rule, and not counted."""


class SnapshotBegin(msgspec.Struct, frozen=True):
    """A snapshot under way: where the log ended when it began, and when that was."""

    end: int = 0
    at_us: int = 0


class TurnDue(msgspec.Struct, frozen=True):
    """What a turn was begun with."""

    members: tuple[str, ...]
    payloads: Payloads
    """The markers that were read."""
    updated: frozenset[str]
    """Readers that updates were written for, or are owed for."""
    locked: frozenset[str]
    """Those of them whose rows of progress may be changed."""
    commanded: frozenset[str]
    """Those of which a command of another region may take acks back."""
    tick: frozenset[str] | None = None
    """The regions that can be asked, if the timer is due."""
    forced: str | None = None
    """The snapshot that an operator wants to go on without who is silent."""
    asked: str | None = None
    """The id of the snapshot that an operator wants now."""
    reached: frozenset[str] = frozenset()
    """The regions that could be asked for it."""


class SegmentTurn:
    """One transaction over one segment."""

    def __init__(
        self,
        stream: str,
        followed: FollowedSegment,
        begun: dict[str, SnapshotBegin],
        due: TurnDue,
        roster: Roster,
    ) -> None:
        self._stream, self._followed, self._core = stream, followed, followed.core
        self._begun, self._due, self._roster = begun, due, roster
        self.taken = False
        self._fresh: set[str] = set()
        self._rewound: set[str] = set()
        self._effects: list[RegionEffect] = []
        self.state: SnapshotState = followed.state
        """What is stored at its end."""

    def take(self, tx: Tx, number: int) -> bool:
        """All of it; true if something changed, or is to be looked at again at once."""
        if self.taken:
            raise RoundOvertakenError(self._core.region, "its transaction was begun twice")
        stream = streams.require(tx, self._stream)
        segment = stream.segment(number)
        if segment is None or not self._followed.is_readable(tx, segment, self._due.payloads):
            return True
        known = self._followed.state
        if not self._followed.is_new and get_state(tx, self._stream, number) != known:
            raise RoundOvertakenError(self._core.region, "another agent or a command came before")
        self.taken = True
        records = self._roster.within(tx).under_snapshots(self._stream)
        self._renew(records)
        lives = dict(self._core.lives)
        effects = self._core.members_changed(self._due.members)
        effects += self._followed.follow(tx, segment, self._due.payloads)
        self._rewound = {
            name for name in self._due.commanded if self._core.lives.get(name) != lives.get(name)
        }
        found = replicas.cursors(tx, list(records), segment.id)
        cursors = {name: cursor for (name, _), cursor in found.items()}
        effects += self._acked(tx, segment, records, cursors)
        if self._due.tick is not None:
            now_ms = int(steady_s() * 1000)
            effects += self._core.tick(uuid.uuid4().hex, now_ms, self._due.tick)
        effects += self._wishes(tx, number)
        wrote = self._settle(tx, stream.id, segment, effects)
        owed = self._join(tx, segment, records)
        self._note_local(tx, segment, records, cursors)
        return self._save(tx, segment, owed) or wrote

    # -- groups -------------------------------------------------------------------------

    def _renew(self, records: Mapping[str, GroupRecord]) -> None:
        """Groups that are new here or begin a new life, and those that are here no longer."""
        core = self._core
        owed = {name for name, group in self._followed.state.groups.items() if group.owed}
        for name in [n for n in core.snapshot_groups if n not in records and n not in owed]:
            del core.snapshot_groups[name]
        for name, record in records.items():
            life = life_of(record)
            if core.lives.get(name, Life()) < life:
                core.snapshot_groups.pop(name, None)
                core.lives[name] = life
            if name not in core.snapshot_groups:
                core.create(name)
                self._fresh.add(name)

    def _acked(
        self,
        tx: Tx,
        segment: Segment,
        records: Mapping[str, GroupRecord],
        cursors: Mapping[str, replicas.CursorRow],
    ) -> list[RegionEffect]:
        """What groups acked, and what was trimmed before anybody did, in the order it happened."""
        effects: list[RegionEffect] = []
        trims: dict[int, dict[str, Progress]] = {}
        # What was acked before a command of another region came does not count any more.
        counts = [name for name in records if name not in self._rewound]
        told_of = replicas.readers_of_trims(tx, segment.id)
        for name in told_of.intersection(counts):
            for trim in replicas.trims(tx, name, segment.id):
                trims.setdefault(trim.upto, {})[name] = Progress(trim.floor).merge(
                    store.decode_kept(tx, name, segment.id, trim.state)
                )
        wanted = [
            name
            for name in records
            if name not in self._rewound or (name in cursors and cursors[name].sought)
        ]
        rows = progress.of_groups(tx, wanted, segment.id)
        for upto in sorted({*trims, segment.tail}):
            then = trims.get(upto, {})
            if upto <= self._core.log.first:
                continue
            for name in counts:
                before = then.get(name) or (store.decode(rows[name]) if name in rows else None)
                if before is not None:
                    effects += self._ack(name, before, upto)
            effects += self._core.trimmed(upto)
        for name, row in rows.items():
            cursor = cursors.get(name)
            is_known = cursor is not None and cursor.local == row.state and not cursor.sought
            if is_known and name not in self._fresh:
                continue
            now = store.decode(row)
            if cursor is not None and cursor.sought:  # here, and so in every region
                to = max(now.floor, self._core.log.first) - 1
                at_end = cursor.sought == replicas.SOUGHT_END
                effects += self._core.seek_everywhere(name, to, at_end=at_end)
                self._rewound.discard(name)
            effects += self._ack(name, now, segment.head)
        for name in told_of.intersection(records):
            replicas.forget_trims(tx, name, segment.id, segment.tail)
        return effects

    def _ack(self, name: str, known: Progress, upto: int) -> list[RegionEffect]:
        """Tell of what a row says is acked, below ``upto``; trims are no acks."""
        core, effects = self._core, list[RegionEffect]()
        floor = min(known.floor, upto)
        if floor > core.log.first:
            effects += core.ack(name, core.log.first, floor)
        for lo, hi in known.above:
            if lo < upto:
                effects += core.ack(name, lo, min(hi, upto))
        return effects

    def _join(self, tx: Tx, segment: Segment, records: Mapping[str, GroupRecord]) -> set[str]:
        """Join what updates brought to rows of progress; the groups that are not here yet.

        A command of another region takes acks back as well: whoever runs here loses the unit.
        """
        owed, came = set[str](), dict[str, AckedRanges]()
        for name in self._due.updated:
            cursor = self._core.snapshot_groups.get(name)
            if cursor is None:
                continue
            if name in records and name in self._due.locked:
                if name in self._rewound:
                    place, to = (segment.number, segment.id), Progress.of(cursor.acked, {})
                    kinds.seek(tx, records[name], name, self._stream, place, to)
                else:
                    came[name] = cursor.acked
            else:
                owed.add(name)
        joining.join_readers(tx, segment.id, came)
        return owed

    def _note_local(
        self,
        tx: Tx,
        segment: Segment,
        records: Mapping[str, GroupRecord],
        cursors: Mapping[str, replicas.CursorRow],
    ) -> None:
        """Remember up to which row of progress a group's acks are taken in."""
        taken = []
        for name, row in progress.of_groups(tx, list(records), segment.id).items():
            cursor = cursors.get(name)
            if cursor is None:
                begun = records[name].life
                life = Life(Stamp(begun.counter, begun.region))
                state = joining.encode_cursor(OriginProgress(name, life))
                cursor = replicas.CursorRow(name, segment.id, 0, False, 0, state, b"")
            if cursor.local != row.state or cursor.sought or name in self._rewound:
                taken.append(msgspec.structs.replace(cursor, local=row.state, sought=0))
        replicas.put_cursor(tx, *taken)

    def _wishes(self, tx: Tx, number: int) -> list[RegionEffect]:
        """Do what an operator wants, and leave what came of it."""
        effects, key = list[RegionEffect](), state_key(self._stream, number)
        if self._due.asked is not None:
            asked, begun = wishes.begin(self._core, number, self._due.asked, self._due.reached)
            self.state = msgspec.structs.replace(self.state, asked=asked)
            entries.delete(tx, ASKED_BUCKET, key)
            effects += begun
        if self._due.forced is not None:
            forced, gone_on = wishes.force(self._core, number, self._due.forced)
            self.state = msgspec.structs.replace(self.state, forced=forced)
            entries.delete(tx, FORCED_BUCKET, key)
            effects += gone_on
        return effects

    # -- markers ------------------------------------------------------------------------

    def _settle(
        self, tx: Tx, stream_id: int, segment: Segment, effects: Iterable[RegionEffect]
    ) -> bool:
        """Write the markers that the core asks for, and those that follow from them."""
        wrote = False
        effects = list(effects)
        while effects:
            self._effects += effects
            asked = [effect.marker for effect in effects if isinstance(effect, Append)]
            if not asked:
                break
            for marker in asked:
                self._note(tx, marker)
            at = self._append(tx, segment, asked)
            effects = self._followed.told(at, *asked)
            wrote = True
        if wrote:
            tx.notify(streams.channel(stream_id))
        return wrote

    def _append(self, tx: Tx, segment: Segment, asked: list[Marker]) -> int:
        batch = events.marker_batch(now_us(), *map(encode_marker, asked))
        part = Rows(batch, events.layout_of(batch.schema), events.stamps_of(batch))
        first = self._core.log.end
        at = first
        for piece in part.cut(limits.INLINE_BYTES):
            placed = batches.append(tx, [inline(segment.id, piece)])
            if placed is None or placed[segment.id] != at:
                raise RoundOvertakenError(self._core.region, "its segment was sealed or is gone")
            at += piece.rows
        return first

    def _note(self, tx: Tx, marker: Marker) -> None:
        now = tx.now_us()
        match marker:
            case RequestMarker(snapshot_id=name, round=1):
                self._begun[name] = SnapshotBegin(self._core.log.end, now)
            case SnapshotMarker(snapshot_id=name):
                quiet = self._begun.pop(name, SnapshotBegin()).end
                self.state = msgspec.structs.replace(
                    self.state,
                    quiet=max(self.state.quiet, quiet),
                    completed=self.state.completed + 1,
                    completed_us=now,
                )
                self._answer_asked(name, "complete")
            case _:
                pass

    def _answer_asked(self, snapshot_id: str, outcome: str) -> None:
        """Tell whoever asked for a snapshot what came of it."""
        asked = self.state.asked
        if asked is not None and asked.snapshot_id == snapshot_id and not asked.outcome:
            asked = msgspec.structs.replace(asked, outcome=outcome)
            self.state = msgspec.structs.replace(self.state, asked=asked)

    # -- keeping ------------------------------------------------------------------------

    def _save(self, tx: Tx, segment: Segment, owed: set[str]) -> bool:
        core = self._core
        for effect in self._effects:
            if isinstance(effect, SnapshotAborted):
                self._answer_asked(effect.snapshot_id, _why(effect))
        asked = self.state.asked
        if asked is not None and asked.snapshot_id not in core.controller.pending():
            self._answer_asked(asked.snapshot_id, "the agent was started anew meanwhile")
        new = self.state
        skipped, last_skip = dict(new.skipped), ""
        for effect in self._effects:
            match effect:
                case SnapshotAborted(snapshot_id=name):
                    self._begun.pop(name, None)
                    new = msgspec.structs.replace(
                        new, aborted=new.aborted + 1, last_abort=_why(effect)
                    )
                case SnapshotSkipped(reason=reason) if reason not in _UNTOLD:
                    last_skip = _why(effect)
                    skipped[reason.name.lower()] = skipped.get(reason.name.lower(), 0) + 1
        pending = tuple(
            PendingSnapshot(name, str(phase), waiting, self._begun.get(name, SnapshotBegin()).at_us)
            for name, (phase, waiting) in core.controller.pending().items()
        )
        if self._due.tick is None or last_skip == new.last_skip:
            last_skip, skipped = new.last_skip, new.skipped  # told once
        new = msgspec.structs.replace(
            new,
            place=core.log.end,
            first=core.log.first,
            members=core.controller.members,
            groups=self._followed.groups(owed),
            pending=pending,
            skipped=skipped,
            last_skip=last_skip,
        )
        self.state = new
        if new == self._followed.state and not self._followed.is_new:
            return False
        put_state(tx, self._stream, segment.number, new)
        return True

    def tell(self) -> None:
        """Say what a person should know."""
        for effect in self._effects:
            match effect:
                case SnapshotAborted(snapshot_id=name):
                    _log.warning("snapshot %s of %s: %s", name, self._stream, _why(effect))
                case MarkerRefused(error=error):
                    _log.info("a marker of %s was refused: %s", self._stream, error)


def _why(effect: SnapshotAborted | SnapshotSkipped) -> str:
    regions = effect.waited_for if isinstance(effect, SnapshotAborted) else effect.regions
    return f"{effect.reason}: {', '.join(regions)}" if regions else str(effect.reason)


SEEKS = 2**20
"""Every seek begins a new life of a group, so between two lives of its record there is room."""


def life_of(record: GroupRecord) -> Life:
    """Since when a group is there, as its cursors have it."""
    return Life(Stamp(record.life.counter * SEEKS, record.life.region))
