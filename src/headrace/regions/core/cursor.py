"""Origin cursor: a group in one region, at the same place as everywhere else.

Theory of operation
-------------------
The truth is the group's :class:`~headrace.regions.core.progress.OriginProgress`.  Consumers work
with local offsets, so the cursor also keeps the same progress *translated*: the set of local
offsets that are acked, markers among them.  Both are changed together, piece by piece:

* a consumer acks offsets → they are acked by origin;
* another region's acks are joined → what is new is acked by offset, as far as it is here;
* events arrive → those that were acked elsewhere before they came are acked at once.

Each costs in proportion to what changes, however much is acked already.  Only a command that takes
acks back (seek, delete, create) translates the whole anew.

What changes gets a *revision* and goes to a journal of bounded length.  A region that has all up to
a revision is sent what came after it; one that is further behind than the journal reaches, or
behind a command, is sent the whole.  Acks learned from one region are passed on to the others, so
progress finds its way around a broken link.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.errors import CursorDeletedError, UnknownRegionError, UpdateAheadError
from headrace.groups.progress.ranges import AckedRanges
from headrace.regions.core.origins import Lane, OriginMap, TrimmedRuns
from headrace.regions.core.progress import CursorDelta, LaneDelta, Merged, OriginProgress
from headrace.regions.core.stamps import Life, Stamp
from headrace.regions.core.translation import command_lanes

JOURNAL_MAX = 4096
BULK_MIN = 4096
"""More new ranges than this at once are translated together, and not journalled."""


class _Change(NamedTuple):
    lane: Lane
    stamp: Stamp
    lo: int
    hi: int
    source: str


class CursorMessage(msgspec.Struct, frozen=True):
    """Progress of a group, from one region to another; answered by a receipt."""

    source: str
    revision: int
    delta: CursorDelta


class CursorReceipt(msgspec.Struct, frozen=True):
    """``region`` has taken over everything up to ``revision`` of the sender."""

    region: str
    group: str
    revision: int


class OriginCursor:
    """One group in one region.  ``log`` is the segment's map, shared by all its groups."""

    def __init__(
        self,
        region: str,
        group: str,
        log: OriginMap,
        *,
        restored: CursorDelta | None = None,
        revision: int = 0,
        journal_max: int = JOURNAL_MAX,
        left: TrimmedRuns | None = None,
    ) -> None:
        self.region = region
        self.group = group
        self._log = log
        self.left = left if left is not None else TrimmedRuns()
        self.progress = OriginProgress(group)
        if restored is not None:
            self.progress.merge(restored)
        self.revision = revision
        """Grows with every change; the same revision means that nothing has changed."""
        self._journal: list[_Change] = []
        self._journal_max = journal_max
        self._journal_from = revision
        self._received: dict[str, int] = {}
        self.acked = self._translated()
        """The acked offsets here, markers included; delivery starts from it."""

    # --- reading -----------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.progress} in {self.region}"

    @property
    def deleted(self) -> bool:
        """Whether the group was deleted."""
        return self.progress.life.deleted

    def behind(self, region: str) -> int:
        """How many changes a region has not confirmed; 0 means that it knows all."""
        return self.revision - self._received.get(region, -1)

    # --- what consumers do -------------------------------------------------------------

    def ack(self, lo: int, hi: int | None = None) -> int:
        """Ack an offset, or the offsets ``lo`` to ``hi`` (exclusive); how many were new."""
        hi = lo + 1 if hi is None else hi
        update = f"ack of [{lo}, {hi})"
        self._require_alive(update)
        if not 0 <= lo <= hi <= self._log.end:
            raise UpdateAheadError(update, str(self), f"the log ends at {self._log.end}")
        trimmed = self.left.origins(lo, min(hi, self._log.first))
        for lane, first, last in chain(trimmed, self._log.origins(max(lo, self.acked.floor), hi)):
            if self.progress.ack(lane, first, last):
                self._note(lane, first, last, self.region)
        return self.acked.ack_range(lo, hi)

    # --- what the log does -------------------------------------------------------------

    def events_appended(self, offset: int, lane: Lane, sequence: int, count: int = 1) -> None:
        """The log's map has new events; those acked before they came count at once."""
        known = self.progress.acked(lane)
        if known is not None:
            for lo, hi in known.between(sequence, sequence + count):
                self.acked.ack_range(offset + lo - sequence, offset + hi - sequence)

    def markers_appended(self, offset: int, count: int = 1) -> None:
        """The log has new markers; nobody consumes them."""
        self.acked.ack_range(offset, offset + count)

    def trim(self, first: int) -> None:
        """The log's map is about to begin at ``first``: what goes is done with here, and only here.

        An ack that is under way for some of it still counts everywhere.
        """
        first = min(first, self._log.end)
        for lo, hi in self.acked.missing(first):
            self.left.add(self._log.pieces(lo, hi))
        self.acked.ack_range(0, first)

    # --- what other regions do ---------------------------------------------------------

    def merge(self, delta: CursorDelta, source: str = "") -> Merged:
        """Join another region's progress."""
        merged = self.progress.merge(delta)
        if merged.rewound:
            self._commanded()
            return merged
        if len(merged.gains) > BULK_MIN:
            self._merge_many(merged)
            return merged
        for lane, lo, hi in merged.gains:
            self._note(lane, lo, hi, source)
            for first, last in self._log.offsets(lane, lo, hi):
                self.acked.ack_range(first, last)
        return merged

    def _merge_many(self, merged: Merged) -> None:
        """Join a bulk of acks: too many to journal, so the other regions are sent the whole."""
        by_lane: dict[Lane, list[tuple[int, int]]] = {}
        for lane, lo, hi in merged.gains:
            by_lane.setdefault(lane, []).append((lo, hi))
        for lane, ranges in by_lane.items():
            _ack_pieces(self.acked, self._log.many_offsets(lane, ranges))
        self._restart_journal()

    # --- commands ----------------------------------------------------------------------

    def seek(self, offset: int) -> CursorDelta:
        """Everything below ``offset`` is acked and nothing else, here and in every region.

        Lanes that do not come here keep their progress, and so does what never was here of those
        that do.  At the end of the log, what is acked and has not come yet stays acked.  Below the
        retained part of the log, the seek is to the beginning of everything, which other regions
        may still have.
        """
        update = f"seek to {offset}"
        self._require_alive(update)
        self._require_within(update, offset)
        return self._command(self.progress.life, self._lanes_below(offset))

    def _lanes_below(self, offset: int) -> tuple[LaneDelta, ...]:
        log = self._log
        at_end = offset == log.end
        cut = log.cut(offset) if offset > log.first or at_end else {}
        ends = {lane: log.next_sequence(lane) for lane in log.lanes()}
        target = [(lane, 0, sequence) for lane, sequence in cut.items()]
        return command_lanes(self.progress, self.region, target, log.absent, ends, at_end=at_end)

    def delete(self) -> CursorDelta:
        """The group is gone in every region; acks under way cannot bring it back."""
        self._require_alive("delete")
        return self._command(Life(self.progress.next_stamp(self.region), deleted=True), ())

    def create(self, offset: int) -> CursorDelta:
        """Begin again after a delete, with everything below ``offset`` acked."""
        update = f"create at {offset}"
        if not self.deleted:
            raise CursorDeletedError(update, str(self), "the group is there")
        self._require_within(update, offset)
        return self._command(Life(self.progress.next_stamp(self.region)), self._lanes_below(offset))

    def _command(self, life: Life, lanes: tuple[LaneDelta, ...]) -> CursorDelta:
        delta = CursorDelta(self.group, life, lanes)
        self.progress.merge(delta)
        self._commanded()
        return delta

    def _commanded(self) -> None:
        self.acked = self._translated()
        self._restart_journal()

    def _restart_journal(self) -> None:
        self._journal.clear()
        self.revision += 1
        self._journal_from = self.revision

    def _require_alive(self, update: str) -> None:
        if self.deleted:
            raise CursorDeletedError(update, str(self), "create the group again first")

    def _require_within(self, update: str, offset: int) -> None:
        if not 0 <= offset <= self._log.end:
            raise UpdateAheadError(update, str(self), f"the log ends at {self._log.end}")

    # --- exchange ----------------------------------------------------------------------

    def message_for(self, region: str) -> CursorMessage | None:
        """What a region has not confirmed yet, to be sent and sent again until it has."""
        if region == self.region:
            raise UnknownRegionError("a message to this region itself", str(self), "it has no use")
        received = self._received.get(region, -1)
        if received >= self.revision:
            return None
        if received < self._journal_from:
            return CursorMessage(self.region, self.revision, self.progress.whole())
        news = [
            change
            for change in self._journal[received - self._journal_from :]
            if change.source != region
        ]
        if not news:
            self._received[region] = self.revision
            return None
        delta = CursorDelta(self.group, self.progress.life, _joined(news))
        return CursorMessage(self.region, self.revision, delta)

    def receive(self, message: CursorMessage) -> tuple[Merged, CursorReceipt]:
        """Join a message, and say so."""
        if message.source == self.region:
            raise UnknownRegionError("a message of this region itself", str(self), "it went astray")
        merged = self.merge(message.delta, message.source)
        return merged, CursorReceipt(self.region, self.group, message.revision)

    def receipt(self, receipt: CursorReceipt) -> None:
        """A region has confirmed; late and repeated receipts change nothing."""
        if receipt.revision > self.revision or receipt.group != self.group:
            raise UpdateAheadError(
                f"receipt of {receipt.region} for revision {receipt.revision} of {receipt.group!r}",
                f"{self.group!r} is at revision {self.revision}",
                "there is no such revision",
            )
        known = self._received.get(receipt.region, -1)
        self._received[receipt.region] = max(known, receipt.revision)

    def forget_region(self, region: str) -> None:
        """A region may have lost what it confirmed: send it the whole."""
        self._received.pop(region, None)

    # --- internals ---------------------------------------------------------------------

    def _note(self, lane: Lane, lo: int, hi: int, source: str) -> None:
        self._journal.append(_Change(lane, self.progress.stamp(lane), lo, hi, source))
        self.revision += 1
        if len(self._journal) > 2 * self._journal_max:
            del self._journal[: self._journal_max]
            self._journal_from += self._journal_max

    def _translated(self) -> AckedRanges:
        """All of the progress as local offsets."""
        log = self._log
        acked = AckedRanges(floor=log.first)
        _ack_pieces(acked, log.markers(log.first, log.end))
        for lane in log.lanes():
            known = self.progress.acked(lane)
            if known is not None:
                _ack_pieces(acked, log.offsets(lane, 0, known.floor))
                _ack_pieces(acked, log.many_offsets(lane, known.to_tuples()))
        return acked


def _ack_pieces(acked: AckedRanges, pieces: Iterable[tuple[int, int]]) -> None:
    """Ack disjoint ranges of offsets, in any order."""
    ordered = sorted(pieces)
    if ordered:
        bounds = np.array(ordered, dtype=np.int64)
        acked.ack_ranges(bounds[:, 0], bounds[:, 1])


def _joined(changes: list[_Change]) -> tuple[LaneDelta, ...]:
    """Changes as one delta: ascending ranges per lane, touching ones joined."""
    by_lane: dict[tuple[Lane, Stamp], list[tuple[int, int]]] = {}
    for change in changes:
        by_lane.setdefault((change.lane, change.stamp), []).append((change.lo, change.hi))
    parts = []
    for (lane, stamp), ranges in sorted(by_lane.items()):
        joined: list[tuple[int, int]] = []
        for lo, hi in sorted(ranges):
            if joined and lo <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
            else:
                joined.append((lo, hi))
        parts.append(LaneDelta(lane, stamp, 0, tuple(joined)))
    return tuple(parts)
