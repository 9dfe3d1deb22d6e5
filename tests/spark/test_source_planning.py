"""The source as Spark drives it, on both databases, without a JVM: places, limits, replays."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headrace.catalog import Tx
from headrace.errors import (
    DamagedBatchError,
    DataLossError,
    ForeignCheckpointError,
    HeadraceError,
    InvalidOptionError,
    InvalidPositionError,
    InvalidSchemaError,
    NotSharedError,
    UnknownSegmentError,
    UnknownStreamError,
)
from headrace.log.events import Event
from headrace.log.log import Log, Scaled
from headrace.log.open import open_log
from headrace.log.vacant import drop_vacant
from headrace.spark import connection, planner, planning
from headrace.spark import source as source_module
from headrace.spark.columns import default_schema
from headrace.spark.listener import lag_of
from headrace.spark.planner import Planner
from tests.log.helpers import check_dense, create, event, heads, per_key, table
from tests.scaling import split_while_empty
from tests.spark.engine import Engine, batch_rows, rows_of, shipped, source, stream_reader
from tests.support import close_what_spark_kept, wait_until


@pytest.fixture
def options(catalog_url: str, tmp_path: Path) -> dict[str, Any]:
    return {"catalog": catalog_url, "store": str(tmp_path / "store"), "subscribe": "s"}


@pytest.fixture
def log(options: dict[str, Any]) -> Iterator[Log]:
    opened = open_log(options["catalog"], options["store"])
    yield opened
    opened.catalog.close()
    close_what_spark_kept()


def values(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["value"].decode().rstrip(".")) for row in rows]


def fill(log: Log, count: int = 100, segments: int = 2, **more: Any) -> None:
    create(log, segments=segments)
    log.append("s", table(count, **more))


# -- reading ----------------------------------------------------------------------------


def test_a_batch_reads_every_event_with_its_place(log: Log, options: dict[str, Any]) -> None:
    fill(log, 500, segments=3)
    rows = batch_rows(options)
    check_dense(rows)
    assert sorted(values(rows)) == list(range(500))
    assert {row["topic"] for row in rows} == {"s"}
    assert all(row["partition"] == row["segment"] for row in rows)
    assert list(rows[0]) == default_schema(headers=False).names


def test_headers_epoch_and_other_columns_come_as_they_were_written(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    log.append(
        "s",
        [
            Event(
                subject="s.a.b",
                value=b"v",
                key="k",
                timestamp=at,
                epoch=(3, 1),
                headers={"h": b"x"},
            ),
            event(1),
        ],
    )
    first, second = batch_rows(options | {"includeHeaders": "true"})
    assert (first["subject"], first["value"], first["key"]) == ("s.a.b", b"v", "k")
    assert (first["timestamp"], first["epoch"]) == (at, [3, 1])
    assert first["headers"] == [{"key": "h", "value": b"x"}]
    assert (second["key"], second["epoch"], second["headers"]) == (None, None, None)


def test_a_subject_filter_and_markers_hide_rows_and_keep_offsets(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    log.append("s", [Event(subject=f"s.{name}.x", value=b"1") for name in ("a", "b", "a")])
    log.append_marker("s", 0, b"internal")
    log.append("s", Event(subject="s.a.y", value=b"2"))
    assert [row["offset"] for row in batch_rows(options | {"subject": "s.a.*"})] == [0, 2, 4]


def test_a_schema_prunes_columns(log: Log, options: dict[str, Any]) -> None:
    fill(log, 10)
    schema = default_schema(headers=True)
    pruned = type(schema)([schema["offset"], schema["value"]])
    assert list(batch_rows(options, pruned)[0]) == ["offset", "value"]


def test_unknown_columns_and_wrong_types_are_refused(log: Log, options: dict[str, Any]) -> None:
    fill(log, 1)
    schema = default_schema(headers=False)
    for bad in (type(schema)().add("colour", "string"), type(schema)().add("offset", "string")):
        with pytest.raises(InvalidSchemaError, match="column"):
            source(options).reader(bad)
        with pytest.raises(InvalidSchemaError, match="column"):
            source(options).streamReader(bad)


def test_a_task_of_many_segments_gives_few_batches_in_order(
    log: Log, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 900, segments=30, keys=200)
    reader = stream_reader(options | {"startingOffsets": "earliest"})
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    for most, batches_max in ((4096, 1), (200, 5)):
        monkeypatch.setattr(source_module, "TOGETHER_ROWS", most)
        found = [list(reader.read(shipped(part))) for part in reader.partitions(start, end)]
        assert len(found) <= planning.CORES_MAX
        assert all(len(batches) <= batches_max for batches in found)
        rows = rows_of(batch for batches in found for batch in batches)
        check_dense(rows)
        assert sorted(values(rows)) == list(range(900))


def test_files_and_blobs_are_read_alike(log: Log, options: dict[str, Any]) -> None:
    create(log, segments=2)
    log.append("s", table(3000, value_bytes=1000))
    log.append("s", table(10))
    rows = batch_rows(options | {"minPartitions": 7})
    check_dense(rows)
    assert len(rows) == 3010


def test_several_streams_by_name_and_by_pattern(log: Log, options: dict[str, Any]) -> None:
    for name in ("s", "t", "other"):
        create(log, name)
        log.append(name, table(5, stream=name))
    del options["subscribe"]
    names = {row["topic"] for row in batch_rows(options | {"subscribe": "s, t"})}
    assert names == {"s", "t"}
    engine = Engine(options | {"subscribePattern": "[st]", "startingOffsets": "earliest"})
    assert {row["topic"] for row in engine.run()} == {"s", "t"}


def test_a_stream_that_appears_later_and_matches_is_read_from_its_start(
    log: Log, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "LOOK_S", 0.0)
    del options["subscribe"]
    fill(log, 5)
    engine = Engine(options | {"subscribePattern": "s.*"})
    assert engine.run() == []
    create(log, "s2")
    log.append("s2", table(5, stream="s2"))
    assert values(engine.run()) == list(range(5))


def test_assigned_segments_are_read_alone(log: Log, options: dict[str, Any]) -> None:
    fill(log, 100)
    log.split("s", 0)
    log.append("s", table(50))
    del options["subscribe"]
    engine = Engine(options | {"assign": '{"s": [0]}', "startingOffsets": "earliest"})
    assert {row["segment"] for row in engine.run()} == {0}


# -- starts and ends --------------------------------------------------------------------


def test_starts_and_ends_by_offset_and_by_time(log: Log, options: dict[str, Any]) -> None:
    create(log)
    day = datetime(2026, 1, 1, tzinfo=UTC)
    log.append("s", [event(n, timestamp=day + timedelta(hours=n)) for n in range(10)])
    ms = str(int((day + timedelta(hours=4)).timestamp() * 1000))
    for given, expected in (
        ({"startingOffsets": '{"s": {"0": 7}}'}, range(7, 10)),
        ({"startingOffsets": '{"s": {"0": -2}}', "endingOffsets": '{"s": {"0": 3}}'}, range(3)),
        ({"startingTimestamp": ms}, range(4, 10)),
        ({"startingTimestamp": "2026-01-01T08:30:00Z"}, range(9, 10)),
        ({"endingTimestamp": ms}, range(4)),
        ({"startingTimestamp": "2026-01-01T02:00:00", "endingTimestamp": ms}, range(2, 4)),
    ):
        assert values(batch_rows(options | given)) == list(expected), given
    engine = Engine(options | {"startingTimestamp": ms})
    assert values(engine.run()) == list(range(4, 10))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"subscribe": "nobody"}, UnknownStreamError),
        ({"colour": "red"}, InvalidOptionError),
        ({"subscribePattern": "s"}, InvalidOptionError),
        ({"startingOffsets": "sometime"}, InvalidOptionError),
        ({"startingOffsets": '{"s": {"0": 5}}', "startingTimestamp": "5"}, InvalidOptionError),
        ({"startingOffsets": '{"s": {"0": 999}}'}, InvalidPositionError),
        ({"startingOffsets": '{"s": {"0": -7}}'}, InvalidPositionError),
        ({"startingOffsets": '{"s": {"9": 0}}'}, UnknownSegmentError),
        ({"startingOffsets": '{"s": {"0": 0}}'}, InvalidOptionError),
        ({"startingOffsets": '{"t": {"0": 0}}'}, InvalidOptionError),
        ({"endingOffsets": '{"s": {"0": 999}}'}, InvalidPositionError),
        ({"startingTimestamp": "yesterday"}, InvalidOptionError),
        ({"startingOffsetsByTimestamp": '{"s": {"0": 1}}'}, InvalidOptionError),
        ({"startingOffsetsByTimestamp": '{"s": {"0": "soon", "1": 1}}'}, InvalidOptionError),
        ({"startingOffsetsByTimestamp": '{"s": {"9": 1}}'}, UnknownSegmentError),
        ({"startingOffsetsByTimestamp": "7"}, InvalidOptionError),
        ({"startingTimestamp": "5", "startingOffsetsByTimestamp": "{}"}, InvalidOptionError),
        ({"maxRecordsPerPartition": "0"}, InvalidOptionError),
        ({"maxOffsetsPerTrigger": "0"}, InvalidOptionError),
        ({"maxBytesPerTrigger": "many"}, InvalidOptionError),
        ({"maxTriggerDelay": "soon"}, InvalidOptionError),
        ({"stallAfter": "10m"}, InvalidOptionError),
        ({"failOnDataLoss": "maybe"}, InvalidOptionError),
        ({"subject": "a..b"}, HeadraceError),
        ({"stream": "s"}, InvalidOptionError),
        ({"catalog": "/nowhere/at/all"}, HeadraceError),
    ],
)
def test_bad_options_are_refused_before_there_is_a_query(
    log: Log, options: dict[str, Any], given: dict[str, str], error: type[HeadraceError]
) -> None:
    fill(log)
    with pytest.raises(error):
        source(options | given)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"kafka.bootstrap.servers": "host:9092"}, "'catalog'"),
        ({"kafka.group.id": "g"}, "'group'"),
        ({"kafka.security.protocol": "SSL"}, "'store'"),
        ({"topic": "s"}, "'subscribe'"),
        ({"startingVersion": "3"}, "'startingOffsets'"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "leave it out"),
    ],
)
def test_an_option_of_another_system_is_answered_with_ours(
    log: Log, options: dict[str, Any], given: dict[str, str], ours: str
) -> None:
    fill(log)
    with pytest.raises(InvalidOptionError, match=ours):
        source(options | given)


def test_a_place_by_a_time_for_each_segment(log: Log, options: dict[str, Any]) -> None:
    create(log, segments=2)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for hour in range(4):
        log.append(
            "s",
            [event(n, key=f"k{n}", timestamp=begin + timedelta(hours=hour)) for n in range(20)],
        )
    ms = [int((begin + timedelta(hours=hour)).timestamp() * 1000) for hour in range(5)]

    def hours(**given: str) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for row in batch_rows(options | given):
            found.setdefault(row["segment"], set()).add(row["timestamp"].hour)
        return found

    start = json.dumps({"s": {"0": ms[1], "1": ms[3]}})
    assert hours(startingOffsetsByTimestamp=start) == {0: {1, 2, 3}, 1: {3}}
    end = json.dumps({"s": {"0": ms[1], "1": ms[4]}})
    assert hours(endingOffsetsByTimestamp=end) == {0: {0}, 1: {0, 1, 2, 3}}
    engine = Engine(options | {"startingOffsetsByTimestamp": start})
    assert {row["timestamp"].hour for row in engine.run() if row["segment"] == 1} == {3}


def test_no_task_takes_more_records_than_it_may(log: Log, options: dict[str, Any]) -> None:
    fill(log, 1000, segments=3)
    given = options | {"maxRecordsPerPartition": 100}
    reader = source(given).reader(default_schema(headers=False))
    sizes = [len(rows_of(reader.read(shipped(part)))) for part in reader.partitions()]
    assert sum(sizes) == 1000
    assert max(sizes) <= 100
    engine = Engine(given | {"startingOffsets": "earliest"})
    assert len(engine.run()) == 1000
    assert engine.widths[0] >= 10


def test_options_of_the_other_kind_of_read_are_refused(log: Log, options: dict[str, Any]) -> None:
    fill(log)
    schema = default_schema(headers=False)
    with pytest.raises(InvalidOptionError, match="maxOffsetsPerTrigger"):
        source(options | {"maxOffsetsPerTrigger": 5}).reader(schema)
    with pytest.raises(InvalidOptionError, match="endingOffsets"):
        source(options | {"endingOffsets": "latest"}).streamReader(schema)
    with pytest.raises(InvalidOptionError, match="nothing"):
        source(options | {"startingOffsets": "latest"}).reader(schema)
    with pytest.raises(InvalidOptionError, match="which stream"):
        source({"catalog": options["catalog"]}).schema()


# -- traps ------------------------------------------------------------------------------


def test_trap_1_a_replayed_first_batch_with_latest_skips_nothing(
    log: Log, options: dict[str, Any]
) -> None:
    fill(log, 20)
    engine = Engine(options)
    log.append("s", table(30))
    assert engine.plan()
    # The driver dies before the batch is done, and more arrives before it is back.
    log.append("s", table(50))
    engine.start()
    assert len(engine.rows) == 30
    engine.run()
    check_dense(engine.rows, {0: min_of(engine, 0), 1: min_of(engine, 1)})
    assert len(engine.rows) == 80


def test_trap_1_an_empty_first_batch_keeps_the_start_too(log: Log, options: dict[str, Any]) -> None:
    fill(log, 20)
    engine = Engine(options)
    assert engine.plan()
    log.append("s", table(30))
    engine.start()
    assert engine.rows == []
    assert len(engine.run()) == 30


def min_of(engine: Engine, segment: int) -> int:
    return min(int(row["offset"]) for row in engine.rows if row["segment"] == segment)


def test_trap_2_and_3_nothing_depends_on_commit_or_stop(log: Log, options: dict[str, Any]) -> None:
    """Neither is called here; a reader that was left behind does not disturb the next."""
    fill(log, 20)
    engine = Engine(options | {"startingOffsets": "earliest"})
    engine.run()
    engine.start()
    log.append("s", table(5))
    assert len(engine.run()) == 5


def test_trap_4_places_are_text_with_sorted_keys(log: Log, options: dict[str, Any]) -> None:
    fill(log, 200, segments=12)
    engine = Engine(options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 50})
    engine.run()
    for text in engine.log:
        segments = list(json.loads(text)["streams"]["s"]["segments"])
        assert segments == sorted(segments, key=int)


def test_trap_5_batches_have_the_very_schema_that_spark_was_told(
    log: Log, options: dict[str, Any]
) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    create(log)
    log.append("s", [event(1, key="k", headers={"a": b"b"}, epoch=(1,)), event(2)])
    log.append("s", event(3))
    schema = default_schema(headers=True)
    reader = source(options).reader(schema)
    for part in reader.partitions():
        for batch in reader.read(part):
            assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))


def test_trap_6_an_idle_query_does_not_look_at_the_catalog(
    log: Log, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 10)
    monkeypatch.setattr(planner, "LOOK_S", 3600.0)
    engine = Engine(options)
    engine.run()
    looks: list[int] = []
    look = Planner.streams

    def counted(planner: Planner, **options: Any) -> Any:
        looks.append(1)
        return look(planner, **options)

    monkeypatch.setattr(Planner, "streams", counted)
    for _ in range(100):
        assert not engine.plan()
    assert len(looks) <= 1  # news of what was filled in may come late
    monkeypatch.undo()


def test_trap_6_an_idle_query_hears_of_news_at_once(
    log: Log, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support import wait_until

    monkeypatch.setattr(planner, "LOOK_S", 3600.0)
    fill(log, 10)
    engine = Engine(options)
    engine.run()
    log.append("s", table(7))
    wait_until(engine.plan, "news of the append")
    assert len(engine.execute()) == 7


def test_trap_12_a_worker_opens_a_log_once(log: Log, options: dict[str, Any]) -> None:
    fill(log, 10)
    reader = stream_reader(options)
    again = pickle.loads(pickle.dumps(reader))
    assert again._options.connection.log() is reader._options.connection.log()


# -- limits -----------------------------------------------------------------------------


def test_rows_per_trigger_are_bounded_and_all_are_read(log: Log, options: dict[str, Any]) -> None:
    fill(log, 1000, segments=3)
    engine = Engine(options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 64})
    engine.run()
    assert max(len(rows) for rows in engine.batches) == 64
    check_dense(engine.rows)
    assert sorted(values(engine.rows)) == list(range(1000))


def test_bytes_per_trigger_are_bounded_and_all_are_read(log: Log, options: dict[str, Any]) -> None:
    create(log, segments=2)
    for _ in range(40):
        log.append("s", table(50, value_bytes=1000))
    log.append("s", table(3000, value_bytes=1000))
    engine = Engine(options | {"startingOffsets": "earliest", "maxBytesPerTrigger": 200_000})
    engine.run()
    inline = [rows for rows in engine.batches if rows and rows[-1]["offset"] < 900]
    assert max(sum(len(row["value"]) for row in rows) for rows in inline) < 220_000
    assert len(engine.batches) > 10
    check_dense(engine.rows)
    assert len(engine.rows) == 5000


def test_an_event_larger_than_the_limit_is_read_all_the_same(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    log.append("s", table(3, value_bytes=5000))
    engine = Engine(options | {"startingOffsets": "earliest", "maxBytesPerTrigger": 10})
    assert len(engine.run()) == 3


def test_a_trigger_waits_for_enough_rows_and_not_for_ever(
    log: Log, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "LOOK_S", 0.0)
    fill(log, 10)
    given = options | {"minOffsetsPerTrigger": 100, "maxTriggerDelay": "1m"}
    engine = Engine(given)
    now = [0.0]
    plan = engine.reader._plan()
    assert isinstance(plan, planner.Planner)
    plan._clock = lambda: now[0]
    plan._triggered = 0.0
    engine.plan()
    log.append("s", table(50))
    now[0] = 59.0
    assert not engine.plan()
    now[0] = 61.0
    assert engine.plan()
    assert len(engine.execute()) == 50
    log.append("s", table(120))
    assert engine.plan()
    assert len(engine.execute()) == 120


def test_available_now_ends_at_what_there_was_and_keeps_limits(
    log: Log, options: dict[str, Any]
) -> None:
    fill(log, 200)
    log.split("s", 0)
    log.append("s", table(100))
    engine = Engine(options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 90})
    engine.start(available_now=True)
    before = sum(heads(log).values())
    log.append("s", table(1000))
    log.split("s", 1)
    engine.run()
    assert len(engine.rows) == before == 300
    assert max(map(len, engine.batches)) <= 90
    engine.start(available_now=True)
    engine.run()
    assert len(engine.rows) == 1300
    check_dense(engine.rows)


def test_markers_count_neither_for_limits_nor_for_the_lag(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    for number in range(30):
        log.append("s", event(number))
        for _ in range(number % 3):
            log.append_marker("s", 0, b"internal")
    log.split("s", 0)
    engine = Engine(options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 7})
    behind = []
    while engine.plan():
        engine.execute()
        end, latest = engine.log[-1], json.dumps(engine.reader.reportLatestOffset())
        lag = lag_of("q", None, 0, [(end, latest)])
        assert lag is not None
        behind.append(lag.events)
    # The markers at the end go along with the last event, and the successors are reached.
    assert [len(rows) for rows in engine.batches] == [7, 7, 7, 7, 2]
    assert behind == [23, 16, 9, 2, 0]
    log.append("s", event(30))
    wait_until(engine.plan, "the event behind the split")
    assert values(engine.execute()) == [30]


def test_a_batch_waits_for_events_and_not_for_markers(log: Log, options: dict[str, Any]) -> None:
    create(log)
    log.append("s", event(0))
    for _ in range(9):
        log.append_marker("s", 0, b"internal")
    waiting = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 5, "maxTriggerDelay": "1h"}
    reader = stream_reader(options | waiting)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(1 << 62)) == start


def test_read_all_ignores_limits(log: Log, options: dict[str, Any]) -> None:
    fill(log, 100)
    engine = Engine(options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 10})
    assert engine.reader.getDefaultReadLimit() == ReadMaxRows(10)
    engine.plan(ReadAllAvailable())
    assert len(engine.execute()) == 100


def test_more_partitions_on_request(log: Log, options: dict[str, Any]) -> None:
    fill(log, 100)
    engine = Engine(options | {"startingOffsets": "earliest", "minPartitions": 10})
    engine.run()
    check_dense(engine.rows)
    assert engine.widths[0] >= 10


@pytest.mark.parametrize(
    "limits",
    [
        {"maxOffsetsPerTrigger": 20},
        {"maxBytesPerTrigger": 1000},
        {"maxOffsetsPerTrigger": 20, "maxBytesPerTrigger": 1000},
    ],
)
def test_planning_costs_the_same_with_a_long_backlog(
    log: Log, options: dict[str, Any], limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log)
    counted: list[int] = []
    kind = log.catalog.read(type)

    def counting(real: Any) -> Any:
        def count(self: Tx, *args: Any) -> Any:
            counted.append(len(args) if real.__name__ == "together" else 1)
            return real(self, *args)

        return count

    for name in ("row", "rows", "iterate", "together"):
        monkeypatch.setattr(kind, name, counting(getattr(kind, name)))

    def cost() -> int:
        reader = stream_reader(options | {"startingOffsets": "earliest"} | limits)
        start = reader.initialOffset()
        counted.clear()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        reader.partitions(start, end)
        return sum(counted)

    for _ in range(10):
        log.append("s", table(10))
    few = cost()
    for _ in range(200):
        log.append("s", table(10))
    assert few > 0
    assert cost() == few, "as many questions to the catalog, however long the backlog"


# -- splits and merges ------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 8])
def test_splits_and_merges_lose_nothing_and_keep_the_order_of_keys(
    log: Log, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    """With one core all spans of a batch share one task."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    create(log, segments=2)
    engine = Engine(options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 37})
    written = 0

    def write(count: int) -> None:
        nonlocal written
        keys = 13
        log.append("s", [event(written + n, key=f"k{(written + n) % keys}") for n in range(count)])
        written += count

    write(60)
    changes: tuple[Callable[[], Scaled], ...] = (
        lambda: log.split("s", 0),
        lambda: log.merge("s", [2, 3]),
        lambda: log.split("s", 4, 3),
        lambda: log.split("s", 5),
        lambda: log.merge("s", [6, 7]),
    )
    for change in changes:
        engine.plan()
        engine.execute()
        change()
        write(60)
        engine.plan()
        engine.start()
    engine.run()
    check_dense(engine.rows)
    found = per_key(engine.rows)
    assert sum(map(len, found.values())) == written
    for key, its in found.items():
        assert list(map(int, its)) == sorted(map(int, its)), key
    if cores == 1:
        assert set(engine.widths) <= {0, 1}
        assert max(len({row["segment"] for row in rows}) for rows in engine.batches) > 2
    for rows in engine.batches:
        segments = {row["segment"] for row in rows}
        for number in segments:
            found_segment = log.stream("s").segment(number)
            assert found_segment is not None
            assert not segments & set(found_segment.predecessors)


