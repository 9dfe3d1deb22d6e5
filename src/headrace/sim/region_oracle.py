"""The oracle of regions: knows every log and every ack, and judges what the cursors claim.

Under origin cursors:

* nothing counts as acked in any region that no consumer acked under the same command;
* nothing acked is delivered again, save what had not been synchronised when a region was lost;
* what is acked by offset is exactly what is acked by origin.

Under snapshots:

* nothing counts as acked in any region that no consumer acked anywhere (or a user skipped);
* a snapshot never covers an event that its own region has not got;
* a snapshot that a cursor has passed has been used;
* after a clean switch, what comes again lies after the last usable snapshot.

In both, cursors fall by a seek only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain, starmap
from typing import TYPE_CHECKING

from headrace.groups.progress.ranges import AckedRanges
from headrace.regions.core.cursor import OriginCursor
from headrace.regions.core.markers import SnapshotMarker
from headrace.regions.core.origins import lane_reaches
from headrace.regions.core.progress import CursorDelta, LaneDelta, OriginProgress
from headrace.regions.core.stamps import Life, Stamp
from headrace.regions.core.updates import SnapshotCursor

if TYPE_CHECKING:
    from headrace.sim.region_process import Region
    from headrace.sim.world import World

EventKey = tuple[str, int]
"""Lane and sequence: an event, wherever it is."""
Command = tuple[Life, Stamp, str]
"""What an ack of a lane counts under."""
Commands = tuple[Life, tuple[tuple[str, Stamp], ...]]
"""The commands that a cursor follows, lane by lane."""


class RegionsOracle:
    """Watches one group per mode over all regions."""

    def __init__(self, world: World, regions: dict[str, Region]) -> None:
        self.world = world
        self.regions = regions
        # origin cursors
        self._acked: dict[Command, set[int]] = {}
        self._skipped: dict[Command, set[int]] = {}
        """Acked by the command itself, or kept by it."""
        self._may_repeat: set[tuple[Command, int]] = set()
        self._floors: dict[str, tuple[Commands, int]] = {}
        self._revisions: dict[str, int] = {}
        self._checked: dict[tuple[str, str], tuple[Command, int]] = {}
        # snapshots
        self._met: dict[Life, set[EventKey]] = {}
        """Acked by a consumer, or passed over by a user's seek, in each life of the group."""
        self._met_ever: set[EventKey] = set()
        self._acked_ever: set[EventKey] = set()
        self._marks: dict[str, tuple[Life, int]] = {}
        self._snapshots: dict[str, list[tuple[int, int, SnapshotMarker]]] = {}
        """Local position, place of the marker, and the snapshot."""
        self._bound: tuple[str, SnapshotMarker, str] | None = None
        self._sought: set[str] = set()
        self.last_switch = "clean"
        for mode in ("origin cursors", "snapshots"):
            for kind in ("clean", "sudden"):
                world.reached[f"repeats.{mode}, {kind} switch"] += 0

    # --- origin cursors ----------------------------------------------------------------

    @staticmethod
    def _command(progress: OriginProgress, lane: str) -> Command:
        return progress.life, progress.stamp(lane), lane

    def origin_delivered(self, region: Region, offset: int) -> None:
        """A consumer under origin cursors was handed an event."""
        lane, sequence = region.event_at(offset)
        command = self._command(region.by_origin.progress, lane)
        if sequence not in self._acked.get(command, ()):
            return
        if (command, sequence) not in self._may_repeat:
            self.world.fail(
                "nothing acked is delivered again",
                f"{region.name} hands out {lane}/{sequence}, acked under {command}",
            )
        self.world.reached["repeats.origin cursors, sudden switch"] += 1

    def origin_acked(self, region: Region, offset: int) -> None:
        """A consumer under origin cursors has acked an event."""
        lane, sequence = region.event_at(offset)
        command = self._command(region.by_origin.progress, lane)
        self._acked.setdefault(command, set()).add(sequence)
        self._may_repeat.discard((command, sequence))

    def origin_commanded(self, region: Region, offset: int, before: CursorDelta) -> None:
        """A user has set the cursor of a region to an offset (a seek, or a new beginning).

        What is acked then is what lies below the offset, and what was acked ``before`` of events
        that the command says nothing about: those that never were in the region, and at the end of
        its log those that have not come yet.
        """
        progress = region.by_origin.progress
        known = {part.lane: _acked(part) for part in before.lanes}
        for lane in progress.lanes():
            command = self._command(progress, lane)
            if command in self._skipped or not lane_reaches(lane, region.name):
                continue
            at_end = offset == len(region.log)
            end = offset if at_end or offset > region.first else 0
            below = {key[1] for _, key in region.events(end) if key[0] == lane}
            kept = {
                sequence
                for sequence in _members(known.get(lane, AckedRanges()), 0)
                if region.never_had(lane, sequence)
                or (at_end and sequence >= region.next_sequence(lane))
            }
            self._skipped[command] = below | kept
            self._acked.setdefault(command, set()).update(kept)
            acked = progress.acked(lane)
            for sequence in sorted(kept):
                if acked is None or sequence not in acked:
                    self.world.fail(
                        "a command leaves alone what its region has not",
                        f"{lane}/{sequence} was acked, and {region.name} took it back by a seek to "
                        f"{offset} of {len(region.log)}",
                    )

    def check_origin(self, region: Region) -> None:
        """A region's origin cursor may have changed."""
        cursor = region.by_origin
        progress = cursor.progress
        commands = (progress.life, tuple((lane, progress.stamp(lane)) for lane in progress.lanes()))
        before = self._floors.get(region.name)
        # A lane that was never met joins the commands without taking anything back.
        floor = cursor.acked.floor
        if before is not None and floor < before[1] and _follows(before[0], commands):
            self.world.fail(
                "cursors never fall",
                f"{region.name} fell from {before[1]} to {floor} without a command",
            )
        self._floors[region.name] = (commands, floor)
        if self._revisions.get(region.name) == cursor.revision:
            return
        self._revisions[region.name] = cursor.revision
        for lane in progress.lanes():
            self._check_lane(region, lane)

    def _check_lane(self, region: Region, lane: str) -> None:
        progress = region.by_origin.progress
        command = self._command(progress, lane)
        known = progress.acked(lane)
        assert known is not None
        checked = self._checked.get((region.name, lane))
        start = checked[1] if checked is not None and checked[0] == command else 0
        acked, skipped = self._acked.get(command, set()), self._skipped.get(command, set())
        for sequence in _members(known, start):
            if not (sequence in acked or sequence in skipped):
                self.world.fail(
                    "nothing unacked is skipped",
                    f"{lane}/{sequence} counts as acked in {region.name} under {command}",
                )
        self._checked[region.name, lane] = (command, known.floor)

    def check_translation(self, region: Region, cursor: OriginCursor) -> None:
        """What is acked by offset is what is acked by origin, plus the markers."""
        for offset, entry in enumerate(region.log[region.first :], region.first):
            known = cursor.progress.acked(entry.lane) if entry.marker is None else None
            expected = entry.marker is not None or (known is not None and entry.sequence in known)
            if (offset in cursor.acked) != expected:
                self.world.fail(
                    "translation is exact",
                    f"offset {offset} of {region.name} ({entry.lane}/{entry.sequence}) "
                    f"is {'not ' if expected else ''}acked: {cursor.acked}, {cursor}",
                )

    # --- snapshots ---------------------------------------------------------------------

    def snapshot_delivered(self, region: Region, offset: int) -> None:
        """A consumer under snapshots was handed an event."""
        key = region.event_at(offset)
        if key not in self._acked_ever or region.name in self._sought:
            return  # news, or what a user asked for
        self.world.reached[f"repeats.snapshots, {self.last_switch} switch"] += 1
        if self._bound is None or self._bound[0] != region.name:
            return
        _, snapshot, source = self._bound
        position = next(p.position for p in snapshot.positions if p.region == region.name)
        covered = {source, *(p.region for p in snapshot.positions)}
        lane = key[0]
        vouched = lane.partition("!")[0] in covered and lane_reaches(lane, source)
        # What the source never had, or trimmed, its update may have left out.
        there = self.regions[source]
        had = key[1] >= there.starts().get(lane, 0) and not there.never_had(*key)
        if vouched and had and offset <= position:
            self.world.fail(
                "repeats come after the last usable snapshot",
                f"{region.name} hands out {key} at {offset} again, although {source} "
                f"had used {snapshot} before the switch",
            )

    def snapshot_acked(self, region: Region, offset: int) -> None:
        """A consumer under snapshots has acked an event."""
        key = region.event_at(offset)
        self._meet(region, [key])
        self._acked_ever.add(key)

    def _meet(self, region: Region, keys: list[EventKey]) -> None:
        group = region.by_snapshot
        assert group is not None
        self._met.setdefault(group.life, set()).update(keys)
        self._met_ever.update(keys)

    def snapshot_sought(self, region: Region, offset: int, *, everywhere: bool) -> None:
        """A user has set the cursor of one region, or of all."""
        self._meet(region, [key for _, key in region.events(offset)])
        self._marks.pop(region.name, None)
        self._sought.update(self.regions if everywhere else [region.name])
        self._bound = None

    def snapshot_deleted(self) -> None:
        """A user has deleted the group, so that everything comes again."""
        self._sought.update(self.regions)
        self._bound = None

    def snapshot_taken(self, region: Region, position: int, snapshot: SnapshotMarker) -> None:
        """A region has completed a snapshot: nothing in it may be news to that region."""
        taken = self._snapshots.setdefault(region.name, [])
        taken.append((snapshot.local, position, snapshot))
        covered = {region.name, *(p.region for p in snapshot.positions)}
        here = region.ends(snapshot.local + 1)
        for known in snapshot.seen:
            if known.sequence > here.get(known.lane, 0):
                self.world.fail(
                    "a snapshot vouches only for what precedes it",
                    f"{snapshot} of {region.name} tells of {known}, but only "
                    f"{here.get(known.lane, 0)} had come",
                )
        for there in snapshot.positions:
            other = self.regions[there.region].ends(there.position + 1)
            for lane, end in other.items():
                vouched = lane.partition("!")[0] in covered and lane_reaches(lane, region.name)
                if vouched and end > here.get(lane, 0):
                    self.world.fail(
                        "a snapshot covers only what its region has",
                        f"{snapshot} at {position} of {region.name} covers {lane} up to {end} "
                        f"in {there.region}, but {here.get(lane, 0)} had come here",
                    )

    def check_snapshots(self, region: Region) -> None:
        """A region's cursor under snapshots may have changed."""
        group = region.by_snapshot
        if group is None:
            return
        life, before = self._marks.get(region.name, (group.life, 0))
        if life != group.life:
            before = 0
        if group.acked.floor < before:
            self.world.fail(
                "cursors never fall",
                f"{region.name} fell from {before - 1} to {group.mark_delete} without a seek",
            )
        met = self._met.get(group.life, set())
        for offset in _members(group.acked, before):
            entry = region.log[offset]
            if offset < region.first or entry.marker is not None:
                continue
            if (entry.lane, entry.sequence) in met:
                continue
            # A command leaves alone what its region never sees.
            commander = self.regions.get(group.life.stamp.region)
            kept = not lane_reaches(entry.lane, group.life.stamp.region) or (
                commander is not None and commander.never_had(entry.lane, entry.sequence)
            )
            if not kept or (entry.lane, entry.sequence) not in self._met_ever:
                self.world.fail(
                    "nothing unacked is skipped",
                    f"{entry.lane}/{entry.sequence} at {offset} counts as acked in {region.name}",
                )
        self._marks[region.name] = (group.life, group.acked.floor)
        usable = self._usable(region, group)
        if usable is not None and group.used < usable.local:
            self.world.fail(
                "a usable snapshot is used",
                f"{region.name} is at {group.mark_delete}, has used {group.used}, not {usable}",
            )

    def _usable(self, region: Region, group: SnapshotCursor) -> SnapshotMarker | None:
        taken = self._snapshots.get(region.name, [])
        k = bisect_right(taken, group.mark_delete, key=lambda each: each[0])
        if not k or taken[k - 1][1] < region.first:
            return None
        return taken[k - 1][2]

    # --- switching ---------------------------------------------------------------------

    def switched(self, source: Region, target: Region, *, clean: bool) -> None:
        """The consumers have moved.  After a clean switch nothing more may repeat."""
        self.last_switch = "clean" if clean else "sudden"
        self.world.reach(f"switch.{self.last_switch}")
        self._bound = None
        if not clean:
            progress = target.by_origin.progress
            for command, sequences in self._acked.items():
                known = progress.acked(command[2])
                same = self._command(progress, command[2]) == command
                for sequence in sorted(sequences):
                    if not same or known is None or sequence not in known:
                        self._may_repeat.add((command, sequence))
            return
        group = source.by_snapshot
        usable = self._usable(source, group) if group is not None else None
        if usable is None or target.name in self._sought:
            return
        if any(p.region == target.name for p in usable.positions):
            self._bound = (target.name, usable, source.name)


def _members(acked: AckedRanges, start: int) -> Iterator[int]:
    return chain(range(start, acked.floor), *starmap(range, acked.to_tuples()))


def _acked(part: LaneDelta) -> AckedRanges:
    return AckedRanges.from_tuples(part.floor, part.ranges)


def _follows(before: Commands, after: Commands) -> bool:
    """Whether no command came between: every lane known before has kept its stamp."""
    now = dict(after[1])
    return before[0] == after[0] and all(now.get(lane) == stamp for lane, stamp in before[1])
