"""The supervisor: runs what the catalog asks for, in one Spark application.

It leads by a lease, so that of several supervisors on a catalog one works and the others stand by,
with their Spark session ready.  While it leads it looks which jobs should run, does what
:mod:`headrace.spark.supervision` decides, each job in a thread of its own, and writes down how they
are.  A catalog that cannot be reached is tried again for as long as it takes; once the lease must
have run out the jobs are stopped, since another supervisor may have it, and they start again with
the next lease.  Nothing breaks if an old leader is slow to notice: a job's work counts only by a
commit that checks what it was based on.

One thread decides; the jobs' threads and the catalog's only wake it.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.catalog import entries, leases
from headrace.catalog.leases import Lease
from headrace.errors import HeadraceError, LeaseLost, PipelineBrokenError, PipelineLedError
from headrace.groups.lost import watched
from headrace.spark import records
from headrace.spark.connection import Connection, check_shared
from headrace.spark.jobs import Job, JobSpec, JobStatus, Joining
from headrace.spark.recorder import Recorder
from headrace.spark.records import JobRecord, told
from headrace.spark.supervision import (
    BackOff,
    Effect,
    Forget,
    Phase,
    Slot,
    Start,
    Stop,
    Supervision,
)
from headrace.spark.wanted import BUCKETS, make_job, wanted_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The intervals and timeouts of a supervisor."""

    lease_ttl_ms: int = 15_000
    look_every_ms: int = 10_000
    """How often it polls, in case a notification of the catalog got lost."""
    record_every_ms: int = 2_000
    """How often figures are written down, at most."""
    alive_every_ms: int = 30_000
    """How often a heartbeat is written while nothing changes."""
    stop_within_ms: int = 30_000
    """How long jobs may take to stop before they are left behind."""
    back_off: BackOff = BackOff()


class _Work(NamedTuple):
    """A job at work."""

    job: Job
    stop: threading.Event
    thread: threading.Thread


