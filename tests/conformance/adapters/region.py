"""``region-cases/1``: replicated groups, from snapshots to what is pending after a fail-over.

A case is played with one :class:`~headrace.regions.core.segment.LinkedSegment` per region.  What is
here is only the model of the log and of the replication channels; every rule is the cores'.  The
group is kept in both modes at once: positions and counts are those under snapshots, and under
origin cursors too nothing may be skipped, and acks made out of order must arrive.

A store without duplicates leaves repeated events out of its log; positions are shown as if they
were in it, as the cases count them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from headrace.errors import SnapshotRefusedError
from headrace.regions.core.cursor import OriginCursor
from headrace.regions.core.effects import Append, RegionEffect, SnapshotSettings
from headrace.regions.core.markers import (
    Marker,
    RequestMarker,
    ResponseMarker,
    SnapshotMarker,
    UpdateMarker,
    recipients,
)
from headrace.regions.core.origins import lane_of, lane_reaches
from headrace.regions.core.segment import LinkedSegment
from headrace.regions.core.updates import SnapshotCursor
from tests.conformance.registry import Adapter

SETTINGS = SnapshotSettings(interval_ms=1, timeout_ms=1_000_000, pending_max=64)
HOME = "a"
LABELS: dict[type[Any], str] = {
    RequestMarker: "REQ",
    ResponseMarker: "RESP",
    SnapshotMarker: "SNAP",
    UpdateMarker: "UPD",
}


class Step(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower):
    """One step; its class is its ``op``."""


class Publish(Step, frozen=True):
    r: str
    m: str
    local_only: bool = False
    replicate_to: list[str] | None = None


class Deliver(Step, frozen=True):
    from_: str = msgspec.field(name="from")
    to: str = msgspec.field()
    n: int | Literal["all"] = "all"


class Resend(Step, frozen=True):
    from_: str = msgspec.field(name="from")
    to: str = msgspec.field()
    n: int | Literal["all"] = "all"


class TakeSnapshot(Step, frozen=True, tag="snapshot"):
    r: str = HOME
    id: str | None = None


class Tick(Step, frozen=True):
    r: str = HOME
    id: str | None = None


class Timeout(Step, frozen=True):
    r: str = HOME
    id: str | None = None


class Members(Step, frozen=True):
    r: str
    set: list[str]


class Ack(Step, frozen=True):
    r: str
    m: list[str] | str
    sub: str = "s"


class Seek(Step, frozen=True):
    """The position is the step's one number, whatever its name."""

    r: str
    sub: str = "s"


class Expect(Step, frozen=True):
    snapshots: list[dict[str, Any]] | int | None = None
    updates: list[dict[str, Any]] | int | None = None
    requests: list[dict[str, Any]] | int | None = None
    applied: dict[str, int | None] = {}
    mark_delete: dict[str, int | None] = {}
    exists: dict[str, bool] = {}
    pending: dict[str, list[str]] = {}
    must_not_skip: dict[str, list[str]] = {}
    logs: dict[str, list[str]] = {}


AnyStep = Publish | Deliver | Resend | TakeSnapshot | Tick | Timeout | Members | Ack | Seek | Expect


class Described(msgspec.Struct, frozen=True):
    """What the protocol as described would give in the end."""

    pending: dict[str, list[str]] = {}
    loss: list[str] = []