def test_small_spans_share_tasks_in_order_and_more_are_made_on_request(
    log: Log, options: dict[str, Any]
) -> None:
    create(log, segments=40)
    log.append("s", [event(n, key=f"k{n}") for n in range(400)])
    made = source(options | {"startingOffsets": "earliest"})
    reader = made.reader(made.schema())
    tasks = reader.partitions()
    assert len(tasks) <= planning.CORES_MAX
    rows = [row for part in tasks for row in rows_of(reader.read(shipped(part)))]
    assert len(rows) == 400
    assert [row["segment"] for row in rows] == sorted(row["segment"] for row in rows)
    wide = source(options | {"startingOffsets": "earliest", "minPartitions": 20})
    assert len(wide.reader(wide.schema()).partitions()) >= 20


def test_keys_stay_in_order_over_a_split_of_an_empty_segment(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    expected = split_while_empty(log, "s", "s.x")
    engine = Engine(options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 700})
    engine.run()
    assert values(engine.rows) == expected
    assert len(engine.batches) > 3


def test_a_batch_reads_predecessors_and_successors_together(
    log: Log, options: dict[str, Any]
) -> None:
    fill(log, 100)
    log.split("s", 0)
    log.append("s", table(100))
    rows = batch_rows(options)
    check_dense(rows)
    assert len(rows) == 200


