"""``headrace pipeline``: the jobs that move data in bulk, and how they are doing."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headrace.cli.failures import EXIT_FAILED, EXIT_INTERRUPTED, UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import table, tell_log
from headrace.cli.screens import time_text
from headrace.cli.session_shapes import job_shape, pipeline_shape
from headrace.cli.values import duration_s, pair

if TYPE_CHECKING:
    from headrace.log.log import Log
    from headrace.spark.records import JobRecord, PipelineStatus
    from headrace.spark.supervisor import Supervisor

app = App(name="pipeline", help_epilogue="")

LEASE_TTL_MS_MIN = 1_000
LEASE_TTL_MS_MAX = 600_000
ONCE_LEASE_TTL_MS = 120_000
"""With --once the lease is prolonged between rounds only."""


@app.default
def pipeline(
    *,
    master: str = "local[*]",
    once: Annotated[bool, Parameter(negative="")] = False,
    lease_ttl: str = "15s",
    spark_conf: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    options: Options = NONE,
) -> int:
    """Run the jobs that the catalog asks for: work queues, replication, compaction.

    It starts and stops jobs as groups and policies come and go, tries failed ones again, and runs
    until it is stopped.  Start it twice and the second one stands by.

    * `headrace pipeline`
    * `headrace pipeline --once` (from cron, or to see what there is to do)
    * `headrace pipeline --master spark://host:7077 --spark-conf spark.executor.memory=4g`

    Parameters
    ----------
    master
        Where Spark runs; a cluster needs a postgresql:// catalog and a shared store.
    once
        Do what is due now, and end; the exit status is 1 if a job failed.
    lease_ttl
        How long the others wait for a supervisor that is silent, before one of them takes over.
    spark_conf
        A setting of Spark, name=value; may be given again.
    """
    from headrace.spark.connection import check_shared, connection_of
    from headrace.spark.session import session
    from headrace.spark.supervisor import Settings, Supervisor

    ttl_ms = int(duration_s(lease_ttl, "--lease-ttl") * 1000)
    if not LEASE_TTL_MS_MIN <= ttl_ms <= LEASE_TTL_MS_MAX:
        raise UsageError(f"--lease-ttl {lease_ttl}: give 1s to 10m")
    given = dict(pair(each, "--spark-conf") for each in spark_conf)
    settings = {"spark.scheduler.mode": "FAIR"} | given
    place = connection_of(options.spark)
    check_shared(place.log(), master)
    tell_log("%(asctime)s %(message)s").setLevel(logging.INFO)
    leads = Settings(lease_ttl_ms=ONCE_LEASE_TTL_MS if once else ttl_ms)
    start = partial(session, "headrace pipeline", master, **settings)
    supervisor = Supervisor(place, start, settings=leads)
    done, caught = _run(supervisor, place.log(), once)
    if done is None:
        return EXIT_INTERRUPTED if signal.SIGINT in caught else 0
    none = "nothing to do: no elastic group, no linked stream, no compaction policy"
    options.show([job_shape(job) for job in done], _table(done) if done else none)
    return EXIT_FAILED if any(job.last_error for job in done) else 0


@contextmanager
def _agent(log: Log, stop: threading.Event, once: bool) -> Iterator[None]:
    """The agent of this region, if the catalog is one: it needs no Spark, and does not wait."""
    from headrace.regions.records import get_region
    from headrace.regions.runtime.runner import RegionRunner

    if once or log.catalog.read(get_region) is None:
        yield
        return
    runner = RegionRunner(log, replicate=False)
    thread = threading.Thread(target=runner.run, args=(stop,), name="region", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _run(supervisor: Supervisor, log: Log, once: bool) -> tuple[list[JobRecord] | None, list[int]]:
    """What was done ``once``, and the signals that came meanwhile.

    It works on another thread: a signal handler interrupts the main one at any point, so that one
    must hold no locks.
    """
    stop = threading.Event()
    result: Future[list[JobRecord] | None] = Future()

    def work() -> None:
        try:
            if once:
                result.set_result(supervisor.run_once(stop))
            else:
                supervisor.run(stop)
                result.set_result(None)
        except BaseException as error:
            result.set_exception(error)

    with _signals() as caught, _agent(log, stop, once):
        worker = threading.Thread(target=work, name="supervisor", daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(0.1)
            if caught and not stop.is_set():
                stop.set()
                supervisor.wake()
    return result.result(), caught


@app.command
def status(*, options: Options = NONE) -> None:
    """Show who leads the pipeline and how its jobs are doing.

    Example: `headrace pipeline status --json`
    """
    from headrace.spark.records import read_status

    with options.look() as catalog:
        found = read_status(catalog)
    failed = (
        f"[bold]{escape(job.name)}[/bold] failed at {time_text(job.last_error_us)}: "
        f"{escape(job.last_error)}"
        for job in found.jobs
        if job.last_error and job.last_error_us is not None
    )
    jobs = [_table(found.jobs)] if found.jobs else []
    options.show(pipeline_shape(found), _led_text(found), *jobs, *failed)


# --- screens -------------------------------------------------------------------------------


def _led_text(found: PipelineStatus) -> str:
    leader = found.supervisor
    if not found.led:
        return "nobody leads the pipeline; start it with: headrace pipeline"
    if leader is None or leader.stopped:
        return "a supervisor has just taken the lead"
    return (
        f"led by process {leader.pid} on {escape(leader.host)} since "
        f"{time_text(leader.leads_since_us)}, Spark on {escape(leader.master or 'no master yet')}"
    )


def _table(jobs: Sequence[JobRecord]) -> Table:
    rows = (
        (
            job.name,
            Text.from_markup(_state(job)),
            job.events,
            "" if job.state == "stopped" else f"{job.rate_per_s:,.0f}",
            "?" if job.lag_events is None else job.lag_events,
            str(job.starts),
            job.note,
        )
        for job in jobs
    )
    return table(("job", "state", ">events", ">events/s", ">lag", ">starts", "note"), rows)


def _state(job: JobRecord) -> str:
    if job.state == "running":
        return "[green]running[/green]"
    if job.state == "waiting" and job.due_us is not None:
        in_s = max(0.0, job.due_us / 1e6 - datetime.now(UTC).timestamp())
        return f"[yellow]again in {in_s:.0f} s[/yellow]"
    return "[red]failed[/red]" if job.failures else job.state


# --- threads and signals -------------------------------------------------------------------


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGTERM and SIGINT instead of ending at once; the second SIGINT does end it."""
    caught: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and number in caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