class RegionCase(msgspec.Struct, frozen=True):
    id: str
    regions: list[str]
    steps: list[msgspec.Raw]
    title: str = ""
    members: dict[str, list[str]] = {}
    missing_subscription: list[str] = []
    pip33_gives: Described | None = None
    pending_if_individual_acks_are_replicated: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        known = set(self.regions)
        named = {*self.members, *self.missing_subscription}
        for step in self.played():
            named |= {getattr(step, name) for name in ("r", "from_", "to") if hasattr(step, name)}
        strange = sorted(name for name in named if isinstance(name, str) and name not in known)
        if strange:
            raise ValueError(f"region {strange[0]!r} is not one of `regions`")

    def played(self) -> list[AnyStep]:
        """The steps, each of its own class."""
        steps: list[AnyStep] = []
        for number, raw in enumerate(self.steps):
            try:
                steps.append(msgspec.json.decode(raw, type=AnyStep))
            except msgspec.DecodeError as error:
                raise ValueError(f"{error} of `$.steps[{number}]`") from None
            if isinstance(steps[-1], Seek):
                self.sought(number)
        return steps

    def sought(self, number: int) -> int:
        """The position that a seek names."""
        fields = msgspec.json.decode(self.steps[number]).values()
        numbers = [field for field in fields if isinstance(field, int)]
        if len(numbers) != 1:
            raise ValueError(f"a seek needs one position, not {numbers}, at `$.steps[{number}]`")
        return numbers[0]

    def unknown_expectations(self) -> list[str]:
        """What steps expect that nobody here can check; such a case must not seem to hold."""
        checked = set(Expect.__struct_fields__) | {"op", "note", "why"}
        decoded = [msgspec.json.decode(raw) for raw in self.steps]
        return [
            f"step {number}: `{field}` cannot be checked"
            for number, step in enumerate(decoded)
            for field in step
            if step["op"] == "expect" and field not in checked
        ]


class Entry(msgspec.Struct, frozen=True):
    """A record of a region's log, with the region that it came from."""

    label: str
    origin: str
    lane: str = ""
    sequence: int = 0
    marker: Marker | None = None


