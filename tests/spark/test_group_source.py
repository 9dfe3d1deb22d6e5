"""A Spark query as a reader of a reader group, through Spark itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace.spark
import headrace.sync
from headrace.errors import (
    ForeignCheckpointError,
    HeadraceError,
    InvalidInputError,
    InvalidOptionError,
    NotSharedError,
    ReaderBusyError,
    UnknownReaderGroupError,
)
from headrace.spark import group_offsets
from headrace.spark.group_offsets import GroupPlace
from headrace.spark.group_source import GroupRun, GroupStreamReader
from headrace.spark.listener import lag_of
from headrace.spark.planning import CORES_MAX
from headrace.spark.source import HeadraceSource
from tests.spark.queries import run_through
from tests.support import wait_until

KEYS = 7


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    return str(tmp_path / "catalog")


@pytest.fixture
def hr(catalog: str) -> Iterator[headrace.sync.Headrace]:
    with headrace.sync.open(catalog) as opened:
        opened.create_stream("orders", ["orders.>"], segments=3)
        opened.create_stream("clean", ["clean.>"], segments=2)
        opened.reader_groups.create("report", streams=["orders"])
        yield opened


def send(hr: headrace.sync.Headrace, numbers: range) -> None:
    hr.append(
        "orders",
        pa.table(
            {
                "subject": [f"orders.{n % KEYS}" for n in numbers],
                "key": [str(n % KEYS) for n in numbers],
                "value": [str(n).encode() for n in numbers],
            }
        ),
    )


def numbers(hr: headrace.sync.Headrace) -> list[int]:
    return [int(v) for batch in hr.read("clean") for v in batch.column("value").to_pylist()]


def in_order(found: list[int]) -> bool:
    return all(
        (mine := [n for n in found if n % KEYS == key]) == sorted(mine) for key in range(KEYS)
    )


def starting(
    spark: SparkSession, catalog: str, folder: Path, *, now: bool = True
) -> Callable[[], StreamingQuery]:
    """A query from the group to the stream ``clean``; it ends by itself if it is for ``now``."""
    rows = headrace.spark.read_stream(
        spark, group="report", reader="spark-1", catalog=catalog, maxOffsetsPerTrigger=80
    )
    shown = rows.selectExpr("concat('clean.', key) AS subject", "key", "value")
    writer = headrace.spark.write_stream(
        shown, "clean", catalog=catalog, checkpointLocation=str(folder / "checkpoint")
    )
    trigger = {"availableNow": True} if now else {"processingTime": "0 seconds"}
    return writer.trigger(**trigger).start


def test_queries_and_a_reader_share_a_group_and_every_event_is_written_once(
    spark: SparkSession, hr: headrace.sync.Headrace, catalog: str, tmp_path: Path
) -> None:
    group = hr.reader_groups.get("report")
    send(hr, range(100))
    run_through(starting(spark, catalog, tmp_path))
    assert sorted(numbers(hr)) == list(range(100))
    assert group.lag().events == 0
    wait_until(lambda: not group.info().readers, "the query has left the group", 60)

    # Stopped and started with nothing in between; and a reader does some of the work.
    send(hr, range(100, 130))
    with group.reader("r1") as reader:
        delivery = reader.next(timeout_s=60)
        assert delivery is not None
        with delivery.transaction() as transaction:
            transaction.publish(f"clean.{delivery.key}", delivery.value, key=delivery.key)
    hr.split("orders", 0, 2)
    send(hr, range(130, 160))
    run_through(starting(spark, catalog, tmp_path))
    found = numbers(hr)
    assert sorted(found) == list(range(160))
    assert in_order(found)

    # A checkpoint directory that was put back is refused, and nothing is written.
    for log in ("offsets", "commits"):
        for number in sorted((tmp_path / "checkpoint" / log).glob("[0-9]*"))[1:]:
            number.unlink()
            number.with_name(f".{number.name}.crc").unlink(missing_ok=True)
    send(hr, range(160, 170))
    with pytest.raises(StreamingQueryException, match="put back"):
        run_through(starting(spark, catalog, tmp_path))
    assert len(numbers(hr)) == 160


def test_a_running_query_leaves_when_it_is_stopped_and_ends_when_its_group_goes(
    spark: SparkSession, hr: headrace.sync.Headrace, catalog: str, tmp_path: Path
) -> None:
    group = hr.reader_groups.get("report")
    send(hr, range(20))
    query = starting(spark, catalog, tmp_path, now=False)()
    try:
        wait_until(lambda: len(numbers(hr)) == 20, "the first events", 180)
        (reader,) = group.info().readers
        assert reader.reader == "spark-1"
        taken = group.checkpoint("nightly", timeout_s=120)
        assert sum(taken.cut.values()) == 20
        with pytest.raises(ReaderBusyError), group.reader("spark-1", lease_ttl_ms=1000):
            pass
    finally:
        query.stop()
    wait_until(lambda: not group.info().readers, "the query has left the group", 60)


SIGNALLED = """
import signal, sys, time
from headrace.spark.source import HeadraceSource

