"""The acts with Spark: the flights go in through its sink and come back through its readers.

Without Spark or Java the tour goes on without: the flights are published by this process, and what
to install is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.markup import escape

from headrace.cli.demo.acts import STREAM, Ingestion, Stage, publish_and_split
from headrace.cli.demo.notes import count
from headrace.cli.failures import CheckFailedError
from headrace.cli.policies import size_text
from headrace.errors import SparkSetupError
from headrace.log.compact_policy import CompactionPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

P = ParamSpec("P")
T = TypeVar("T")

MASTER = "local[2]"
FILES = 4
"""The flights arrive in this many files, each a batch of the query."""
FIRST_FILES = 1
"""Those that are there when the query is first started."""
WAIT_S: Any = 0.2  # Spark takes fractions too, whatever its types say.
SCHEMA = (
    "timestamp timestamp, subject string, key string, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


# --- the session ---------------------------------------------------------------------------


@contextmanager
def spark_of(stage: Stage, folder: Path, *, wanted: bool) -> Iterator[None]:
    """Start Spark beside what else is to be done; ``stage.session()`` waits for it."""
    if not wanted:
        stage.without_spark = "this tour goes without (--no-spark)"
        yield
        return
    # One thread for all of it: Spark finds sources by their format in the session's own thread.
    with ThreadPoolExecutor(1, thread_name_prefix="spark") as thread:
        starting: Future[tuple[SparkSession, bool]] = thread.submit(_open, folder)
        stage.starting, stage.spark_thread = starting, thread
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                spark, borrowed = starting.result()
                if not borrowed:
                    _close(spark)


def _open(folder: Path) -> tuple[SparkSession, bool]:
    """A session, and whether it was there already and is to be left alone."""
    import headrace.spark

    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise SparkSetupError("PySpark is not installed: pip install 'headrace[spark]'") from error
    running = SparkContext._active_spark_context
    master = MASTER if running is None else str(running.master)
    own = folder / "spark"
    own.mkdir()
    settings = {
        "spark.local.dir": str(own),
        "spark.sql.warehouse.dir": str(own),
        "spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={own}",
    }
    with _stderr_to(own / "stderr"):
        spark = headrace.spark.session("headrace demo", master, **({} if running else settings))
    return spark, running is not None


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Processes started meanwhile inherit a stderr that goes to a file, not across the tour."""
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