class Region:
    """A region's log, and the cores of its one segment."""

    def __init__(self, name: str, members: list[str]) -> None:
        self.name = name
        self.members = members
        self.log: list[Entry] = []
        self.numbers: list[int] = []
        self.labels: list[str] = []
        self.channels: dict[str, int] = {}
        self.now_ms = 0
        self.segment = LinkedSegment(name, members, self._snapshots_between, SETTINGS)

    def _snapshots_between(self, lo: int, hi: int) -> list[SnapshotMarker]:
        return [e.marker for e in self.log[lo:hi] if isinstance(e.marker, SnapshotMarker)]

    def own(self, kind: type[Any]) -> list[Any]:
        """Markers of a kind that this region itself wrote."""
        return [
            entry.marker
            for entry in self.log
            if entry.origin == self.name and isinstance(entry.marker, kind)
        ]

    # --- the log -----------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Append a record and everything that follows from it."""
        lane, marker = entry.lane, entry.marker
        if marker is None and entry.sequence < self.segment.log.next_sequence(lane):
            self.labels.append(entry.label)  # replicated again: left out
            return
        position = len(self.log)
        self.log.append(entry)
        self.numbers.append(len(self.labels))
        self.labels.append(entry.label)
        if marker is None:
            self.segment.events_appended(position, lane, entry.sequence)
        else:
            self.run(self.segment.marker_appended(position, marker))

    def run(self, effects: Iterable[RegionEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                marker = effect.marker
                self.append(Entry(LABELS[type(marker)], self.name, marker=marker))

    def channel(self, to: str) -> list[Entry]:
        """What goes to another region, in order."""
        if to not in self.members:
            return []
        return [e for e in self.log if e.origin == self.name and self._goes(e, to)]

    def _goes(self, entry: Entry, to: str) -> bool:
        if entry.marker is not None:
            return to in recipients(entry.marker, self.members)
        return lane_reaches(entry.lane, to)

    # --- as the cases number and name things -------------------------------------------

    def number(self, position: int | None) -> int | None:
        return None if position is None else self.numbers[position]

    def mark_delete(self, group: SnapshotCursor) -> int:
        following = group.mark_delete + 1
        return (self.numbers[following] if following < len(self.log) else len(self.labels)) - 1

    def position_below(self, number: int) -> int:
        """The last position whose number is at most this one."""
        return bisect_left(self.numbers, number + 1) - 1

    def places(self, label: str) -> list[int]:
        return [i for i, e in enumerate(self.log) if e.marker is None and e.label == label]

    def unacked(self, group: SnapshotCursor | OriginCursor | None) -> list[str]:
        return [
            entry.label
            for position, entry in enumerate(self.log)
            if entry.marker is None and (group is None or position not in group.acked)
        ]


class Play:
    """A case being played."""

    def __init__(self, case: RegionCase) -> None:
        self.case = case
        self.faults = case.unknown_expectations()
        self.regions: dict[str, Region] = {}
        self.acked: set[str] = set()
        self.sought = False
        self.started = 0
        for name in case.regions:
            others = case.members.get(name, [r for r in case.regions if r != name])
            self.regions[name] = Region(name, others)
            if name not in case.missing_subscription:
                self._groups(name, "s")

    def _groups(self, name: str, group: str) -> tuple[SnapshotCursor, OriginCursor]:
        segment = self.regions[name].segment
        if group not in segment.snapshot_groups:
            segment.snapshot_groups[group] = SnapshotCursor(name, group, segment.log)
        if group not in segment.origin_groups:
            segment.origin_groups[group] = OriginCursor(name, group, segment.log)
        return segment.snapshot_groups[group], segment.origin_groups[group]

    # --- steps -------------------------------------------------------------------------

    def run(self) -> list[str]:
        for number, step in enumerate(self.case.played()):
            self._play(number, step)
            self._individual_acks(number)
        self._described()
        return self.faults

    def _play(self, number: int, step: AnyStep) -> None:
        match step:
            case Publish(r=r, m=m, local_only=local_only, replicate_to=replicate_to):
                lane = lane_of(r, [] if local_only else replicate_to)
                sequence = self.regions[r].segment.log.next_sequence(lane)
                self.regions[r].append(Entry(m, r, lane, sequence))
            case Deliver(from_=source, to=to, n=n):
                self._deliver(source, to, n)
            case Resend(from_=source, to=to, n=n):
                delivered = self.regions[source].channels.get(to, 0)
                first = 0 if n == "all" else max(delivered - n, 0)
                for entry in self.regions[source].channel(to)[first:delivered]:
                    self.regions[to].append(entry)
            case TakeSnapshot(r=r, id=id):
                region = self.regions[r]
                try:
                    region.run(region.segment.controller.start(self._id(id), region.now_ms))
                except SnapshotRefusedError:
                    pass  # the expectations that follow say whether it should have begun
            case Tick(r=r, id=id):
                region = self.regions[r]
                region.now_ms += SETTINGS.interval_ms
                region.run(region.segment.tick(self._id(id), region.now_ms, region.members))
            case Timeout(r=r):
                region = self.regions[r]
                region.now_ms += SETTINGS.timeout_ms
                region.run(region.segment.controller.expire(region.now_ms))
            case Members(r=r, set=members):
                region = self.regions[r]
                region.members = [member for member in members if member != r]
                region.run(region.segment.members_changed(region.members))
            case Ack(r=r, sub=sub, m=m):
                self._ack(number, r, sub, [m] if isinstance(m, str) else m)
            case Seek(r=r, sub=sub):
                self._seek(r, sub, self.case.sought(number))
            case Expect():
                self._expect(number, step)

    def _id(self, given: str | None) -> str:
        self.started += 1
        return given if given is not None else f"S{self.started}"

    def _deliver(self, source: str, to: str, n: int | Literal["all"]) -> None:
        sender, receiver = self.regions[source], self.regions[to]
        delivered = sender.channels.get(to, 0)
        waiting = sender.channel(to)[delivered:]
        coming = waiting if n == "all" else waiting[:n]
        sender.channels[to] = delivered + len(coming)
        for entry in coming:
            receiver.append(entry)
        if to not in sender.members or source not in receiver.members:
            return
        for cursor in sender.segment.origin_groups.values():
            message = cursor.message_for(to)
            if message is not None:
                cursor.receipt(receiver.segment.receive(message)[1])

    def _ack(self, number: int, r: str, sub: str, labels: list[str]) -> None:
        region = self.regions[r]
        _, by_origin = self._groups(r, sub)
        for label in labels:
            places = region.places(label)
            if not places:
                self.faults.append(f"step {number}: {r} has no {label} to ack")
            for position in places:
                by_origin.ack(position)
                region.run(region.segment.ack(sub, position))
        self.acked |= set(labels)

    def _seek(self, r: str, sub: str, number: int) -> None:
        region = self.regions[r]
        _, by_origin = self._groups(r, sub)
        position = region.position_below(number)
        self.sought = True
        by_origin.seek(position + 1)
        region.run(region.segment.seek(sub, position))

    # --- what must hold ----------------------------------------------------------------

    def _differ(self, where: str, expected: Any, got: Any) -> None:
        if expected != got:
            self.faults.append(f"{where}: expected {expected}, got {got}")

    def _expect(self, number: int, step: Expect) -> None:
        home = self.regions[HOME] if HOME in self.regions else next(iter(self.regions.values()))
        at = f"step {number}: "
        listed: tuple[tuple[str, Any, Callable[[Region], Iterator[dict[str, Any]]]], ...] = (
            ("snapshots", step.snapshots, self._snapshots),
            ("updates", step.updates, self._updates),
            ("requests", step.requests, self._requests),
        )
        for name, expected, tell in listed:
            if expected is not None:
                self._compare(at + name, expected, list(tell(home)))
        for name, region in self.regions.items():
            group = region.segment.snapshot_groups.get("s")
            where = f"{at}{{}} in {name}"
            if name in step.applied:
                applied = region.number(group.applied) if group is not None else None
                self._differ(where.format("applied"), step.applied[name], applied)
            if name in step.mark_delete:
                mark = region.mark_delete(group) if group is not None else None
                self._differ(where.format("mark_delete"), step.mark_delete[name], mark)
            if name in step.exists:
                self._differ(where.format("exists"), step.exists[name], group is not None)
            if name in step.pending:
                pending = region.unacked(group)
                self._differ(where.format("pending"), step.pending[name], pending)
            if name in step.logs:
                self._differ(where.format("log"), step.logs[name], region.labels)
            self._not_skipped(where, region, step.must_not_skip.get(name, []))

    def _not_skipped(self, where: str, region: Region, labels: list[str]) -> None:
        modes: list[tuple[str, SnapshotCursor | OriginCursor | None]] = [
            ("snapshots", region.segment.snapshot_groups.get("s"))
        ]
        if not self.sought:  # a seek by origin is a seek in every region
            modes.append(("origin cursors", region.segment.origin_groups.get("s")))
        for mode, group in modes:
            pending = region.unacked(group)
            for label in labels:
                if label not in pending:
                    self.faults.append(f"{where.format(label)}: skipped under {mode}")

    def _compare(self, where: str, expected: Any, got: list[dict[str, Any]]) -> None:
        if isinstance(expected, int):
            self._differ(where, expected, len(got))
            return
        alike = [
            {field: have.get(field) for field in want}
            for want, have in zip(expected, got, strict=False)
        ]
        self._differ(where, expected, alike if len(got) == len(expected) else got)

    def _snapshots(self, home: Region) -> Iterator[dict[str, Any]]:
        for snapshot in home.own(SnapshotMarker):
            yield {
                "id": snapshot.snapshot_id,
                "local": home.number(snapshot.local),
                "clusters": self._clusters(snapshot),
            }

    def _updates(self, home: Region) -> Iterator[dict[str, Any]]:
        for update in home.own(UpdateMarker):
            yield {
                "id": update.snapshot_id,
                "sub": update.group,
                "clusters": self._clusters(update),
            }

    def _requests(self, home: Region) -> Iterator[dict[str, Any]]:
        for request in home.own(RequestMarker):
            yield {"id": request.snapshot_id, "round": request.round}

    def _clusters(self, marker: SnapshotMarker | UpdateMarker) -> dict[str, int | None]:
        return {p.region: self.regions[p.region].number(p.position) for p in marker.positions}

    def _individual_acks(self, number: int) -> None:
        wanted = self.case.pending_if_individual_acks_are_replicated
        if wanted is None or wanted.get("after_step", len(self.case.steps) - 1) != number:
            return
        for name, region in self.regions.items():
            if name in wanted:
                pending = region.unacked(region.segment.origin_groups.get("s"))
                where = f"step {number}: pending in {name} under origin cursors"
                self._differ(where, wanted[name], pending)

    def _described(self) -> None:
        """Where the protocol as described loses events, none of them is lost here."""
        if self.case.pip33_gives is None:
            return
        for name, region in self.regions.items():
            lost = [m for m in self.case.pip33_gives.loss if region.places(m)]
            unacked = [label for label in lost if label not in self.acked]
            self._not_skipped(f"at the end: {{}} in {name}", region, unacked)


def label(case: RegionCase) -> str:
    return f"{case.id} {case.title}"


def check(case: RegionCase) -> list[str]:
    return Play(case).run()


ADAPTER = Adapter(format="region-cases/1", case=RegionCase, label=label, check=check)
