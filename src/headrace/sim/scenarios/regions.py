"""Regions: two to four of them, traffic both ways, and consumers that move between them.

Every region has a log and the real cores over it.  Replication pushes what originates in a region
to the others, over links that lose, repeat and stop, and that now and then send again what had
arrived.  One group is kept under snapshots and one under origin cursors, side by side; their
consumers sit in one region, ack out of order, and move: cleanly (after the target has caught up)
or suddenly, when their region is gone.  Members change in the middle of a snapshot, users seek,
delete and create, some events stay in their region.  A region may have begun before the others, and
some of those were linked without its history; retention removes what nobody has consumed yet.  How
much was delivered again in either mode is counted by kind of switch.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.errors import RegionError
from headrace.groups.progress.ranges import AckedRanges
from headrace.regions.core.controller import SnapshotPhase
from headrace.regions.core.cursor import OriginCursor
from headrace.regions.core.updates import SnapshotCursor
from headrace.sim.faults import Fault
from headrace.sim.region_oracle import RegionsOracle
from headrace.sim.region_process import GROUP, Region
from headrace.sim.scenario import Action, Scenario

IN_HAND_MAX = 6


class RegionsScenario(Scenario):
    """Two to four regions and one consumer per mode."""

    name: ClassVar[str] = "regions"
    about: ClassVar[str] = "regions, snapshots and origin cursors, fail-over and fail-back"
    steps: ClassVar[int] = 1000
    action_ms: ClassVar[int] = 12
    mishap_ms: ClassVar[int] = 900
    down_ms: ClassVar[tuple[int, int]] = (50, 1500)
    pause_ms: ClassVar[tuple[int, int]] = (100, 1500)
    partition_ms: ClassVar[tuple[int, int]] = (100, 1500)
    settle_ms: ClassVar[int] = 120_000
    sizes: ClassVar[tuple[int, ...]] = (2, 3, 4)
    stops: ClassVar[int] = 4
    """How often links stop, and members change: the weights of these actions."""
    changes: ClassVar[int] = 2

    def build(self) -> None:
        rng = self.world.rng
        count = rng.choice(self.sizes)
        names = ["a", "b", "c", "d"][:count]
        self.world.reach(f"regions.{count}")
        self.seeks = rng.random() < 0.4
        self.journal_max = rng.choice((2, 16, 4096))
        self.trims = rng.random() < 0.4
        history = rng.choice((0, 0, rng.randint(1, 9)))
        without = [name for name in names[1:] if rng.random() < 0.5]
        missing = rng.choice([None, None, *names[1:]])
        self.regions = {
            name: Region(self.world, name, [n for n in names if n != name]) for name in names
        }
        self.oracle = RegionsOracle(self.world, self.regions)
        self._touched: dict[str, Region] = {}
        self.home = self.regions["a"]
        self.in_hand: dict[str, list[int]] = {"origin": [], "snapshot": []}
        self.moving_to: Region | None = None
        self.tour: list[Region] = []
        self.done = False
        for name, region in self.regions.items():
            region.scenario = self
            segment = region.segment
            segment.origin_groups[GROUP] = OriginCursor(name, GROUP, segment.log)
            if name != missing:
                segment.snapshot_groups[GROUP] = SnapshotCursor(name, GROUP, segment.log)
            self.world.spawn(region)
        for _ in range(history):
            self.home.publish(None)
        for name in without if history else ():
            self.world.reach("linked without history")
            self.regions[name].join_without_history(self.home)
        self.world.call_in(15, self._consume)

    # --- outside -----------------------------------------------------------------------

    def actions(self) -> list[Action]:
        chosen = [
            Action("publish", 40, self._publish),
            Action("stop a link", self.stops, self._stop_link, Fault.PARTITION),
            Action("resend", 2, self._resend, Fault.REPEAT),
            Action("clean switch", 2, self._switch_cleanly),
            Action("members", self.changes, self._change_members, Fault.SCALE),
            Action("force", 2, self._force),
        ]
        if not self.home.awake:
            chosen.append(Action("sudden switch", 12, self._switch_suddenly))
        if self.seeks:
            chosen.append(Action("seek", 3, self._seek))
            chosen.append(Action("delete", 1, self._delete))
        if self.trims:
            chosen.append(Action("trim", 2, self._trim))
            chosen.append(Action("trim too early", 1, self._trim_too_early))
        return chosen

    def _trim(self) -> None:
        rng = self.world.rng
        region, part = rng.choice(list(self.regions.values())), rng.random()
        first = region.first + int(part * (len(region.log) - region.first + 1))
        if region.awake and first > region.first:
            if region.unacked(region.by_origin.acked, 1) < [first]:
                self.world.reach("trimmed unconsumed")
            if region is self.home and any(o < first for o in self.in_hand["origin"]):
                self.world.reach("trimmed in flight")
            region.trim(first)

    def _trim_too_early(self) -> None:
        rng = self.world.rng
        source = rng.choice(list(self.regions.values()))
        if source.lose(rng.choice(source.others), rng.randint(1, 4)):
            self.world.reach("gap in a lane")

    def _publish(self) -> None:
        rng = self.world.rng
        region = rng.choice(list(self.regions.values()))
        kind = rng.random()
        count = rng.randint(1, 3)
        audience: list[str] | None = None
        if kind < 0.12:
            audience = []
        elif kind < 0.2 and len(region.others) > 1:
            audience = [rng.choice(region.others)]
        if region.awake:
            for _ in range(count):
                region.publish(audience)
            if audience is not None:
                self.world.reach("published.for some regions only")

    def _resend(self) -> None:
        """A link starts again a little before the place that it had reached."""
        rng = self.world.rng
        target = rng.choice(list(self.regions.values()))
        source = self.regions[rng.choice(target.others)]
        self._restart_link(source, target, rng.randint(1, 6))

    def _stop_link(self) -> None:
        """One direction between two regions stops for a while, then sends its last again."""
        rng = self.world.rng
        target = rng.choice(list(self.regions.values()))
        source = self.regions[rng.choice(target.others)]
        back, for_ms = rng.randint(0, 3), rng.randint(50, 900)
        source.halted.add(target.name)
        self.world.reach("replication.link stopped")
        self.world.call_in(for_ms, lambda: self._restart_link(source, target, back))

    def _restart_link(self, source: Region, target: Region, back: int) -> None:
        source.halted.discard(target.name)
        if target.awake and back:
            target.arrived[source.name] = max(target.arrived[source.name] - back, 0)
            source.confirmed[target.name] = target.arrived[source.name]
            self.world.reach("replication.resent")

    def _change_members(self) -> None:
        rng = self.world.rng
        region = rng.choice(list(self.regions.values()))
        gone = rng.choice(region.others)
        for_ms = rng.randint(50, 800)
        if region.awake and gone in region.members and len(region.members) > 1:
            region.change_members([m for m in region.members if m != gone])
            self._restore_members(region, self.world.now_ms + for_ms)

    def _restore_members(self, region: Region, latest_ms: int) -> None:
        """The region comes back when it hurts most, between the rounds of a snapshot."""
        phases = [phase for phase, _ in region.segment.controller.pending().values()]
        if SnapshotPhase.SECOND_ROUND in phases or self.world.now_ms >= latest_ms:
            region.change_members(list(region.others))
        else:
            self.world.call_in(15, lambda: self._restore_members(region, latest_ms))

    def _force(self) -> None:
        """An operator loses patience with a snapshot."""
        region = self.world.rng.choice(list(self.regions.values()))
        if not region.awake:
            return
        for snapshot_id in region.segment.controller.pending():
            try:
                forced = region.segment.force(snapshot_id)
            except RegionError:
                continue
            self.world.reach("snapshot.forced")
            region.note("is forced: %s", forced)
            region.do(forced.effects)
            self.touched(region)

    def _seek(self) -> None:
        if not self.home.awake or self.home.by_origin.deleted:
            return
        rng = self.world.rng
        offset = rng.choice((0, rng.randint(0, len(self.home.log)), len(self.home.log)))
        self.in_hand = {"origin": [], "snapshot": []}
        self.home.note("seeks to %s", offset)
        self.world.reach("seek")
        before = self.home.by_origin.progress.whole()
        self.home.by_origin.seek(offset)
        self.oracle.origin_commanded(self.home, offset, before)
        everywhere = rng.random() < 0.5
        if self.home.by_snapshot is not None:
            if everywhere:
                effects = self.home.segment.seek_everywhere(GROUP, offset - 1)
            else:
                effects = self.home.segment.seek(GROUP, offset - 1)
            self.oracle.snapshot_sought(self.home, offset, everywhere=everywhere)
            self.home.do(effects)
        self.touched(self.home)

    def _delete(self) -> None:
        if self.home.awake and not self.home.by_origin.deleted:
            self.home.by_origin.delete()
            self.in_hand = {"origin": [], "snapshot": []}
            if self.home.by_snapshot is not None:
                self.oracle.snapshot_deleted()
                self.home.do(self.home.segment.delete(GROUP))
            self.home.note("deletes the group")
            self.world.reach("delete")
            self.touched(self.home)

    # --- consumers ---------------------------------------------------------------------

    def _consume(self) -> None:
        rng = self.world.rng
        delay_ms, dice = rng.randint(8, 30), rng.random()
        self.world.call_in(delay_ms, self._consume)
        home = self.home
        if self.moving_to is not None:
            self._move_on()
        elif home.awake:
            self._create_again(dice)
            self._work("origin", None if home.by_origin.deleted else home.by_origin.acked)
            self._work("snapshot", home.by_snapshot.acked if home.by_snapshot else None)
            if self.tour or not self.world.faults.active:
                self._tour()

    def _create_again(self, dice: float) -> None:
        home = self.home
        if home.by_snapshot is None:
            # No update has come: the first consumer in a region creates the group there.
            home.segment.create(GROUP)
            self.in_hand["snapshot"] = []
        if home.by_origin.deleted and (dice < 0.2 or not self.world.faults.active):
            offset = int(dice * 5 * len(home.log)) if self.world.faults.active else 0
            before = home.by_origin.progress.whole()
            home.by_origin.create(offset)
            self.oracle.origin_commanded(home, offset, before)
            home.note("creates the group at %s", offset)
            self.world.reach("create")
            self.touched(home)

    def _work(self, mode: str, acked: AckedRanges | None) -> None:
        """Take what comes next, and ack some of what is in hand, in any order."""
        if acked is None:
            return
        rng, home, hand = self.world.rng, self.home, self.in_hand[mode]
        for offset in home.unacked(acked, IN_HAND_MAX):
            if offset not in hand and len(hand) < IN_HAND_MAX:
                hand.append(offset)
                if mode == "origin":
                    self.oracle.origin_delivered(home, offset)
                else:
                    self.oracle.snapshot_delivered(home, offset)
        for offset in rng.sample(hand, rng.randint(0, len(hand))):
            hand.remove(offset)
            if mode == "origin":
                self.oracle.origin_acked(home, offset)
                home.by_origin.ack(offset)
            else:
                self.oracle.snapshot_acked(home, offset)
                home.do(home.segment.ack(GROUP, offset))
        self.touched(home)

    def _switch_cleanly(self) -> None:
        target = self.regions[self.world.rng.choice(self.home.others)]
        if self.moving_to is None and target.awake and self.home.awake:
            self.moving_to = target
            self.in_hand = {"origin": [], "snapshot": []}
            self.home.note("hands over to %s", target.name)

    def _move_on(self) -> None:
        """Wait until the target has everything, then move."""
        target = self.moving_to
        assert target is not None
        if not self.home.awake or not target.awake:
            self.moving_to = None
            self.world.reach("switch.given up")
        elif self.home.synced(target):
            self._move(target, clean=True)

    def _switch_suddenly(self) -> None:
        awake = [r for r in self.regions.values() if r.awake and r is not self.home]
        choice = self.world.rng.random()
        if awake:
            self._move(awake[int(choice * len(awake))], clean=False)

    def _move(self, target: Region, *, clean: bool) -> None:
        source, self.home, self.moving_to = self.home, target, None
        self.in_hand = {"origin": [], "snapshot": []}
        target.note("takes the consumers over from %s, clean: %s", source.name, clean)
        self.oracle.switched(source, target, clean=clean)
        self.oracle.check_translation(target, target.by_origin)

    # --- invariants --------------------------------------------------------------------

    def touched(self, region: Region) -> None:
        """Something of a region may have changed in this step."""
        self._touched[region.name] = region

    def origin_changed(self, region: Region, *, rewound: bool) -> None:
        """Progress of another region was joined."""
        if rewound:
            self.world.reach("cursor.rewound by another region")
            if region is self.home:
                self.in_hand["origin"] = []
        self.touched(region)

    def check(self) -> None:
        if self._touched:
            touched, self._touched = self._touched, {}
            for region in touched.values():
                self.oracle.check_origin(region)
                self.oracle.check_snapshots(region)

    # --- the end -----------------------------------------------------------------------

    def healed(self) -> None:
        """Once everything has come through, the consumers visit every region once more."""
        self.moving_to = None
        for region in self.regions.values():
            region.halted.clear()
            if region.members != region.others:
                region.change_members(list(region.others))
        self.tour = [r for r in self.regions.values() if r is not self.home]
        self.tour.append(self.home)

    def _tour(self) -> None:
        if not self._settled():
            return
        if self.tour:
            self.moving_to = self.tour.pop(0)
            if self.moving_to is self.home:
                self.moving_to = None
            self.in_hand = {"origin": [], "snapshot": []}
        else:
            self.done = True

    def _settled(self) -> bool:
        """Everything is everywhere, and nothing is pending where the consumers are."""
        home = self.home
        if home.by_origin.deleted or home.unacked(home.by_origin.acked, 1):
            return False
        if home.by_snapshot is None or home.unacked(home.by_snapshot.acked, 1):
            return False
        regions = list(self.regions.values())
        return all(one.synced(other) for one in regions for other in regions if one is not other)

    def quiescent(self) -> bool:
        return self.done

    def unsettled(self) -> str:
        home = self.home
        behind = [
            f"{one.name} -> {other.name}"
            for one in self.regions.values()
            for other in self.regions.values()
            if one is not other and not one.synced(other)
        ]
        return f"consumers are in {home.name} at {home.by_origin}; behind: {', '.join(behind)}"

    def final(self) -> None:
        whole = [region.by_origin.progress.whole() for region in self.regions.values()]
        self.world.require(
            all(one == whole[0] for one in whole), "regions agree in the end", f"{whole}"
        )
        for region in self.regions.values():
            self.oracle.check_translation(region, region.by_origin)
            left = region.unacked(region.by_origin.acked, 1)
            self.world.require(not left, "everything is consumed", f"{region.name} has {left}")


SCENARIO = RegionsScenario
