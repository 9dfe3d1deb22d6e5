"""A Spark query as a reader of a group: against a plain read, and what counting its batches costs.

``python -m bench.spark_readers`` prints the figures.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import signal
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import headrace.spark
import headrace.sync
from bench.harness import Result, at_least, at_most, show
from bench.spark_source import events
from headrace.groups.readers.runtime import spark_lines
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark.group_source import GroupRun
from headrace.spark.sink import StreamWriter, make_sink
from headrace.spark.source import HeadraceSource

EVENTS, TRIGGER_EVENTS = 200_000, 20_000
WIDTH, SMALL_TRIGGERS, SMALL_EVENTS = 100, 12, 500
SPANS, OUTPUT_EVENTS, COMMITS = 1000, 1000, 13
REST_S = 0.2
"""After a commit: what it woke has done its part before the next is measured."""
ROUNDS = 3
_numbers = count(1)


def _filled(catalog: Path | str, segments: int, rows: int) -> None:
    with headrace.sync.open(catalog) as hr:
        hr.create_stream("bench", ["bench.>"], segments=segments)
        hr.append("bench", events(rows))


def _trigger_seconds(spark: SparkSession, catalog: Path, most: int, *, group: bool) -> list[float]:
    """How long the batches took of a query to a Headrace sink, the first one left out."""
    name = f"n{next(_numbers)}"
    with headrace.sync.open(catalog) as hr:
        hr.create_stream(f"to-{name}", [f"{name}.>"], segments=2)
        if group:
            hr.reader_groups.create(name, streams=["bench"])
    which = {"group": name} if group else {"subscribe": "bench", "startingOffsets": "earliest"}
    given = which | {"catalog": str(catalog), "maxOffsetsPerTrigger": str(most)}
    frame = spark.readStream.format("headrace").options(**given).load()
    query = (
        frame.selectExpr(f"concat('{name}.', key) AS subject", "key", "value")
        .writeStream.format("headrace")
        .options(catalog=str(catalog), stream=f"to-{name}")
        .option("checkpointLocation", str(catalog.parent / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [each for each in query.recentProgress if each["numInputRows"]]
    return [each["durationMs"]["triggerExecution"] / 1000 for each in done][1:]


def against_plain(spark: SparkSession, folder: Path) -> list[Result]:
    """The same rows through a group and through a plain read, in turn."""
    _filled(folder / "rows", 4, EVENTS)
    _filled(folder / "wide", WIDTH, SMALL_TRIGGERS * SMALL_EVENTS)
    rates: list[float] = []
    extra: list[float] = []
    for number in range(ROUNDS + 1):
        found = {}
        for group in (number % 2 == 0, number % 2 == 1):
            big = _trigger_seconds(spark, folder / "rows", TRIGGER_EVENTS, group=group)
            small = _trigger_seconds(spark, folder / "wide", SMALL_EVENTS, group=group)
            found[group] = (sum(big), statistics.median(small))
        if number:
            rates.append(found[False][0] / found[True][0])
            extra.append((found[True][1] - found[False][1]) * 1000)
    shown = " ".join(f"{each:.2f}" for each in rates)
    more = " ".join(f"{each:.0f}" for each in extra)
    return [
        at_least("Spark with group", statistics.median(rates), 0.9, "of subscribe", shown),
        at_most(
            f"Spark trigger with group, {WIDTH} segments",
            statistics.median(extra),
            30,
            "ms more than subscribe",
            more,
        ),
    ]


def counting(catalog: Path | str) -> Result:
    """The commit of a sink that counts a batch of many spans, against one that counts none."""
    _filled(catalog, SPANS, 1)
    with headrace.sync.open(catalog) as hr:
        hr.create_stream("to", ["to.>"], segments=2)
        hr.reader_groups.create("g", streams=["bench"])
    log, before = open_log(catalog), signal.getsignal(signal.SIGTERM)
    source = HeadraceSource({"catalog": str(catalog), "group": "g"})
    reader = source.streamReader(source.schema())
    query, plain = uuid.uuid4().hex, uuid.uuid4().hex
    start = reader.initialOffset()
    times: dict[str, list[float]] = {query: [], plain: []}
    # As in Spark: what plans and what commits are processes of their own.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as sinks:
        for number in range(COMMITS):
            log.append("bench", events(10 * SPANS))
            while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) == start:
                time.sleep(0.01)
            _bind(log, query, number, reader.partitions(start, end))
            for name in (query, plain) if number % 2 else (plain, query):
                took = sinks.submit(_commit_seconds, str(catalog), name, number).result()
                times[name].append(took)
                time.sleep(REST_S)
            start = end
    reader.stop()
    signal.signal(signal.SIGTERM, before)
    with headrace.sync.open(catalog) as hr:
        assert hr.reader_groups.get("g").lag().events == 0
    # The first batch may come before all segments are claimed.
    counted, bare = (statistics.median(found[1:]) for found in (times[query], times[plain]))
    return at_most(
        f"commit of the sink with {SPANS} spans",
        counted / bare,
        1.5,
        "x that without",
        f"{counted * 1000:.1f} against {bare * 1000:.1f} ms",
    )


def _commit_seconds(catalog: str, query: str, number: int) -> float:
    """How long the commit of a batch takes; in the process that commits."""
    schema = StructType().add("subject", "string").add("value", "binary")
    sink = make_sink({"catalog": catalog, "stream": "to"}, schema, False, "local[1]")
    rows = pa.record_batch(
        {
            "subject": [f"to.{n}" for n in range(OUTPUT_EVENTS)],
            "value": [b"x" * 100] * OUTPUT_EVENTS,
        }
    )
    staged = dataclasses.replace(sink.stage(iter([rows])), query=query, run="run")
    began = time.perf_counter()
    StreamWriter(sink).commit([staged], number)
    return time.perf_counter() - began


def _bind(log: Log, query: str, batch: int, tasks: Iterable[InputPartition]) -> None:
    for task in tasks:
        assert isinstance(task, GroupRun)
        known = (query, batch, "run", task.line, task.opening)
        log.catalog.write(lambda tx, known=known: spark_lines.bind(tx, *known))  # type: ignore[misc]


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        results = [counting(folder / "spans")]
        spark = headrace.spark.session("bench", "local[2]", **{"spark.driver.memory": "1g"})
        try:
            results += against_plain(spark, folder)
        finally:
            spark.stop()
        return results


if __name__ == "__main__":
    show(run())
