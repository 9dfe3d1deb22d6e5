"""The partition job of an elastic group: it fills the work queue in rounds from a source.

The world's log is the queue.  The source has segments of its own, which split and merge.  Several
jobs work at the same time, crash and pause between a plan and its commit; of two rounds from the
same places one must come to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.work_queue import next_reads
from headrace.sim.log import Event, ModelLog
from headrace.sim.store import Snapshot, StoreConflictError
from headrace.sim.world import Process

ROUND_MS = 60
PLACES = "places in the source"


class FillingJob(Process):
    """One program that fills the queue."""

    source: ModelLog
    group: GroupName
    round_events_max: int

    def start(self) -> None:
        self._wait()

    def _wait(self) -> None:
        self.after(self.world.rng.randint(1, 2 * ROUND_MS), "plan")

    def timer(self, tag: Any) -> None:
        if tag == "plan":
            self._plan()
        else:
            self.submit("committed", lambda tx: self._commit(tx, tag))
            self._wait()  # whatever comes of it, the next round begins with a look at the places

    def _plan(self) -> None:
        segments = self.source.segments
        floors = self._floors(Snapshot(self.world.store), segments)
        reads = next_reads(list(segments.values()), floors, self.round_events_max)
        if reads:
            self.after(self.world.rng.randint(1, ROUND_MS), tuple(reads))
        else:
            self._wait()

    def _floors(self, tx: Snapshot, numbers: Iterable[int]) -> dict[int, int]:
        job = self.group.partition_job
        found = {number: tx.get(PLACES, (job, number)) for number in numbers}
        return {number: 0 if entry is None else entry.value for number, entry in found.items()}

    def _commit(self, tx: Snapshot, reads: tuple[tuple[int, int, int], ...]) -> None:
        floors = self._floors(tx, (number for number, _, _ in reads))
        for number, start, _ in reads:
            if floors[number] > start:
                self.world.reach("round.overtaken")
                raise StoreConflictError(f"segment {number} was read by another round")
        for number, start, end in reads:
            tx.put(PLACES, (self.group.partition_job, number), end)
            for event in self.source.segments[number].events[start:end]:
                self._append(event)
        self.world.reach("round.committed")

    def _append(self, event: Event) -> None:
        queued = self.world.log.key_counts.get(event.key, 0)
        if event.key_sequence != queued:
            what = f"{self.name} queues {event} of the source after {queued} of its key"
            self.world.fail("key order", what)
        self.world.log.append(event.key)
