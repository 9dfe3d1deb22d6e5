"""Writes the status records of a supervisor and its jobs, at a bounded rate.

Only what changed is written, all of it in one transaction, under the supervisor's lease.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable

import msgspec

from headrace.catalog import Catalog
from headrace.spark import records
from headrace.spark.jobs import JobStatus
from headrace.spark.records import JobRecord, SupervisorRecord
from headrace.spark.supervision import Phase, Slot

StatusOf = Callable[[str], JobStatus | None]
"""How a job is, or None when it is not at work."""


class Recorder:
    """Knows what was written last, so as not to write it again."""

    def __init__(self, catalog: Catalog, owner: str, every_ms: int, alive_every_ms: int) -> None:
        self._catalog = catalog
        self._owner = owner
        self._every_ms = every_ms
        self._alive_every_ms = alive_every_ms
        self._told: dict[str, JobRecord] = {}
        self._gone: set[str] = set()
        self._leads_since_us = 0
        self._alive_due_ms = 0
        self.master = ""
        self.due_ms = 0
        """The earliest time of the next write."""

    def begin(self) -> None:
        """A lease begins: what others left is theirs, until a job of that name starts here."""
        self._told = {}
        self._gone = set(records.stored_jobs(self._catalog))
        self._leads_since_us = _calendar_us()
        self.due_ms = self._alive_due_ms = 0

    def started(self, name: str) -> None:
        self._gone.discard(name)

    def forget(self, name: str) -> None:
        """The job is over for good; its entry goes."""
        self._told.pop(name, None)
        self._gone.add(name)

    def write(self, token: int, slots: Iterable[Slot], status_of: StatusOf, now_ms: int) -> None:
        """Write down what is new, if it is time; raises LeaseLost when another leads."""
        if now_ms < self.due_ms:
            return
        self.due_ms = now_ms + self._every_ms
        jobs = [self.job(slot, status_of(slot.spec.name), now_ms) for slot in slots]
        changed = [job for job in jobs if not _same(self._told.get(job.name), job)]
        alive = now_ms >= self._alive_due_ms
        if not (changed or alive or self._gone):
            return
        own = self._own(stopped=False) if alive else None
        records.write(self._catalog, token, own, changed, sorted(self._gone))
        self._gone = set()
        self._told |= {job.name: job for job in changed}
        if alive:
            self._alive_due_ms = now_ms + self._alive_every_ms

    def end(self, token: int, jobs: Iterable[JobRecord]) -> None:
        """Write down that nothing runs any more."""
        ended = [records.stopped(job) for job in jobs]
        records.write(self._catalog, token, self._own(stopped=True), ended, sorted(self._gone))

    def job(self, slot: Slot, status: JobStatus | None, now_ms: int) -> JobRecord:
        """A job as it is now; of one that is not at work, with its last figures."""
        # The core runs on the monotonic clock; records hold wall-clock times, for people.
        now_us = _calendar_us()
        to_us = now_us - now_ms * 1000
        if status is None:
            last = self._told.get(slot.spec.name)
            status = (
                JobStatus()
                if last is None
                else JobStatus(rounds=last.rounds, events=last.events, lag_events=last.lag_events)
            )
        return JobRecord(
            name=slot.spec.name,
            kind=slot.spec.kind,
            target=slot.spec.target,
            state=slot.phase.value,
            since_us=to_us + slot.since_ms * 1000,
            starts=slot.starts,
            rounds=status.rounds,
            events=status.events,
            rate_per_s=round(status.rate_per_s, 1),
            lag_events=status.lag_events,
            failures=slot.failures,
            due_us=to_us + slot.due_ms * 1000 if slot.phase is Phase.WAITING else None,
            last_error=slot.last_error or None,
            last_error_us=to_us + slot.last_error_ms * 1000 if slot.last_error else None,
            note=status.note,
            updated_us=now_us,
        )

    def _own(self, *, stopped: bool) -> SupervisorRecord:
        return SupervisorRecord(
            owner=self._owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            master=self.master,
            leads_since_us=self._leads_since_us,
            updated_us=_calendar_us(),
            stopped=stopped,
        )


def _same(before: JobRecord | None, now: JobRecord) -> bool:
    """Whether nothing changed; converted times jitter a little, which does not count."""
    if before is None:
        return False
    moments = {"since_us": 0, "due_us": 0, "last_error_us": 0, "updated_us": 0}
    return msgspec.structs.replace(before, **moments) == msgspec.structs.replace(now, **moments)


def _calendar_us() -> int:
    return time.time_ns() // 1000