# -- loss, damage and foreign checkpoints -----------------------------------------------


def test_trimmed_events_stop_a_query_that_may_not_lose_any(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    given = options | {"startingOffsets": "earliest"}
    strict, lenient = Engine(given), Engine(given | {"failOnDataLoss": "false"})
    for start in range(0, 50, 10):
        log.append("s", [event(start + n) for n in range(10)])
    log.trim("s", {0: 30})
    with pytest.raises(DataLossError, match="offsets 0 to 29"):
        strict.plan()
    assert values(lenient.run()) == list(range(30, 50))


def test_a_segment_that_is_gone_stops_a_query_that_may_not_lose_any(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    given = options | {"startingOffsets": "earliest"}
    strict, lenient = Engine(given), Engine(given | {"failOnDataLoss": "false"})
    late = Engine(given)
    log.append("s", [event(n) for n in range(10)])
    assert values(strict.run()) == values(lenient.run()) == list(range(10))
    late.plan()
    log.merge("s", log.split("s", 0).opened)
    log.append("s", [event(n) for n in range(10, 20)])
    log.trim("s", {0: 10})
    assert drop_vacant(log.catalog, "s", grace_s=-1) == (0, 1, 2)
    for engine in (strict, lenient):
        engine.start()
    with pytest.raises(DataLossError, match="segment 0"):
        strict.plan()
    assert values(lenient.run()) == list(range(10, 20))
    with pytest.raises(DataLossError, match="segment 0"):
        late.start()  # which reads again what it had planned


def test_events_that_are_trimmed_between_plan_and_read(log: Log, options: dict[str, Any]) -> None:
    create(log)
    given = options | {"startingOffsets": "earliest"}
    strict, lenient = Engine(given), Engine(given | {"failOnDataLoss": "false"})
    for start in range(0, 50, 10):
        log.append("s", [event(start + n) for n in range(10)])
    strict.plan()
    lenient.plan()
    log.trim("s", {0: 30})
    with pytest.raises(DataLossError, match="offsets 0 to 29"):
        strict.execute()
    assert values(lenient.execute()) == list(range(30, 50))


def test_a_damaged_batch_stops_a_query_that_may_not_lose_any(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    for start in range(0, 30, 10):
        log.append("s", [event(start + n) for n in range(10)])
    log.catalog.write(
        lambda tx: tx.execute("UPDATE batches SET checksum = checksum + 1 WHERE start_offset = 10")
    )
    with pytest.raises(DamagedBatchError, match="10 to 19"):
        batch_rows(options)
    left = values(batch_rows(options | {"failOnDataLoss": "false"}))
    assert left == [*range(10), *range(20, 30)]


def test_a_checkpoint_of_another_catalog_is_refused(
    log: Log, options: dict[str, Any], tmp_path: Path
) -> None:
    fill(log, 10)
    create(log, "t")
    engine = Engine(options | {"startingOffsets": "earliest"})
    engine.run()
    place = json.loads(engine.log[-1])
    elsewhere = open_log(tmp_path / "elsewhere")
    create(elsewhere)
    elsewhere.catalog.close()
    moved = {"catalog": str(tmp_path / "elsewhere"), "subscribe": "s"}
    with pytest.raises(ForeignCheckpointError, match="another catalog"):
        stream_reader(moved).latestOffset(place, ReadAllAvailable())


@pytest.mark.parametrize("which", [{"subscribe": "s,t"}, {"subscribePattern": "[st]"}])
def test_a_deleted_stream_ends_a_query_or_is_gone_without(
    log: Log,
    options: dict[str, Any],
    which: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(log, 10)
    create(log, "t")
    del options["subscribe"]
    given = options | which | {"startingOffsets": "earliest"}
    strict, lenient = Engine(given), Engine(given | {"failOnDataLoss": "false"})
    assert len(strict.run()) == len(lenient.run()) == 10
    log.append("t", [event(n, stream="t") for n in range(5)])
    wait_until(lenient.plan, "the news")  # planned, and the stream is gone before it is read
    log.delete_stream("s")
    with pytest.raises(DataLossError, match=r"stream 's' is gone.*failOnDataLoss.*state"):
        strict.plan()
    assert values(lenient.execute()) == [0, 1, 2, 3, 4]
    log.append("t", event(5, stream="t"))
    wait_until(lenient.plan, "the news")
    assert values(lenient.execute()) == [5]
    lenient.start()  # the query is stopped and started again
    log.append("t", event(6, stream="t"))
    assert values(lenient.run()) == [6]
    assert set(json.loads(lenient.log[-1])["streams"]) == {"t"}
    assert sum("stream 's' is gone" in record.message for record in caplog.records) == 1
    fill(log, 3)
    wait_until(lenient.plan, "the new stream")
    assert sorted(values(lenient.execute())) == [0, 1, 2], "a stream of that name, made anew"


def test_a_stream_taken_out_of_what_is_read_is_a_loss(log: Log, options: dict[str, Any]) -> None:
    fill(log, 10)
    create(log, "t")
    engine = Engine(options | {"subscribe": "s,t", "startingOffsets": "earliest"})
    engine.run()
    place = json.loads(engine.log[-1])
    log.append("t", event(0, stream="t"))
    fewer = options | {"subscribe": "t"}
    with pytest.raises(DataLossError, match="stream 's' is gone"):
        stream_reader(fewer).latestOffset(place, ReadAllAvailable())
    lenient = stream_reader(fewer | {"failOnDataLoss": "false"})
    assert set(lenient.latestOffset(place, ReadAllAvailable())["streams"]) == {"t"}


def test_a_stream_made_anew_is_never_read_at_old_offsets(log: Log, options: dict[str, Any]) -> None:
    fill(log, 10)
    given = options | {"startingOffsets": "earliest"}
    engine, lenient = Engine(given), Engine(given | {"failOnDataLoss": "false"})
    engine.run()
    lenient.run()
    place = json.loads(engine.log[-1])
    log.delete_stream("s")
    with pytest.raises(UnknownStreamError):
        stream_reader(options)
    assert not lenient.plan()
    fill(log, 4)
    with pytest.raises(DataLossError, match="made anew"):
        engine.reader.latestOffset(place, ReadAllAvailable())
    with pytest.raises(DataLossError, match="made anew"):
        stream_reader(options).partitions(place, place)
    wait_until(lenient.plan, "the new stream")
    assert sorted(values(lenient.execute())) == [0, 1, 2, 3]


def test_a_stream_that_never_was_is_refused_by_a_batch_and_by_a_query_that_may_lose_nothing(
    log: Log, options: dict[str, Any]
) -> None:
    fill(log, 1)
    for given in (options | {"subscribe": "s,nope"}, options | {"subscribe": "nope"}):
        with pytest.raises(UnknownStreamError, match="nope"):
            stream_reader(given)
        with pytest.raises(UnknownStreamError, match="nope"):
            batch_rows(given | {"failOnDataLoss": "false"})


def test_trimmed_events_are_stepped_over_without_an_empty_batch(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    given = options | {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    engine = Engine(given | {"maxOffsetsPerTrigger": 1000})
    log.append("s", event(0))
    assert values(engine.run()) == [0]
    for count in (59_000, 1000, 1000):
        log.append("s", table(count))
    log.trim("s", {0: 59_001})

    def lag() -> int:
        place = json.dumps(engine.reader.reportLatestOffset())
        found = lag_of("q", None, 0, [(engine.log[-1], place)])
        assert found is not None
        return found.events

    # News comes by itself, a little later; what was trimmed never counts.
    wait_until(lambda: lag() == 2000, "the lag without what was trimmed")
    engine.batches.clear()
    engine.run()
    assert [len(batch) for batch in engine.batches] == [1000] * 2
    assert [row["offset"] for row in engine.rows] == list(range(59_001, 61_001))


def test_a_sealed_segment_that_was_trimmed_as_a_whole_holds_nobody_up(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    given = options | {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    engine = Engine(given | {"maxOffsetsPerTrigger": 5})
    log.append("s", [event(n) for n in range(20)])
    log.split("s", 0, 2)
    log.append("s", [event(20 + n) for n in range(4)])
    log.trim("s", {0: 20})
    engine.run()
    assert sorted(values(engine.rows)) == [20, 21, 22, 23]
    assert all(engine.batches)


def test_a_batch_from_below_the_tail_starts_there_if_it_may(
    log: Log, options: dict[str, Any]
) -> None:
    create(log)
    for start in range(0, 30, 10):
        log.append("s", [event(start + n) for n in range(10)])
    log.trim("s", {0: 20})
    below = options | {"startingOffsets": '{"s": {"0": 5}}'}
    with pytest.raises(InvalidPositionError, match="20 to 30"):
        batch_rows(below)
    assert values(batch_rows(below | {"failOnDataLoss": "false"})) == list(range(20, 30))


def test_a_catalog_older_than_the_checkpoint_is_noticed(log: Log, options: dict[str, Any]) -> None:
    fill(log, 10, segments=1)
    engine = Engine(options | {"startingOffsets": "earliest"})
    engine.run()
    place = json.loads(engine.log[-1])
    place["streams"]["s"]["segments"]["0"] = 11
    with pytest.raises(ForeignCheckpointError, match="older than the checkpoint"):
        engine.reader.latestOffset(place, ReadAllAvailable())


# -- machines ---------------------------------------------------------------------------


def test_a_cluster_needs_a_catalog_and_a_store_that_it_can_reach(
    log: Log, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 1)
    monkeypatch.setenv("HEADRACE_SPARK_MASTER", "spark://far-away:7077")
    with pytest.raises(NotSharedError, match=r"spark://far-away:7077"):
        source(options)
    monkeypatch.setenv("HEADRACE_SPARK_MASTER", "local-cluster[2,1,1024]")
    source(options)


def test_a_task_on_another_machine_says_why_it_cannot_read(
    log: Log, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 1)
    reader = source(options).reader(default_schema(headers=False))
    parts = reader.partitions()
    monkeypatch.setattr(connection, "machine", lambda: "another")
    with pytest.raises(NotSharedError, match="driver's machine"):
        list(reader.read(parts[0]))
