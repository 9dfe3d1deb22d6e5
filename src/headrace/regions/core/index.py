"""The snapshot index: for any cursor, the newest snapshot that it has passed.

Theory of operation
-------------------
Snapshots stand in the log, as markers.  The index remembers, for each, its local position (what a
cursor must have passed) and where its marker is; both only grow, so a bisection finds the one
that counts, however far back the cursor is.  Nothing is evicted while a group may need it.

Memory is bounded: when the index is full, every second entry goes and from then on only every
second snapshot is entered (then every fourth, …).  An entry then stands for the stretch of log up
to the next one, and the answer is picked among the few markers in it.  So a lookup is exact
whatever was thinned out; it only reads a little more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable

from headrace.errors import SnapshotOrderError
from headrace.regions.core.markers import SnapshotMarker

ENTRIES_MAX = 65_536

ReadSnapshots = Callable[[int, int], Iterable[SnapshotMarker]]
"""Gives the snapshot markers at the positions ``lo`` to ``hi`` (exclusive) of the log, in order."""


class SnapshotIndex:
    """Where the snapshots of one segment are; ``read`` gets their content from the log."""

    def __init__(self, read: ReadSnapshots, *, entries_max: int = ENTRIES_MAX) -> None:
        self._read = read
        self._entries_max = max(entries_max, 4)
        self._locals = array("q")
        self._places = array("q")
        self._stride = 1
        self._unentered = 0
        self._last_local = -1
        self._last_place = -1

    def __len__(self) -> int:
        """Number of entries held in memory."""
        return len(self._locals)

    @property
    def stride(self) -> int:
        """One entry stands for up to this many snapshots."""
        return self._stride

    @property
    def newest(self) -> int:
        """The local position of the newest snapshot, -1 if there is none."""
        return self._last_local

    def add(self, snapshot: SnapshotMarker, position: int) -> None:
        """A snapshot's marker stands at ``position`` of the log."""
        if not self._last_local < snapshot.local < position or position <= self._last_place:
            raise SnapshotOrderError(
                f"snapshot {snapshot.snapshot_id!r} of local position {snapshot.local} "
                f"at {position}",
                f"the newest is of {self._last_local} at {self._last_place}",
                "snapshots are known in the order of the log, each after what it covers",
            )
        self._last_local, self._last_place = snapshot.local, position
        self._unentered += 1
        if self._unentered < self._stride and self._locals:
            return
        self._unentered = 0
        self._locals.append(snapshot.local)
        self._places.append(position)
        if len(self._locals) > self._entries_max:
            last_goes = len(self._locals) % 2 == 0
            self._unentered = self._stride if last_goes else 0
            self._locals = self._locals[::2]
            self._places = self._places[::2]
            self._stride *= 2

    def newest_at(self, mark_delete: int, *, after: int = -1) -> SnapshotMarker | None:
        """The newest snapshot whose local position is at or below ``mark_delete``.

        None when there is none, or none newer than the one of local position ``after``; that is
        mostly known without reading.
        """
        if self._last_local <= after:
            return None
        k = bisect_right(self._locals, mark_delete) - 1
        if k < 0:
            return None
        last = k + 1 == len(self._locals)
        if min(mark_delete, self._last_local if last else self._locals[k + 1] - 1) <= after:
            return None
        alone = self._stride == 1 or (last and self._last_place == self._places[k])
        if alone and self._locals[k] <= after:
            return None
        end = self._places[k] + 1 if alone else self._place_after(k)
        found = None
        for snapshot in self._read(self._places[k], end):
            if snapshot.local > mark_delete:
                break
            found = snapshot
        return found if found is not None and found.local > after else None

    def _place_after(self, k: int) -> int:
        return self._places[k + 1] if k + 1 < len(self._places) else self._last_place + 1

    def forget_below(self, mark_delete: int) -> None:
        """No group will ask below ``mark_delete`` any more: keep what answers there and above."""
        k = bisect_right(self._locals, mark_delete) - 1
        if k > 0:
            del self._locals[:k], self._places[:k]

    def trim(self, first: int) -> None:
        """The log below ``first`` is gone, and the markers there with it."""
        k = bisect_right(self._places, first - 1)
        kept_alone = self._stride == 1
        if k and not kept_alone and self._last_place >= first:
            # Snapshots between a trimmed entry and the next one are still in the log.
            self._places[k - 1] = first
            k -= 1
        del self._locals[:k], self._places[:k]
