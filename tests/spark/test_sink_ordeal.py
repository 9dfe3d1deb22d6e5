"""Executors and the driver are killed in mid-batch, and every event is accounted for."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.catalog.streams import StreamConfig
from headrace.groups.partitioned.admin import create_elastic
from headrace.log.log import Log
from headrace.log.open import open_log
from tests.spark import ordeal
from tests.spark.queries import run_through
from tests.support import ROOT, signal_session, wait_until

EVENTS = 3 * ordeal.BATCH_EVENTS


@contextmanager
def driver(folder: Path, catalogs: list[str]) -> Iterator[IO[str]]:
    """The ordeal's driver with all its processes, which are killed at once in the end."""
    log = folder / "driver.log"
    with log.open("w") as errors:
        running = subprocess.Popen(
            [sys.executable, "-m", ordeal.__name__, str(folder), *catalogs],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        assert running.stdout is not None
        yield running.stdout
    finally:
        signal_session(running.pid, signal.SIGKILL)
        running.wait()
        if running.stdout is not None:
            running.stdout.close()


def prepare(url: str, store: Path) -> Log:
    log = open_log(url, store)
    for name in ("raw", "clean", "flaky", "counts"):
        log.create_stream(name, StreamConfig(subjects=(f"{name}.>",)), segments=2)
    create_elastic(log, "raw", "group", max_members=3, filter="raw.*", wildcards=[1])
    wanted = range(EVENTS)
    log.append(
        "raw",
        pa.table(
            {
                "subject": [f"raw.{number % 5}" for number in wanted],
                "key": [f"{number % 5}" for number in wanted],
                "value": [str(number).encode() for number in wanted],
            }
        ),
    )
    return log


def numbers(log: Log, stream: str) -> list[int]:
    return [int(value) for batch in log.read(stream) for value in batch.column("value").to_pylist()]


def check_all_once_and_in_order(log: Log, stream: str) -> None:
    found = numbers(log, stream)
    assert sorted(found) == list(range(EVENTS))
    for key in range(5):
        of_key = [number for number in found if number % 5 == key]
        assert of_key == sorted(of_key)


def changes(log: Log) -> list[tuple[str, int]]:
    rows = [row for batch in log.read("counts") for row in batch.to_pylist()]
    return [(row["key"], int(row["value"])) for row in rows]


def check_changes_are_written_once(
    spark: SparkSession, log: Log, catalog: str, checkpoint: Path
) -> None:
    """The driver died with its second batch in the stream and not in the checkpoint."""
    assert (checkpoint / "offsets" / "1").exists()
    assert (checkpoint / "commits" / "0").exists()
    assert not (checkpoint / "commits" / "1").exists()
    before = changes(log)
    assert sum(dict(before).values()) == 2 * ordeal.BATCH_EVENTS
    writer = ordeal.write_counts(spark, catalog, checkpoint)
    run_through(writer.trigger(availableNow=True).start)
    assert (checkpoint / "commits" / "1").exists()
    after = changes(log)
    assert after[: len(before)] == before
    for key in {key for key, _ in after}:
        counts = [count for each, count in after if each == key]
        assert counts == sorted(set(counts)), "a change was written twice"
        assert counts[-1] == EVENTS // 5


@pytest.mark.timeout(900)
def test_every_event_is_written_once_whoever_is_killed(
    spark: SparkSession, tmp_path: Path, postgres_url: str
) -> None:
    catalogs = [str(tmp_path / "catalog"), postgres_url]
    logs = [prepare(url, tmp_path / f"files-{number}") for number, url in enumerate(catalogs)]
    with driver(tmp_path, catalogs) as said:
        told = [said.readline().strip() for _ in range(3)]
        assert told[1:] == ["failed once", "partitioned"], (tmp_path / "driver.log").read_text()[
            -3000:
        ]
        assert told[0].startswith(f"refused executors need headrace {headrace.__version__} in ")
        assert "No module named 'headrace'" in told[0]
        for number in range(2):
            wait_until((tmp_path / f"held-{number}").exists, "a batch that is staged", 300)
        wait_until((tmp_path / "held-update").exists, "a batch that is written", 300)

    # Attempts of tasks that failed left nothing and took nothing.
    assert sorted(numbers(logs[0], "flaky")) == list(range(ordeal.FLAKY_ROWS))
    check_all_once_and_in_order(logs[0], "raw.group")

    check_changes_are_written_once(spark, logs[0], catalogs[0], tmp_path / "checkpoint-update")

    # An executor was killed in mid-batch, and the batch was written all the same.  Then the driver
    # died with the next one staged; another driver goes on from its checkpoint.
    for number, (url, log) in enumerate(zip(catalogs, logs, strict=True)):
        written = numbers(log, "clean")
        assert (tmp_path / f"killed-{number}").exists()
        assert len(written) == ordeal.BATCH_EVENTS
        query = ordeal.read_raw(spark, url, ordeal.BATCH_EVENTS).writeStream.format("headrace")
        query = query.options(catalog=url, stream="clean", subjectPrefix="clean.")
        query = query.option("checkpointLocation", str(tmp_path / f"checkpoint-{number}"))
        run_through(query.trigger(availableNow=True).start)
        check_all_once_and_in_order(log, "clean")
        log.catalog.close()