class Supervisor:
    """One supervisor; ``run`` returns when it is told to stop."""

    def __init__(
        self,
        connection: Connection,
        open_session: Callable[[], SparkSession],
        *,
        settings: Settings | None = None,
        make: Callable[[Connection, JobSpec], Job] = make_job,
    ) -> None:
        self._connection = connection
        self._open_session = open_session
        self._settings = settings or Settings()
        self._make = make
        self._log = connection.log()
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._supervision = Supervision(self._settings.back_off)
        every_ms, alive_ms = self._settings.record_every_ms, self._settings.alive_every_ms
        self._recorder = Recorder(self._log.catalog, self._owner, every_ms, alive_ms)
        self._at_work: dict[str, _Work] = {}
        self._ended: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
        self._news = threading.Event()
        self._spark: SparkSession | None = None
        self._lease: Lease | None = None
        self._lease_until_ms = 0
        self._leader = ""
        self._look_due_ms = 0
        self._outage = False

    def wake(self) -> None:
        """Have a look now; for signal handlers and other threads."""
        self._news.set()

    def run(self, stop: threading.Event) -> None:
        """Supervise until ``stop`` is set (and :meth:`wake` was called, to be quick)."""
        with ExitStack() as subscriptions:
            channels = [entries.channel(bucket) for bucket in BUCKETS]
            for channel in (*channels, leases.channel(records.LEASE)):
                subscriptions.callback(self._log.catalog.subscribe(channel, self._hear))
            # Its process may be the only one that is left to see whom the catalog has lost.
            subscriptions.enter_context(watched(self._log.catalog, self._owner))
            try:
                # Before anything is led: starting Spark takes longer than a lease lasts.
                self._session()
                while not stop.is_set():
                    self._turn()
                    self._news.wait(self._pause_s())
                    self._news.clear()
            finally:
                self._close()

    def run_once(self, stop: threading.Event) -> list[JobRecord]:
        """Do what is due now, job by job, until there is nothing left; needs the lead."""
        try:
            self._session()
            self._lead()
            if self._lease is None:
                raise PipelineLedError(
                    "another supervisor leads the pipeline of this catalog, and does what is due"
                )
            with ExitStack() as at_work:
                jobs = [self._made(spec, at_work) for spec in wanted_jobs(self._log)]
                done = [self._once(spec, job, stop) for spec, job in jobs]
            self._recorder.end(self._lease.token, done)
            return done
        finally:
            self._close()

    # -- the loop -----------------------------------------------------------------------

    def _hear(self) -> None:
        self._look_due_ms = 0
        self._news.set()

    def _turn(self) -> None:
        """One look at everything."""
        try:
            self._lead()
            if self._lease is not None:
                self._look()
                self._recorder.write(
                    self._lease.token, self._supervision.slots, self._status_of, _now_ms()
                )
        except LeaseLost:
            _log.warning("the lease was lost; stopping the jobs")
            self._stand_down()
        except HeadraceError as error:
            # The catalog cannot be reached, or its disk is full; either way, try again later.
            self._outage_is(error)
            if self._lease is not None and _now_ms() >= self._lease_until_ms:
                _log.warning("the lease must have run out; stopping the jobs")
                self._stand_down()
        self._collect()
        if self._lease is not None:
            self._apply(self._supervision.due(_now_ms()))

    def _look(self) -> None:
        """See what should run."""
        if _now_ms() >= self._look_due_ms:
            # Set before looking: a notification meanwhile asks for another look.
            self._look_due_ms = _now_ms() + self._settings.look_every_ms
            self._apply(self._supervision.want(wanted_jobs(self._log), _now_ms()))

    def _pause_s(self) -> float:
        ttl_ms, now_ms = self._settings.lease_ttl_ms, _now_ms()
        if self._lease is None:
            # Polls, since no notification is sent when a lease runs out.
            return min(ttl_ms / 5, 1000) / 1000
        due_ms = [now_ms + ttl_ms // 6, self._look_due_ms, self._recorder.due_ms]
        if self._supervision.next_due_ms is not None:
            due_ms.append(self._supervision.next_due_ms)
        return max(0.02, (min(due_ms) - now_ms) / 1000)

    def _outage_is(self, error: HeadraceError | None) -> None:
        if error is not None and not self._outage:
            _log.warning("the catalog cannot be used, trying on: %s", error)
        elif error is None and self._outage:
            _log.warning("the catalog is back")
        self._outage = error is not None

    # -- the lease ----------------------------------------------------------------------

    def _lead(self) -> None:
        """Take the lease when it is free, and prolong it in time."""
        # Every turn begins with a read: it fails at once where a write would wait for a catalog
        # that is away, and nothing but an answer says that it is back.
        held = self._log.catalog.leases.get(records.LEASE)
        self._outage_is(None)
        ttl_ms = self._settings.lease_ttl_ms
        asked_ms = _now_ms()
        if self._lease is None:
            if self._at_work:
                return  # Jobs of an earlier lease are still ending.
            if held is not None and held.owner != self._owner:
                self._stands_by(held)
                return
            lease = self._log.catalog.leases.acquire(records.LEASE, self._owner, ttl_ms)
            if lease is None:
                return
            self._recorder.begin()
            self._lease = lease
            self._look_due_ms = 0
            self._leader = self._owner
            _log.info("leading as %s", self._owner)
        elif asked_ms < self._lease_until_ms - ttl_ms * 2 // 3:
            return
        else:
            self._lease = self._log.catalog.leases.renew(self._lease, ttl_ms)
        # Counted from before the request, so that it never ends earlier than we think.
        self._lease_until_ms = asked_ms + ttl_ms

    def _stands_by(self, held: Lease) -> None:
        if self._leader != held.owner:
            self._leader = held.owner
            _log.info("standing by: %s leads", held.owner)

    def _stand_down(self) -> None:
        self._lease = None
        self._apply(self._supervision.stand_down(_now_ms()))

    # -- jobs ---------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(spec=spec):
                    self._start(spec)
                case Stop(name=name):
                    if name in self._at_work:
                        self._at_work[name].stop.set()
                case Forget(name=name):
                    self._recorder.forget(name)

    def _start(self, spec: JobSpec) -> None:
        def ended(error: str | None) -> None:
            self._ended.put((spec.name, error))
            self._news.set()

        _log.info("starting %s", spec.name)
        self._recorder.started(spec.name)
        try:
            job = self._make(self._connection, spec)
        except HeadraceError as error:
            ended(told(error))
            return
        spark, stop = self._session(), threading.Event()

        def work() -> None:
            error: str | None = None
            try:
                job.start(spark)
                job.run(stop)
            except Exception as failure:
                error = told(failure)
            ended(error)

        thread = threading.Thread(target=work, name=job.name, daemon=True)
        self._at_work[spec.name] = _Work(job, stop, thread)
        thread.start()

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = self._open_session()
            self._recorder.master = str(self._spark.sparkContext.master)
            check_shared(self._log, self._recorder.master)
        return self._spark

    def _status_of(self, name: str) -> JobStatus | None:
        work = self._at_work.get(name)
        return None if work is None else work.job.status()

    def _collect(self) -> None:
        """See which jobs have ended, and which have worked."""
        while not self._ended.empty():
            name, error = self._ended.get()
            self._at_work.pop(name, None)
            if error is not None:
                _log.warning("%s failed: %s", name, error)
                self._check_spark()
            self._apply(self._supervision.ended(name, error, _now_ms(), random.random()))
        for slot in self._supervision.slots:
            if slot.failures and slot.phase is Phase.RUNNING:
                status = self._status_of(slot.spec.name)
                if status is not None and status.rounds:
                    self._supervision.worked(slot.spec.name)

    def _check_spark(self) -> None:
        """A job that failed because Spark is gone cannot be started again here."""
        try:
            gone = self._spark is None or bool(self._spark.sparkContext._jsc.sc().isStopped())
        except Exception:
            gone = True
        if gone:
            raise PipelineBrokenError(
                "Spark's Java process is gone, and the pipeline with it; start it again"
            )

    def _made(self, spec: JobSpec, at_work: ExitStack) -> tuple[JobSpec, Job | HeadraceError]:
        """A job that is at work from now on, so that others may do its share; or why not."""
        try:
            job = self._make(self._connection, spec)
        except HeadraceError as error:
            return spec, error
        if isinstance(job, Joining):
            at_work.enter_context(job.joined())
        return spec, job

    def _once(self, spec: JobSpec, job: Job | HeadraceError, stop: threading.Event) -> JobRecord:
        error = ""
        status = JobStatus()
        since_ms = _now_ms()
        self._recorder.started(spec.name)
        try:
            if isinstance(job, HeadraceError):
                raise job
            job.start(self._session())
            while not stop.is_set() and job.step():
                self._lead()
            status = job.status()
        except LeaseLost:
            raise
        except Exception as failure:
            error = told(failure)
        slot = Slot(
            spec=spec,
            phase=Phase.STOPPING,
            since_ms=since_ms,
            failures=int(bool(error)),
            last_error=error,
            last_error_ms=_now_ms(),
        )
        record = self._recorder.job(slot, status, _now_ms())
        return records.stopped(record)

    # -- the end ------------------------------------------------------------------------

    def _close(self) -> None:
        """Stop the jobs, say so, and give back the lease and the session."""
        slots = self._supervision.slots
        deadline_ms = _now_ms() + self._settings.stop_within_ms
        for work in self._at_work.values():
            work.stop.set()
        for work in self._at_work.values():
            self._wait_for(work.thread, deadline_ms)
        try:
            self._give_back(slots)
        except HeadraceError as error:
            _log.warning("the lease runs out by itself: %s", error)
        if self._spark is not None:
            try:
                self._spark.stop()
            except Exception as error:
                _log.warning("Spark was gone already: %s", told(error))

    def _wait_for(self, thread: threading.Thread, deadline_ms: int) -> None:
        """Wait for a job to end; the lease is ours until all have."""
        while thread.is_alive() and _now_ms() < deadline_ms:
            if self._lease is not None:
                # If the lease is lost or out of reach, its release will report that.
                with suppress(HeadraceError):
                    self._lead()
            left_ms = min(deadline_ms - _now_ms(), self._settings.lease_ttl_ms // 6)
            thread.join(max(0, left_ms) / 1000)

    def _give_back(self, slots: tuple[Slot, ...]) -> None:
        if self._lease is None:
            return
        lease, self._lease = self._lease, None
        try:
            jobs = [
                self._recorder.job(slot, self._status_of(slot.spec.name), _now_ms())
                for slot in slots
            ]
            self._recorder.end(lease.token, jobs)
        finally:
            self._log.catalog.leases.release(lease)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
