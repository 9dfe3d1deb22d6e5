"""Planted bugs of regions: the known holes of replicated subscriptions, and some of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import msgspec

from headrace.groups.progress.ranges import AckedRanges
from headrace.regions.core import controller as controllers
from headrace.regions.core import cursor as cursors
from headrace.regions.core.controller import SnapshotController, SnapshotEvent, SnapshotPhase
from headrace.regions.core.cursor import CursorMessage, OriginCursor
from headrace.regions.core.effects import Append, Forced, RegionEffect, SnapshotSettings
from headrace.regions.core.markers import (
    LaneEnd,
    Marker,
    ResponseMarker,
    SnapshotMarker,
    UpdateMarker,
)
from headrace.regions.core.origins import TrimmedRuns
from headrace.regions.core.progress import CursorDelta, Merged, OriginProgress
from headrace.regions.core.segment import LinkedSegment
from headrace.regions.core.stamps import Life
from headrace.regions.core.updates import SnapshotCursor
from headrace.sim.planted import PlantedBug, by_seeds, patched

_hunt = by_seeds("regions", 300)


def _bug(
    name: str,
    about: str,
    owner: type[Any],
    method: str,
    change: Callable[[Any], Any],
    hunt: Callable[[], str | None] = _hunt,
) -> PlantedBug:
    return PlantedBug(f"regions/{name}", about, lambda: patched(owner, method, change), hunt)


# --- the snapshot controller ---


def _any_round(original: Any) -> Any:
    def accepting(self: SnapshotController, response: ResponseMarker) -> Any:
        pending = self._pending.get(response.snapshot_id)
        if pending is not None:
            response = msgspec.structs.replace(response, round=pending.round)
        return original(self, response)

    return accepting


def _live_members(_original: Any) -> Any:
    def members_changed(self: SnapshotController, members: Iterable[str]) -> list[RegionEffect]:
        self._members = tuple(sorted(members))
        for pending in list(self._pending.values()):
            pending.members = self._members
        return []

    return members_changed


def _late_positions(original: Any) -> Any:
    def responded(
        self: SnapshotController, response: ResponseMarker, position: int, seen: tuple[LaneEnd, ...]
    ) -> list[RegionEffect]:
        pending = self._pending.get(response.snapshot_id)
        if pending is not None and response.round == pending.round:
            pending.positions.setdefault(response.region, response.position)
        effects: list[RegionEffect] = original(self, response, position, seen)
        return effects

    return responded


@contextmanager
def _live_member_set() -> Iterator[None]:
    """A region that joins between the rounds contributes the position of the second."""
    with (
        patched(SnapshotController, "members_changed", _live_members),
        patched(SnapshotController, "responded", _late_positions),
    ):
        yield


def _local_of_first_answer(original: Any) -> Any:
    def responded(
        self: SnapshotController, response: ResponseMarker, position: int, seen: tuple[LaneEnd, ...]
    ) -> list[RegionEffect]:
        pending = self._pending.get(response.snapshot_id)
        if pending is not None and pending.last_answer >= 0:
            position, seen = pending.last_answer, pending.seen
        effects: list[RegionEffect] = original(self, response, position, seen)
        return effects

    return responded


def _seen_when_forced(original: Any) -> Any:
    def force(self: LinkedSegment, snapshot_id: str) -> Forced:
        pending = self.controller._pending.get(snapshot_id)
        if pending is not None:
            pending.seen = self.log.seen()
        forced: Forced = original(self, snapshot_id)
        return forced

    return force


def _one_round() -> AbstractContextManager[object]:
    once = {(SnapshotPhase.FIRST_ROUND, SnapshotEvent.LAST_OF_MANY): SnapshotPhase.COMPLETE}
    return mock.patch.dict(controllers.TRANSITIONS, once)


# --- updates ---


def _created_at_latest(original: Any) -> Any:
    def apply(self: LinkedSegment, update: UpdateMarker) -> list[RegionEffect]:
        if update.group not in self.snapshot_groups:
            self.snapshot_groups[update.group] = SnapshotCursor(
                self.region, update.group, self.log, acked=AckedRanges(floor=self.log.end)
            )
        effects: list[RegionEffect] = original(self, update)
        return effects

    return apply


def _applied_as_seek(_original: Any) -> Any:
    def apply(self: SnapshotCursor, update: UpdateMarker) -> int:
        position = self.check(update)
        if position is not None:
            self.seek(position)
        return 0

    return apply


def _no_update_for_a_new_snapshot(original: Any) -> Any:
    def handle(self: LinkedSegment, offset: int, marker: Marker) -> list[RegionEffect]:
        effects: list[RegionEffect] = original(self, offset, marker)
        return [] if isinstance(marker, SnapshotMarker) else effects

    return handle


def _no_update_for_an_ack(_original: Any) -> Any:
    def ack(self: LinkedSegment, name: str, lo: int, hi: int | None = None) -> list[RegionEffect]:
        self.snapshot_groups[name].ack(lo, hi)
        return []

    return ack


def _life_ignored(original: Any) -> Any:
    def apply(self: LinkedSegment, update: UpdateMarker) -> list[RegionEffect]:
        life = self.lives.get(update.group, Life())
        effects: list[RegionEffect] = original(self, msgspec.structs.replace(update, life=life))
        return effects

    return apply


# --- origin cursors ---


def _stamps_ignored(original: Any) -> Any:
    def merge(self: OriginProgress, delta: CursorDelta) -> Merged:
        lanes = tuple(
            msgspec.structs.replace(part, stamp=max(part.stamp, self.stamp(part.lane)))
            for part in delta.lanes
        )
        merged: Merged = original(self, msgspec.structs.replace(delta, lanes=lanes))
        return merged

    return merge


def _deleted_comes_back(original: Any) -> Any:
    def merge(self: OriginProgress, delta: CursorDelta) -> Merged:
        if self.life.deleted and not delta.life.deleted:
            life = Life(self.life.stamp)
            self.life = life
            delta = msgspec.structs.replace(delta, life=life)
        merged: Merged = original(self, delta)
        return merged

    return merge


def _early_acks_dropped(_original: Any) -> Any:
    return lambda *_arguments: None


def _journal_alone(original: Any) -> Any:
    def message_for(self: OriginCursor, region: str) -> CursorMessage | None:
        if 0 <= self._received.get(region, -1) < self._journal_from:
            self._received[region] = self._journal_from
        message: CursorMessage | None = original(self, region)
        return message

    return message_for


def _command_lanes(**changed: Any) -> AbstractContextManager[object]:
    """A seek by origin whose rule is changed by some arguments."""

    def change(original: Any) -> Any:
        def command_lanes(*arguments: Any, at_end: bool) -> Any:
            progress, region, target, absent, ends = arguments
            absent = changed.get("absent", absent)
            return original(
                progress, region, target, absent, ends, at_end=changed.get("at_end", at_end)
            )

        return command_lanes

    return patched(cursors, "command_lanes", change)


# --- scripts: what no course of the world would show in time ---


def _join_of_an_idle_stream() -> str | None:
    """A region that joins a stream without traffic is asked for a snapshot."""
    segment = LinkedSegment("a", ["b"], lambda _lo, _hi: [], SnapshotSettings(interval_ms=0))
    segment.create("g")
    segment.members_changed(["b", "c"])
    started = segment.tick("S1", 0, ["b", "c"])
    return None if any(isinstance(e, Append) for e in started) else f"a region joins: {started}"


def _no_news_of_joining(original: Any) -> Any:
    def members_changed(self: SnapshotController, members: Iterable[str]) -> list[RegionEffect]:
        covered = self._traffic_covered
        effects: list[RegionEffect] = original(self, members)
        self._traffic_covered = covered
        return effects

    return members_changed


PLANTED = (
    PlantedBug(
        "regions/seek acks what never was here",
        "a seek where a lane began in the middle acks its history everywhere",
        lambda: _command_lanes(absent={}),
        _hunt,
    ),
    PlantedBug(
        "regions/seek to the end takes back what has not come",
        "a seek to the end takes acks back of events that are not here yet",
        lambda: _command_lanes(at_end=False),
        _hunt,
    ),
    _bug(
        "retention counts as acking",
        "what was trimmed unconsumed, or never was here, goes with an update",
        SnapshotCursor,
        "skipped",
        lambda _original: lambda *_arguments: None,
    ),
    _bug(
        "acks in flight are trimmed",
        "an ack of what was trimmed in flight counts in one region only",
        TrimmedRuns,
        "origins",
        lambda _original: lambda *_arguments: iter(()),
        by_seeds("regions", 300, first=25),
    ),
    PlantedBug(
        "regions/no snapshot for who joins an idle stream",
        "a region that joins a stream without traffic waits for its groups for ever",
        lambda: patched(SnapshotController, "members_changed", _no_news_of_joining),
        _join_of_an_idle_stream,
    ),
    PlantedBug(
        "regions/round not on the wire",
        "an answer counts for whatever round is under way",
        lambda: patched(SnapshotController, "_accepting", _any_round),
        by_seeds("regions-members", 300, first=60),
    ),
    PlantedBug(
        "regions/live member set",
        "a change of members does not abort a snapshot, and who joins late counts",
        _live_member_set,
        by_seeds("regions-members", 300, first=150),
    ),
    PlantedBug(
        "regions/one round for all",
        "a snapshot of three regions is complete after the first round",
        _one_round,
        by_seeds("regions", 300, first=26),
    ),
    _bug(
        "local position of the first answer",
        "a cursor need not pass the last answer to use a snapshot",
        SnapshotController,
        "responded",
        _local_of_first_answer,
    ),
    _bug(
        "forced with later events",
        "a forced snapshot vouches for events that came after its last answer",
        LinkedSegment,
        "force",
        _seen_when_forced,
    ),
    _bug(
        "created at latest",
        "an update creates a missing group at the end of the log",
        LinkedSegment,
        "apply",
        _created_at_latest,
    ),
    _bug(
        "region-only events skipped",
        "an update acks by position alone",
        SnapshotCursor,
        "_unseen",
        lambda _original: lambda *_arguments: [],
    ),
    _bug(
        "cursor moves back",
        "an update sets the cursor instead of acking",
        SnapshotCursor,
        "apply",
        _applied_as_seek,
    ),
    _bug(
        "update only when the cursor moves",
        "a snapshot that becomes known sends no update",
        LinkedSegment,
        "_handle",
        _no_update_for_a_new_snapshot,
    ),
    _bug(
        "update only when a snapshot is new",
        "a cursor that moves sends no update",
        LinkedSegment,
        "ack",
        _no_update_for_an_ack,
    ),
    _bug(
        "seek undone by an update",
        "an update from before a seek or a delete counts after it",
        LinkedSegment,
        "apply",
        _life_ignored,
    ),
    _bug(
        "seek undone by a merge",
        "acks from before a seek count after it",
        OriginProgress,
        "merge",
        _stamps_ignored,
    ),
    _bug(
        "deleted group comes back",
        "progress under way brings a deleted group back",
        OriginProgress,
        "merge",
        _deleted_comes_back,
    ),
    _bug(
        "early acks dropped",
        "acks that come before their event are forgotten",
        OriginCursor,
        "events_appended",
        _early_acks_dropped,
    ),
    _bug(
        "journal alone",
        "a region further behind than the journal is not sent the whole",
        OriginCursor,
        "message_for",
        _journal_alone,
    ),
)
