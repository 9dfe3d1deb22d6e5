"""A simulated region: a log, the real cores over it, and replication that pushes to the others.

What originates here goes to every other region through a channel of its own, in order, from the
last place that was confirmed; what is a repeat is left out at the other end.  Progress by origin
travels beside it.  A link can be halted in one direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.groups.progress.ranges import AckedRanges
from headrace.regions.core.cursor import CursorMessage, CursorReceipt, OriginCursor
from headrace.regions.core.effects import (
    Append,
    MarkerRefused,
    RegionEffect,
    SkipReason,
    SnapshotAborted,
    SnapshotSettings,
    SnapshotSkipped,
)
from headrace.regions.core.markers import Marker, SnapshotMarker, UpdateMarker, recipients
from headrace.regions.core.origins import lane_of, lane_reaches
from headrace.regions.core.segment import LinkedSegment
from headrace.regions.core.updates import SnapshotCursor
from headrace.sim.world import Process, World

if TYPE_CHECKING:
    from headrace.sim.scenarios.regions import RegionsScenario

GROUP = "billing"
SETTINGS = SnapshotSettings(interval_ms=150, timeout_ms=2500, pending_max=2)
REPLICATE_MS = 40
TICK_MS = 100
CONNECTED_MS = 600
BATCH_MAX = 8


class RegionEntry(msgspec.Struct, frozen=True):
    """A record of a log: an event by lane and sequence, or a marker.

    In a channel it may also be a gap: the lane goes on at ``sequence``, and what came before it is
    gone from its source.
    """

    origin: str
    lane: str = ""
    sequence: int = 0
    marker: Marker | None = None
    gap: bool = False


class Batch(msgspec.Struct, frozen=True):
    """Records of a channel from ``start`` on; an empty one shows that the link is alive."""

    start: int
    entries: tuple[RegionEntry, ...]


class RegionGot(msgspec.Struct, frozen=True):
    """The channel has arrived up to here."""

    upto: int


class Region(Process):
    """A region.  Log, cursors and what has arrived are durable; snapshots under way are not."""

    scenario: RegionsScenario

    def __init__(self, world: World, name: str, others: list[str]) -> None:
        super().__init__(world, name)
        self.others = others
        self.members = list(others)
        self.log: list[RegionEntry] = []
        self.channels: dict[str, list[RegionEntry]] = {other: [] for other in others}
        self.arrived: dict[str, int] = dict.fromkeys(others, 0)
        self.gaps: list[tuple[int, str, int, int]] = []
        """Of lanes that were met in the middle or have a gap: where, and the sequences."""
        self.first = 0
        """The first offset that is retained; ``log`` keeps the rest for the oracle."""
        self.segment = LinkedSegment(name, others, self._snapshots_between, SETTINGS)
        self.started = 0

    # --- looking -----------------------------------------------------------------------

    @property
    def by_origin(self) -> OriginCursor:
        return self.segment.origin_groups[GROUP]

    @property
    def by_snapshot(self) -> SnapshotCursor | None:
        return self.segment.snapshot_groups.get(GROUP)

    def next_sequence(self, lane: str) -> int:
        return self.segment.log.next_sequence(lane)

    @property
    def awake(self) -> bool:
        return self.alive and not self.paused

    def _snapshots_between(self, lo: int, hi: int) -> list[SnapshotMarker]:
        return [e.marker for e in self.log[lo:hi] if isinstance(e.marker, SnapshotMarker)]

    def event_at(self, offset: int) -> tuple[str, int]:
        entry = self.log[offset]
        return entry.lane, entry.sequence

    def events(self, end: int) -> Iterator[tuple[int, tuple[str, int]]]:
        """The events below an offset."""
        for offset, entry in enumerate(self.log[:end]):
            if entry.marker is None:
                yield offset, (entry.lane, entry.sequence)

    def ends(self, end: int) -> dict[str, int]:
        """How far every lane had come below an offset, trimmed or not."""
        found = {lane: sequence + 1 for _, (lane, sequence) in self.events(end)}
        for at, lane, _, sequence in self.gaps:
            if at <= end:
                found[lane] = max(found.get(lane, 0), sequence)
        return found

    def never_had(self, lane: str, sequence: int) -> bool:
        """Whether an event did not and will not come here, although its lane does."""
        return any(name == lane and lo <= sequence < hi for _, name, lo, hi in self.gaps)

    def starts(self) -> dict[str, int]:
        """The first sequence of every lane that is still here, or would be next."""
        return self.ends(self.first)

    def unacked(self, acked: AckedRanges, most: int) -> list[int]:
        """The first offsets that a consumer would be given."""
        found: list[int] = []
        for lo, hi in acked.missing(len(self.log)):
            found.extend(range(lo, min(hi, lo + most - len(found))))
            if len(found) >= most:
                break
        return found

    def synced(self, target: Region) -> bool:
        """Whether another region has all that this one has written and knows."""
        drained = self.confirmed.get(target.name) == len(self.channels[target.name])
        return drained and self.by_origin.behind(target.name) == 0

    # --- living ------------------------------------------------------------------------

    def start(self) -> None:
        before = self.segment
        self.segment = LinkedSegment(
            self.name,
            self.others,
            self._snapshots_between,
            SETTINGS,
            first=self.first,
            lanes=before.log.retained(),
            absent=before.log.absent,
        )
        self.segment.members_changed(self.members)
        for offset, entry in enumerate(self.log[self.first :], self.first):
            if entry.marker is None:
                self.segment.events_restored(offset, entry.lane, entry.sequence)
            else:
                self.segment.marker_restored(offset, entry.marker)
        self.segment.lives.update(before.lives)
        for group, cursor in before.snapshot_groups.items():
            self.segment.snapshot_groups[group] = SnapshotCursor(
                self.name,
                group,
                self.segment.log,
                acked=cursor.acked.copy(),
                used=cursor.used,
                applied=cursor.applied,
                life=cursor.life,
                holes=cursor.holes,
                left=cursor.left,
            )
        for group, origin in before.origin_groups.items():
            restored, revision = origin.progress.whole(), origin.revision
            self.segment.origin_groups[group] = OriginCursor(
                self.name,
                group,
                self.segment.log,
                restored=restored,
                revision=revision,
                journal_max=self.scenario.journal_max,
                left=origin.left,
            )
        self.confirmed: dict[str, int] = {}
        self.halted: set[str] = set()
        """Links to these regions stand still; the other direction may go on."""
        self.heard_ms: dict[str, int] = {}
        self.after(REPLICATE_MS, "replicate")
        self.after(TICK_MS, "tick")

    def timer(self, tag: Any) -> None:
        match tag:
            case "replicate":
                for member in self.members:
                    self._push(member, idle=False)
                self.after(REPLICATE_MS, "replicate")
            case "tick":
                self._tick()
                self.after(TICK_MS, "tick")

    def _tick(self) -> None:
        for member in self.members:
            self._push(member, idle=True)
        now_ms = self.now_ms
        connected = [m for m, at in self.heard_ms.items() if now_ms - at < CONNECTED_MS]
        self.started += 1
        self.do(self.segment.tick(f"{self.name}{self.started}", now_ms, connected))

    def _push(self, member: str, *, idle: bool) -> None:
        channel = self.channels[member]
        start = self.confirmed.get(member, 0)
        if member not in self.halted and (start < len(channel) or idle):
            self.send(member, Batch(start, tuple(channel[start : start + BATCH_MAX])))
        if not idle:
            message = self.by_origin.message_for(member)
            if message is not None:
                self.send(member, message)

    def receive(self, source: str, message: Any) -> None:
        self.heard_ms[source] = self.now_ms
        match message:
            case Batch(start=start, entries=entries):
                for entry in entries[max(self.arrived[source] - start, 0) :]:
                    if start > self.arrived[source]:
                        break
                    self.arrived[source] += 1
                    self.append(entry)
                self.send(source, RegionGot(self.arrived[source]))
            case RegionGot(upto=upto):
                self.confirmed[source] = upto
            case CursorMessage():
                merged, receipt = self.segment.receive(message)
                self.send(source, receipt)
                self.scenario.origin_changed(self, rewound=merged.rewound)
            case CursorReceipt():
                self.by_origin.receipt(message)

    # --- the log -----------------------------------------------------------------------

    def append(self, entry: RegionEntry) -> None:
        """Append a record, unless it is an event that is here already."""
        if entry.gap:
            self._pass_over(entry.lane, entry.sequence)
            self.scenario.touched(self)
            return
        if entry.marker is not None:
            self._append_markers(entry)
            return
        if entry.sequence < self.segment.log.next_sequence(entry.lane):
            self.world.reach("replication.repeat left out")
            return
        self._record(entry)
        self.segment.events_appended(len(self.log) - 1, entry.lane, entry.sequence)
        self.scenario.touched(self)

    def _append_markers(self, *entries: RegionEntry) -> None:
        first = len(self.log)
        markers = [entry.marker for entry in entries if entry.marker is not None]
        for entry in entries:
            self._record(entry)
            if isinstance(entry.marker, SnapshotMarker):
                self.world.reach("snapshot.complete")
                self.scenario.oracle.snapshot_taken(self, len(self.log) - 1, entry.marker)
        self.do(self.segment.markers_appended(first, markers))
        self.scenario.touched(self)

    def _record(self, entry: RegionEntry) -> None:
        self.log.append(entry)
        if entry.origin == self.name:
            self._to_channels(entry)

    def _to_channels(self, entry: RegionEntry) -> None:
        for other, channel in self.channels.items():
            if entry.marker is not None:
                goes = other in recipients(entry.marker, self.others)
            else:
                goes = lane_reaches(entry.lane, other)
            if goes:
                channel.append(entry)

    def publish(self, audience: list[str] | None) -> None:
        lane = lane_of(self.name, audience)
        self.append(RegionEntry(self.name, lane, self.segment.log.next_sequence(lane)))

    def join_without_history(self, source: Region) -> None:
        """What another region has published for all until now never comes here."""
        self._pass_over(source.name, source.next_sequence(source.name))
        source.channels[self.name].clear()

    def _pass_over(self, lane: str, sequence: int) -> None:
        before = self.next_sequence(lane)
        if before < sequence:
            self.note("passes over %s/%s to %s", lane, before, sequence)
            self.gaps.append((len(self.log), lane, before, sequence))
            self.segment.skip_to(lane, sequence)

    def lose(self, target: str, most: int) -> bool:
        """Retention removes events here before they have crossed to another region."""
        channel, lane, upto = self.channels[target], "", 0
        for at in range(self.scenario.regions[target].arrived[self.name], len(channel)):
            entry = channel[at]
            if entry.marker is not None or entry.gap or lane not in ("", entry.lane):
                if lane:
                    break
                continue
            lane, upto, most = entry.lane, entry.sequence + 1, most - 1
            channel[at] = RegionEntry(self.name, lane, upto, gap=True)
            if not most:
                break
        return bool(lane)

    def trim(self, first: int) -> None:
        """Retention removes what stands below ``first``, consumed or not."""
        self.note("trims below %s", first)
        self.first = first
        self.do(self.segment.trimmed(first))
        self.scenario.touched(self)

    def do(self, effects: Iterable[RegionEffect]) -> None:
        written: list[RegionEntry] = []
        for effect in effects:
            match effect:
                case Append(marker=marker):
                    self.note("writes %s", marker)
                    if isinstance(marker, UpdateMarker):
                        self.world.reach("update.sent")
                    written.append(RegionEntry(self.name, marker=marker))
                case SnapshotAborted(reason=reason):
                    self.note("gives up: %s", effect)
                    self.world.reach(f"snapshot.aborted, {reason.name.lower()}")
                case SnapshotSkipped(reason=reason):
                    if reason in (SkipReason.DISCONNECTED, SkipReason.NO_TRAFFIC):
                        self.world.reach(f"snapshot.skipped, {reason.name.lower()}")
                case MarkerRefused(error=error):
                    self.note("refuses: %s", error)
                    self.world.reach(f"marker.refused {type(error).__name__}")
        if written:
            self._append_markers(*written)

    def change_members(self, members: list[str]) -> None:
        self.members = members
        self.note("members are %s", members)
        if self.segment.controller.pending():
            self.world.reach("members.changed mid-snapshot")
        self.do(self.segment.members_changed(members))
