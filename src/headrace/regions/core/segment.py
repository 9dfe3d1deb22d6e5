"""One segment of a linked stream in one region: its cores, wired in the right order.

The runtime appends to the log and tells this core what was appended and where; the core answers
with effects.  ``Append`` asks for a marker to be appended to the local log, which is then told like
any other (:meth:`LinkedSegment.marker_appended`).  A marker that comes from another region is
appended here first, and told with its place here.  What a call changes and the markers that it asks
for belong in one transaction: a group that remembers an update which was never written would not
send it again.

Groups are of one of two kinds: ``snapshot_groups`` follow updates by position, ``origin_groups``
exchange progress by origin and need no markers.  Whoever saves a group saves its ``acked`` set,
or its ``progress.whole()`` and revision; the map and the index are read from the log again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace.errors import (
    CursorDeletedError,
    RegionError,
    StaleUpdateError,
    UnknownRegionError,
)
from headrace.regions.core.controller import SnapshotController
from headrace.regions.core.cursor import CursorMessage, CursorReceipt, OriginCursor
from headrace.regions.core.effects import (
    Append,
    Forced,
    MarkerRefused,
    RegionEffect,
    SnapshotSettings,
)
from headrace.regions.core.index import ReadSnapshots, SnapshotIndex
from headrace.regions.core.markers import (
    Command,
    LaneEnd,
    Marker,
    RequestMarker,
    ResponseMarker,
    SnapshotMarker,
    UpdateMarker,
)
from headrace.regions.core.origins import Lane, OriginMap
from headrace.regions.core.progress import Merged
from headrace.regions.core.stamps import Life, Stamp
from headrace.regions.core.updates import SnapshotCursor


class LinkedSegment:
    """The cores of one segment in one region.

    Of a log that was trimmed, ``first`` is its first offset and ``lanes`` what
    :meth:`~headrace.regions.core.origins.OriginMap.retained` said then; ``absent`` is what never
    was in it.
    """

    def __init__(
        self,
        region: str,
        members: Iterable[str],
        read_snapshots: ReadSnapshots,
        settings: SnapshotSettings | None = None,
        *,
        first: int = 0,
        lanes: Iterable[LaneEnd] = (),
        absent: Mapping[Lane, Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        self.region = region
        self._linked = list(members)
        """Every region ever linked: what one that left had sent before is still good."""
        self.log = OriginMap(first, lanes, absent)
        self.controller = SnapshotController(region, self._linked, settings)
        self.index = SnapshotIndex(read_snapshots)
        self.snapshot_groups: dict[str, SnapshotCursor] = {}
        self.lives: dict[str, Life] = {}
        """The last command to each snapshot group that ever had one; to be saved with them."""
        self._awaited: dict[str, Life] = {}
        """Lives that an update named before their command arrived."""
        self.origin_groups: dict[str, OriginCursor] = {}

    # --- the log -----------------------------------------------------------------------

    def events_appended(self, offset: int, lane: Lane, sequence: int, count: int = 1) -> None:
        """Events were appended here: published here, or replicated from their origin."""
        self.log.events(offset, lane, sequence, count)
        self.controller.traffic(count)
        for cursor in self.origin_groups.values():
            cursor.events_appended(offset, lane, sequence, count)

    def marker_appended(self, offset: int, marker: Marker) -> list[RegionEffect]:
        """A marker was appended here."""
        return self.markers_appended(offset, (marker,))

    def markers_appended(self, offset: int, markers: Sequence[Marker]) -> list[RegionEffect]:
        """Markers were appended here one after the other, the first at ``offset``.

        A snapshot brings an update of every group: told together, they cost every group one step.

        A marker has its place in the log whether it makes sense or not, so one that a core refuses
        (late, repeated, from an unknown region) is told as an effect and changes nothing else.
        """
        for at in range(offset, offset + len(markers)):
            self.log.marker(at)
        effects: list[RegionEffect] = []
        for group in self.snapshot_groups.values():
            group.walk_over(offset, len(markers))
            effects += self._updates(group)
        for cursor in self.origin_groups.values():
            cursor.markers_appended(offset, len(markers))
        for at, marker in enumerate(markers, offset):
            try:
                effects += self._handle(at, marker)
            except RegionError as error:
                effects.append(MarkerRefused(error))
        return effects

    def others_appended(self, offset: int, count: int = 1) -> list[RegionEffect]:
        """Markers of other protocols were appended here: they take their place and say nothing."""
        for at in range(offset, offset + count):
            self.log.marker(at)
        effects: list[RegionEffect] = []
        for group in self.snapshot_groups.values():
            group.walk_over(offset, count)
            effects += self._updates(group)
        for cursor in self.origin_groups.values():
            cursor.markers_appended(offset, count)
        return effects

    def _handle(self, offset: int, marker: Marker) -> list[RegionEffect]:
        match marker:
            case RequestMarker(source=source):
                if source != self.region:
                    self._require_known(f"request {marker.snapshot_id!r}", source)
                return self.controller.requested(marker, offset)
            case ResponseMarker():
                return self.controller.responded(marker, offset, self.log.seen())
            case SnapshotMarker():
                self.index.add(marker, offset)
                groups = self.snapshot_groups.values()
                return [effect for group in groups for effect in self._updates(group)]
            case UpdateMarker(source=source) if source == self.region:
                return []
            case UpdateMarker():
                return self.apply(marker)
            case Command(source=source) if source == self.region:
                return []
            case Command(group=name, source=source):
                self._require_known(f"command to group {name!r}", source)
                return self._obey(marker)

    def _require_known(self, update: str, region: str) -> None:
        if region not in self._linked:
            linked = ", ".join(self._linked) or "no other region"
            raise UnknownRegionError(
                f"{update} of {region!r}", f"{self.region} is linked to {linked}", "it is unknown"
            )

    def skip_to(self, lane: Lane, sequence: int) -> None:
        """What a lane has up to ``sequence`` never comes here: met in the middle, or a gap."""
        before = self.log.next_sequence(lane)
        self.log.skip_to(lane, sequence)
        for group in self.snapshot_groups.values():
            group.skipped(lane, before, sequence)

    def trimmed(self, first: int) -> list[RegionEffect]:
        """The log below ``first`` is gone; what nobody had consumed of it is gone here only."""
        for group in self.snapshot_groups.values():
            group.trim(first)
        for cursor in self.origin_groups.values():
            cursor.trim(first)
        self.log.trim(first)
        self.index.trim(self.log.first)
        return [
            effect for group in self.snapshot_groups.values() for effect in self._updates(group)
        ]

    def events_restored(self, offset: int, lane: Lane, sequence: int, count: int = 1) -> None:
        """Events of a log that is read again from its first record, before any group is added."""
        self.log.events(offset, lane, sequence, count)
        self.controller.traffic(count)

    def marker_restored(self, offset: int, marker: Marker) -> None:
        """A marker of a log that is read again; only snapshots still matter."""
        self.log.marker(offset)
        if isinstance(marker, SnapshotMarker):
            self.index.add(marker, offset)

    # --- groups under snapshots --------------------------------------------------------

    def apply(self, update: UpdateMarker) -> list[RegionEffect]:
        """Take another region's update over; a group that is not here is created by it."""
        self._require_known(f"update of group {update.group!r}", update.source)
        name = update.group
        life = self.lives.get(name, Life())
        if update.life < life:
            raise StaleUpdateError(
                f"update of group {name!r} from {update.source} under {update.life}",
                f"{self.region} follows {life}",
                "the group was deleted or set anew since",
            )
        group = self.snapshot_groups.get(name)
        if group is None:
            group = SnapshotCursor(self.region, name, self.log, life=update.life)
        if group.check(update) is None:
            return []
        if update.life > life:
            group = group.renewed(update.life)
            self._awaited[name] = update.life
            self.lives[name] = update.life
        group.apply(update)
        self.snapshot_groups[name] = group
        return self._updates(group)

    def delete(self, name: str) -> list[RegionEffect]:
        """Delete a group in every region; updates under way cannot bring it back."""
        if name not in self.snapshot_groups:
            raise CursorDeletedError(
                f"delete of group {name!r}", f"{self.region} does not have it", "it is not here"
            )
        command = Command(name, self.region, Life(self._next_stamp(name), deleted=True))
        return [Append(command), *self._obey(command)]

    def seek_everywhere(
        self, name: str, mark_delete: int, *, at_end: bool = False
    ) -> list[RegionEffect]:
        """Set the cursor here and, by origin, to the same place in every region."""
        life = Life(self._next_stamp(name))
        command = self.snapshot_groups[name].command_to(mark_delete, life, at_end=at_end)
        return [Append(command), *self._obey(command)]

    def create(self, name: str) -> SnapshotCursor:
        """A consumer's group that is not here begins with nothing acked."""
        life = self.lives.get(name, Life())
        if life.deleted:
            life = self.lives[name] = Life(self._next_stamp(name))
        group = SnapshotCursor(self.region, name, self.log, life=life)
        passed = self.index.newest_at(group.mark_delete)
        if passed is not None:  # behind a trim; the group has nothing to say of it
            group.used = passed.local
        return self.snapshot_groups.setdefault(name, group)

    def _obey(self, command: Command) -> list[RegionEffect]:
        name, life = command.group, command.life
        known = self.lives.get(name, Life())
        overtaken = self._awaited.get(name) == life and name in self.snapshot_groups
        if life < known or (life == known and not overtaken):
            return []  # overruled before it came, or the same again
        self._awaited.pop(name, None)
        self.lives[name] = life
        group = self.snapshot_groups.pop(name, None)
        if life.deleted:
            return []
        group = group or SnapshotCursor(self.region, name, self.log)
        if group.life != life:
            group = group.renewed(life, [*command.holes, *group.beyond(command)])
        group.obey(command)
        self.snapshot_groups[name] = group
        return self._updates(group)

    def _next_stamp(self, name: str) -> Stamp:
        return Stamp(self.lives.get(name, Life()).stamp.counter + 1, self.region)

    def ack(self, name: str, lo: int, hi: int | None = None) -> list[RegionEffect]:
        """A consumer of a group under snapshots has acked."""
        group = self.snapshot_groups[name]
        group.ack(lo, hi)
        return self._updates(group)

    def seek(self, name: str, mark_delete: int) -> list[RegionEffect]:
        """A user has set the cursor of a group under snapshots, in this region alone."""
        group = self.snapshot_groups[name]
        group.seek(mark_delete)
        return self._updates(group)

    def _updates(self, group: SnapshotCursor) -> list[RegionEffect]:
        if self.index.newest <= group.used:
            return []  # the usual case
        update = group.next_update(self.index)
        return [] if update is None else [Append(update)]

    # --- snapshots ---------------------------------------------------------------------

    def tick(self, snapshot_id: str, now_ms: int, connected: Collection[str]) -> list[RegionEffect]:
        """The periodic timer.  Without a group that needs snapshots, only what is overdue ends."""
        if not self.snapshot_groups:
            return self.controller.expire(now_ms)
        return self.controller.tick(snapshot_id, now_ms, connected)

    def members_changed(self, members: Iterable[str]) -> list[RegionEffect]:
        """The regions that the stream is replicated to are others now."""
        effects = self.controller.members_changed(members)
        self._linked += [m for m in self.controller.members if m not in self._linked]
        return effects

    def force(self, snapshot_id: str) -> Forced:
        """An operator does not wait for the regions that have not answered."""
        return self.controller.force(snapshot_id)

    # --- groups by origin --------------------------------------------------------------

    def receive(self, message: CursorMessage) -> tuple[Merged, CursorReceipt]:
        """Another region's progress; a group that is not here is created at its place."""
        name = message.delta.group
        self._require_known(f"progress of group {name!r}", message.source)
        cursor = self.origin_groups.get(name)
        if cursor is None:
            cursor = OriginCursor(self.region, name, self.log)
        answer = cursor.receive(message)
        self.origin_groups[name] = cursor
        return answer