source = HeadraceSource({"catalog": sys.argv[1], "group": "report", "reader": "spark-1"})
reader = source.streamReader(source.schema())
reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
print("online", flush=True)
sys.stdin.readline()

def hold(tx):  # what the interrupted call may hold, whatever it is
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.3)

reader._at()[0].catalog.write(hold)
time.sleep(60)
"""


def test_who_is_ended_in_the_middle_of_anything_leaves_first(
    hr: headrace.sync.Headrace, catalog: str
) -> None:
    group = hr.reader_groups.get("report")
    command = [sys.executable, "-c", SIGNALLED, catalog]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "online\n"
        assert [reader.reader for reader in group.info().readers] == ["spark-1"]
        program.communicate("go\n", timeout=60)
    assert program.returncode == 128 + signal.SIGTERM
    assert group.info().readers == ()


@pytest.fixture
def planning(
    hr: headrace.sync.Headrace, catalog: str
) -> Iterator[Callable[..., GroupStreamReader]]:
    """What plans a query, without Spark; it has left the group when the test ends."""
    made: list[GroupStreamReader] = []
    before = signal.getsignal(signal.SIGTERM)

    def make(clock: Callable[[], float] = time.monotonic, **options: str) -> GroupStreamReader:
        source = HeadraceSource({"catalog": catalog, "group": "report", **options})
        made.append(GroupStreamReader(source._options(), source.schema(), clock))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()
    signal.signal(signal.SIGTERM, before)


def planned(reader: GroupStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """The next batch, when the reader has its segments and there is something to read."""
    limit = reader.getDefaultReadLimit()
    ends = [start]

    def is_planned() -> bool:
        ends.append(reader.latestOffset(start, limit))
        return ends[-1] != start

    wait_until(is_planned, "a batch is planned")
    return ends[-1]


def count_of(offset: dict[str, Any]) -> int:
    streams = offset["batch"]["spans"].values()
    return sum(
        high - low
        for stream in streams
        for ranges in stream["segments"].values()
        for low, high in ranges
    )


def test_a_trigger_of_a_group_waits_for_enough_events_and_not_for_ever(
    hr: headrace.sync.Headrace, planning: Callable[..., GroupStreamReader]
) -> None:
    now = [0.0]
    reader = planning(lambda: now[0], minoffsetspertrigger="100", maxtriggerdelay="1m")
    send(hr, range(10))
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) == start
    group = hr.reader_groups.get("report")
    wait_until(lambda: len(group.info().readers[0].segments) == 3, "it has all segments")
    for now[0] in (20.0, 40.0, 59.0):
        assert reader.latestOffset(start, limit) == start
    now[0] = 61.0
    first = planned(reader, start)
    assert count_of(first) == 10
    reader.partitions(start, first)
    send(hr, range(10, 130))
    second = planned(reader, first)
    assert count_of(second) == 120


def test_what_ends_by_itself_does_not_wait_for_more_events(
    hr: headrace.sync.Headrace, planning: Callable[..., GroupStreamReader]
) -> None:
    reader = planning(lambda: 0.0, minoffsetspertrigger="100", maxtriggerdelay="1m")
    send(hr, range(10))
    reader.prepareForTriggerAvailableNow()
    assert count_of(planned(reader, reader.initialOffset())) == 10


def test_small_parts_of_many_segments_share_tasks(
    hr: headrace.sync.Headrace, planning: Callable[..., GroupStreamReader]
) -> None:
    hr.create_stream("wide", ["wide.>"], segments=40)
    hr.reader_groups.get("report").add_streams(["wide"], start="earliest")
    for n in range(400):
        hr.publish(f"wide.{n}", b"", key=str(n))
    for least in (1, 7):
        reader = planning(minpartitions=str(least))
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        end = planned(reader, start)
        segments = end["batch"]["spans"]["wide"]["segments"]
        assert len(segments) > 20
        tasks = reader.partitions(start, end)
        assert least <= len(tasks) <= max(least, CORES_MAX)
        read = {span.segment for task in tasks for span, _ in cast("GroupRun", task).spans}
        assert read == set(map(int, segments))
        reader.stop()


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"reader": "r", "subscribe": "orders"}, InvalidOptionError, "a reader in a 'group'"),
        ({"group": "report", "subscribe": "orders"}, InvalidOptionError, "not 'subscribe' and"),
        ({"group": "report", "assign": '{"orders": [0]}'}, InvalidOptionError, "not 'assign'"),
        ({"group": "report", "startingOffsets": "earliest"}, InvalidOptionError, "was made"),
        ({"group": "report", "subject": "orders.*"}, InvalidOptionError, "for all its readers"),
        ({"group": "gone"}, UnknownReaderGroupError, "there is no reader group 'gone'"),
        ({"group": "a b"}, InvalidInputError, "reader group name"),
        ({"group": "report", "reader": "a.b"}, InvalidInputError, "reader name"),
        ({"group": "report", "maxOffsetsPerTrigger": "no"}, InvalidOptionError, "above 0"),
    ],
)
def test_bad_options_are_refused_before_there_is_a_query(
    hr: headrace.sync.Headrace,
    catalog: str,
    options: dict[str, str],
    kind: type[HeadraceError],
    said: str,
) -> None:
    given = {name.lower(): value for name, value in options.items()}
    with pytest.raises(kind, match=said):
        HeadraceSource({"catalog": catalog, **given})


def test_a_group_is_for_streaming_reads_where_executors_reach_the_catalog(
    hr: headrace.sync.Headrace, catalog: str
) -> None:
    made = HeadraceSource({"catalog": catalog, "group": "report"})
    with pytest.raises(InvalidOptionError, match="'group' is for streaming reads"):
        made.reader(made.schema())
    with pytest.raises(NotSharedError, match="postgresql"):
        HeadraceSource({"catalog": catalog, "group": "report"}, "spark://far:7077")


def test_a_name_that_a_reader_has_is_refused(hr: headrace.sync.Headrace, catalog: str) -> None:
    with (
        hr.reader_groups.get("report").reader("r1"),
        pytest.raises(ReaderBusyError, match="r1"),
    ):
        HeadraceSource({"catalog": catalog, "group": "report", "reader": "r1"})


HERE = GroupPlace(7, "report")
BATCH = {"id": "b1", "spans": {"orders": {"id": 1, "segments": {"0": [[0, 5]]}}}}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"catalog": "c", "streams": {}}, "not for a group"),
        ({"catalog": "x", "group": {"id": 7, "name": "report"}}, "another catalog"),
        ({"catalog": "c", "group": {"id": 7, "name": "other"}}, "belongs to reader group 'other'"),
        ({"catalog": "c", "group": {"id": 6, "name": "report"}}, "made anew"),
        ({"catalog": "c", "group": 5}, "does not hold batches"),
    ],
)
def test_checkpoints_of_others_are_refused(data: dict[str, object], said: str) -> None:
    with pytest.raises(ForeignCheckpointError, match=said):
        group_offsets.parse(data, "c", HERE)


def test_an_offset_is_the_same_text_after_it_was_stored() -> None:
    data = {"batch": BATCH, "catalog": "c", "group": {"id": 7, "name": "report"}, "line": "l"}
    found = group_offsets.parse(data, "c", HERE)
    assert json.dumps(found.to_json()) == json.dumps(data)
    assert found.plan is not None
    assert str(found.plan.spans[0].segment) == "orders/0"


def test_the_lag_of_a_query_is_what_it_has_still_to_plan() -> None:
    end = {"batch": BATCH, "catalog": "c", "group": {"id": 7, "name": "report"}, "line": "l"}
    behind = {"orders": {"0": 3, "1": 5}}
    latest = {"behind": behind, "catalog": "c", "group": {"id": 7, "name": "report"}}
    lag = lag_of("q", None, 1, [(json.dumps(end), json.dumps(latest))])
    assert lag is not None
    assert (lag.events, lag.behind_max) == (8, 5)