def _close(spark: SparkSession) -> None:
    """Stop Spark and wait for its Java process, which has files in the tour's folder."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    SparkContext._gateway = None
    SparkContext._jvm = None


async def session_of(stage: Stage) -> SparkSession | None:
    """The session, waited for; None, and why, when there is none."""
    if stage.without_spark or stage.starting is None:
        return None
    began = time.perf_counter()
    try:
        spark, _ = await asyncio.wrap_future(stage.starting)
    except Exception as error:
        if not isinstance(error, SparkSetupError):
            stage.without_spark = f"Spark did not start: {str(error).strip().splitlines()[0]}"
        else:
            stage.without_spark = str(error)
        return None
    if not stage.starting_told:
        stage.starting_told = True
        waited_s = time.perf_counter() - began
        stage.say(f"  [dim]Spark {spark.version} on {spark.sparkContext.master} is up[/dim]")
        stage.facts["spark_wait_s"] = round(waited_s, 3)
    return spark


async def in_spark(stage: Stage, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run something in Spark's thread."""
    call = functools.partial(fn, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(stage.spark_thread, call)


# --- in ------------------------------------------------------------------------------------


async def ingest(stage: Stage) -> None:
    """The flights through a streaming query that is stopped and started again on the way."""
    spark = await session_of(stage)
    if spark is None:
        stage.say(f"  [yellow]without Spark:[/yellow] {escape(stage.without_spark)}")
        await publish_and_split(stage)
        return
    flights, ingestion = stage.flights, await Ingestion.begin(stage)
    incoming, checkpoint = stage.folder / "incoming", stage.folder / "checkpoint"
    incoming.mkdir()
    with stage.progress("ingesting") as bar:
        task = bar.add_task("", total=flights.num_rows)

        async def run(*, split: bool) -> None:
            query = await in_spark(stage, _start, spark, stage, incoming, checkpoint)
            while not await in_spark(stage, _wait, query):
                done = await count(stage, STREAM)
                bar.update(task, completed=done)
                if split and 3 * done > flights.num_rows:
                    ingestion.third.set()

        await asyncio.to_thread(_arrive, flights, incoming, 0, FIRST_FILES)
        await run(split=False)
        first = await count(stage, STREAM)
        await asyncio.to_thread(_arrive, flights, incoming, FIRST_FILES, FILES)
        await run(split=True)
        ingestion.third.set()
        took = ingestion.stopped()
        sealed, opened, at_split = await ingestion.splitter
        await run(split=False)  # Once more, with nothing new: nothing may come twice.
    stage.say(f"  {flights.num_rows:,} events through Spark's sink in {FILES} batches, {took}")
    stage.say(
        f"  the query was started again after {first:,} events, and once more at its end; segment "
        f"{sealed} was split into {' and '.join(map(str, opened))} after {at_split:,}"
    )
    await ingestion.check()
    stage.check("no event came twice by a restart", await count(stage, STREAM) == flights.num_rows)


def _arrive(flights: pa.Table, incoming: Path, first: int, last: int) -> None:
    """Files number ``first`` to ``last`` - 1, in the order of their flights."""
    step = -(-flights.num_rows // FILES)
    for number in range(first, last):
        part = flights.slice(number * step, step)
        if part.num_rows:
            file = incoming / f"flights-{number:02}.parquet"
            hidden = incoming / f".{file.name}"
            pq.write_table(part, hidden)
            # Spark takes files in the order of their times.
            os.utime(hidden, (number + 1, number + 1))
            hidden.rename(file)


def _start(spark: SparkSession, stage: Stage, incoming: Path, checkpoint: Path) -> StreamingQuery:
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(incoming))
    return (
        files.writeStream.format("headrace")
        .options(**stage.options.spark, stream=STREAM)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def _wait(query: StreamingQuery) -> bool:
    """Whether the query is through, by now or in a moment."""
    from pyspark.errors import PySparkException

    try:
        return bool(query.awaitTermination(WAIT_S))
    except PySparkException as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise CheckFailedError(f"the tour's Spark query failed: {reason}") from error


# --- back ----------------------------------------------------------------------------------


async def compact_and_read(stage: Stage) -> None:
    """Small batches become large files, which Spark scans with its own reader."""
    began = time.perf_counter()
    done = await stage.hr.compact(STREAM, CompactionPolicy(min_batches=2, min_age_s=0))
    took_s = time.perf_counter() - began
    stage.facts["compacted"] = done.files
    stage.say(
        f"  {done.files:,} large files made of {done.batches:,} batches in {took_s:.1f} s "
        f"({size_text(done.bytes_before)} → {size_text(done.bytes_after)})"
    )
    spark = await session_of(stage)
    if spark is None:
        stage.say(f"  [yellow]not read with Spark:[/yellow] {escape(stage.without_spark)}")
        left = sum([batch.num_rows async for batch in stage.hr.read(STREAM)])
        stage.check("every event is still there", left == stage.flights.num_rows)
        return
    began = time.perf_counter()
    native = await in_spark(stage, _by_carrier, spark, stage, native=True)
    native_s = time.perf_counter() - began
    began = time.perf_counter()
    through = await in_spark(stage, _by_carrier, spark, stage, native=False)
    through_s = time.perf_counter() - began
    carriers = pc.replace_substring_regex(stage.flights["subject"], r"^.*\.", "")
    expected = {one["values"]: one["counts"] for one in pc.value_counts(carriers).to_pylist()}
    stage.facts["carriers"] = len(native)
    stage.say(
        f"  flights per carrier: {native_s:.1f} s from the files, {through_s:.1f} s through "
        'format("headrace")'
    )
    stage.check(f"Spark counts the flights of {len(expected)} carriers right", native == expected)
    stage.check("both ways to read tell the same", through == native)
    gaps = await in_spark(stage, _gaps, spark, stage)
    stage.check("offsets have no gaps in Spark either", gaps == 0)


def _frame(spark: SparkSession, stage: Stage, *, native: bool) -> Any:
    if not native:
        options = stage.options.spark | {"subscribe": STREAM}
        return spark.read.format("headrace").options(**options).load()
    import headrace.spark

    return headrace.spark.read(
        spark,
        STREAM,
        catalog=stage.options.place,
        store=stage.options.store,
        store_options=stage.options.store_options,
    )


def _by_carrier(spark: SparkSession, stage: Stage, *, native: bool) -> dict[str, int]:
    frame = _frame(spark, stage, native=native)
    carrier = "substring_index(subject, '.', -1) AS carrier"
    return {
        row["carrier"]: row["count"]
        for row in frame.selectExpr(carrier).groupBy("carrier").count().collect()
    }


def _gaps(spark: SparkSession, stage: Stage) -> int:
    """How many offsets are missing or doubled, over all segments."""
    frame = _frame(spark, stage, native=True)
    rows = (
        frame.groupBy("segment")
        .agg({"offset": "max", "*": "count"})
        .select("segment", "max(offset)", "count(1)")
        .collect()
    )
    return sum(abs(row["max(offset)"] + 1 - row["count(1)"]) for row in rows)
