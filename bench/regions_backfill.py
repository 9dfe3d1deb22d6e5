"""A region that is filled from another one, against a copy by Spark through our source and sink.

``python -m bench.regions_backfill`` prints the figures.  Files of one lane are copied as they are;
those in which lanes alternate are taken apart and put together again.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import headrace.spark
from bench.harness import Result, at_least, show
from bench.regions_pair import STREAM, Pair, pair
from bench.spark_source import events
from headrace.catalog.streams import StreamConfig
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.regions.linking import link, name_region
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.replicator import Replicator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPENDS, ROWS = 4, 250_000
ROUNDS = 3
CONFIG = StreamConfig(subjects=(f"{STREAM}.>",))
_numbers = count()


def _fill(both: Pair, *, mixed: bool) -> None:
    """Files of one lane; or events of two regions by turns, compacted into files."""
    if not mixed:
        for _ in range(APPENDS):
            both.eu.append(STREAM, events(ROWS))
        return
    near = Neighbours()
    back = Replicator(both.eu, near, "us")
    table = events(1_000)
    for _ in range(APPENDS * ROWS // 2_000):
        both.eu.append(STREAM, table)
        both.us.append(STREAM, table)
        while back.step():
            pass
    near.close()
    both.eu.compact(STREAM)


def _target(folder: Path) -> tuple[Log, str]:
    path = str(folder / f"target-{next(_numbers)}")
    return open_log(path), path


def _pull(both: Pair, folder: Path) -> float:
    """Events a second into a region that has nothing yet."""
    log, path = _target(folder)
    name = f"r{next(_numbers)}"
    name_region(log, name)
    link(both.eu, STREAM, name, here=str(both.paths["eu"]), catalog=path)
    near = Neighbours()
    copying = [Replicator(log, near, source) for source in ("eu", "us")]
    began = time.perf_counter()
    while any([each.step() for each in copying]):  # noqa: C419 - all of them take their turn
        pass
    took_s = time.perf_counter() - began
    near.close()
    assert _heads(log) == _heads(both.eu)
    rate = _heads(log) / took_s
    log.catalog.close()
    return rate


def _heads(log: Log) -> int:
    return sum(segment.head for segment in log.stream(STREAM).segments)


def _spark(spark: SparkSession, both: Pair, folder: Path) -> float:
    log, path = _target(folder)
    log.create_stream(STREAM, CONFIG, 4)
    began = time.perf_counter()
    source = spark.read.format("headrace").option("catalog", str(both.paths["eu"]))
    frame = source.option("subscribe", STREAM).load().select("subject", "key", "value")
    to = frame.write.format("headrace").mode("append")
    to.option("catalog", path).option("stream", STREAM).save()
    took_s = time.perf_counter() - began
    assert _heads(log) == _heads(both.eu)
    rate = _heads(log) / took_s
    log.catalog.close()
    return rate


def backfill(spark: SparkSession, folder: Path, *, mixed: bool) -> Result:
    """Both by turns, each into a catalog of its own."""
    with pair(folder) as both:
        _fill(both, mixed=mixed)
        _spark(spark, both, folder)
        rates: dict[bool, list[float]] = {False: [], True: []}
        for number in range(ROUNDS):
            for ours in (False, True) if number % 2 else (True, False):
                rates[ours].append(_pull(both, folder) if ours else _spark(spark, both, folder))
    ratios = [a / b for a, b in zip(rates[True], rates[False], strict=True)]
    rate, base = (statistics.median(rates[ours]) for ours in (True, False))
    return at_least(
        f"regions: backfill, files of {'mixed lanes' if mixed else 'one lane'}",
        statistics.median(ratios),
        1 if mixed else 2,
        "of a Spark copy",
        f"{rate:,.0f} against {base:,.0f} events/s",
    )


def run() -> list[Result]:
    """Files of one lane, and of mixed lanes."""
    spark = headrace.spark.session("bench", "local[2]", **{"spark.driver.memory": "1g"})
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            return [
                backfill(spark, Path(name) / "one", mixed=False),
                backfill(spark, Path(name) / "mixed", mixed=True),
            ]
    finally:
        spark.stop()


if __name__ == "__main__":
    show(run())
