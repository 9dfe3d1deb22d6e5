"""A micro-batch is whole epochs: limits, starts, repeats, rows taken back, splits. No JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.catalog.streams import Epochs, StreamConfig
from headrace.epochs.runtime.progress_log import ProgressLog
from headrace.epochs.runtime.subscriptions import listed
from headrace.errors import (
    CatalogUnavailableError,
    DataLossError,
    EpochsAbortedError,
    EpochSubscriptionError,
    ForeignCheckpointError,
    HeadraceError,
    HistoryGoneError,
    InvalidOptionError,
    InvalidSchemaError,
    NoEpochsError,
    TimeShapeError,
)
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark.columns import default_schema
from headrace.spark.epochs import planner, walk
from headrace.spark.listener import lag_of
from tests.epochs.runtime.writer import Writer
from tests.spark.engine import Engine, batch_rows, rows_of, source, stream_reader


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every question; news of another connection come a moment later."""
    monkeypatch.setattr(planner, "LOOK_S", 0.0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(tmp_path / "data")
    yield log
    log.catalog.close()


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"catalog": tmp_path / "data", "subscribe": "days", "epochs": "whole"}


def create(log: Log, name: str = "days", length: int = 0, segments: int = 3) -> Writer:
    config = StreamConfig(subjects=(f"{name}.>",), epochs=Epochs(length=length))
    log.create_stream(name, config, segments=segments)
    return Writer(log, name)


def days(writer: Writer, first: int, end: int, rows: int = 4) -> None:
    for day in range(first, end):
        writer.publish("eu", [(day, b"%d.%d" % (day, n)) for n in range(rows)], advance_to=day + 1)


def told(rows: list[dict[str, Any]]) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for row in rows:
        time = row["epoch"][0] if len(row["epoch"]) == 1 else tuple(row["epoch"])
        found[time] = found.get(time, 0) + 1
    return dict(sorted(found.items()))


def test_a_batch_is_whole_epochs_and_what_is_open_waits(log: Log, options: Any) -> None:
    writer = create(log)
    days(writer, 0, 3)
    writer.publish("eu", [(3, b"half"), (7, b"early")])
    engine = Engine(options | {"startingFrontier": "earliest"})
    assert told(engine.run()) == {0: 4, 1: 4, 2: 4}
    assert not engine.plan()
    writer.publish("eu", [(3, b"rest")], advance_to=4)
    assert told(engine.run()) == {3: 2}
    writer.publish("eu", advance_to=6)
    assert engine.plan(), "the frontier moved, and a batch without rows tells it"
    assert engine.execute() == []
    writer.close("eu")
    assert told(engine.run()) == {7: 1}
    assert json.loads(engine.log[-1])["epochs"]["frontier"] == ""
    assert not engine.plan()


@pytest.mark.parametrize(
    ("limit", "batches"),
    [
        ({"maxEpochsPerTrigger": 2}, [{0: 4, 1: 4}, {2: 4, 3: 4}, {4: 4}]),
        ({"maxOffsetsPerTrigger": 9}, [{0: 4, 1: 4}, {2: 4, 3: 4}, {4: 4}]),
        ({"maxOffsetsPerTrigger": 1}, [{0: 4}, {1: 4}, {2: 4}, {3: 4}, {4: 4}]),
        ({"maxBytesPerTrigger": 1}, [{0: 4}, {1: 4}, {2: 4}, {3: 4}, {4: 4}]),
    ],
)
def test_a_limit_cuts_no_epoch_and_stops_no_query(
    log: Log, options: Any, limit: dict[str, int], batches: list[dict[int, int]]
) -> None:
    days(create(log), 0, 5)
    engine = Engine(options | {"startingFrontier": 0} | limit)
    engine.run()
    assert [told(batch) for batch in engine.batches if batch] == batches


def test_a_batch_is_repeated_with_the_very_same_rows(log: Log, options: Any) -> None:
    writer = create(log)
    days(writer, 0, 6)
    engine = Engine(options | {"startingFrontier": "open", "maxEpochsPerTrigger": 1})
    days(writer, 6, 9)
    for _ in range(3):
        assert engine.plan()
        days(writer, writer.state.lower[0], writer.state.lower[0] + 2)  # type: ignore[arg-type,operator]
        first = engine.execute()
        engine.committed -= 1
        engine.start()  # again from the checkpoint, by another process
        assert engine.batches[-1] == first
    assert [told(batch) for batch in engine.batches[::2]] == [{6: 4}, {7: 4}, {8: 4}]


def test_rows_that_were_taken_back_are_in_no_batch(log: Log, options: Any) -> None:
    writer = create(log, segments=1)
    writer.publish("eu", [(n % 2 + 1, b"%d" % n) for n in range(6)], advance_to=2)
    writer.publish("eu", [(2, b"again")], take_back=True)
    writer.publish("eu", advance_to=3)
    engine = Engine(options | {"startingFrontier": "earliest"})
    assert [row["value"] for row in engine.run()] == [b"0", b"2", b"4", b"again"]


def test_an_epoch_is_whole_across_a_split_and_a_half_compacted_one(log: Log, options: Any) -> None:
    writer = create(log, segments=1)
    for first in range(0, 50, 10):
        writer.publish("eu", [(5, b"%d" % n) for n in range(first, first + 10)])
    log.split("days", 0, 2)
    writer.publish("eu", [(5, b"%d" % n) for n in range(50, 80)])
    assert log.compact("days", CompactionPolicy(min_batches=2, min_age_s=0)).files
    writer.publish("eu", [(5, b"%d" % n) for n in range(80, 100)], advance_to=6)
    engine = Engine(options | {"startingFrontier": "earliest"})
    rows = engine.run()
    assert sorted(int(row["value"]) for row in rows) == list(range(100))
    assert {row["segment"] for row in rows} == {0, 1, 2}
    assert len(engine.batches) == 1


def test_available_now_ends_at_the_frontier_of_its_start(log: Log, options: Any) -> None:
    writer = create(log)
    days(writer, 0, 4)
    writer.publish("eu", [(4, b"a")])
    engine = Engine(options | {"startingFrontier": "earliest", "maxEpochsPerTrigger": 3})
    engine.start(available_now=True)
    writer.publish("eu", [(4, b"b"), (5, b"c")], advance_to=9)
    assert told(engine.run()) == dict.fromkeys(range(4), 4)
    engine.start()
    assert told(engine.run()) == {4: 2, 5: 1}


def test_pairs_are_cut_between_epochs_in_an_order_that_respects_times(
    log: Log, options: Any
) -> None:
    writer = create(log, length=2)
    times = [(a, b) for a in range(3) for b in range(3)]
    writer.publish("eu", [(time, b"%d%d" % time) for time in times], advance_to=((0, 3), (3, 0)))
    engine = Engine(options | {"startingFrontier": "0,0", "maxEpochsPerTrigger": 2})
    engine.run()
    given = [time for batch in engine.batches for time in told(batch)]
    assert given == times
    again = batch_rows(options | {"startingFrontier": "0,2;1,1", "endingFrontier": "0,3;2,0"})
    assert list(told(again)) == [(0, 2), (1, 1), (1, 2)]


def test_a_start_is_now_open_earliest_or_a_frontier(log: Log, options: Any) -> None:
    writer = create(log)
    days(writer, 0, 2)
    writer.publish("eu", [(2, b"begun"), (4, b"begun")])
    found = {}
    engines = {
        start: Engine(options | {"startingFrontier": start})
        for start in ("earliest", "open", "now", "1")
    }
    engines["default"] = Engine(options)
    writer.publish("eu", [(2, b"x"), (3, b"x"), (4, b"x"), (5, b"x")], advance_to=6)
    for start, engine in engines.items():
        found[start] = sorted(told(engine.run()))
    assert found == {
        "earliest": [0, 1, 2, 3, 4, 5],
        "open": [2, 3, 4, 5],
        "now": [5],
        "1": [1, 2, 3, 4, 5],
        "default": [2, 3, 4, 5],
    }


def test_a_batch_read_is_as_of_a_frontier(log: Log, options: Any) -> None:
    writer = create(log)
    days(writer, 0, 4)
    writer.publish("eu", [(4, b"open")])
    assert told(batch_rows(options)) == dict.fromkeys(range(4), 4)
    some = batch_rows(options | {"startingFrontier": 1, "endingFrontier": 3})
    assert told(some) == {1: 4, 2: 4}
    with pytest.raises(InvalidOptionError, match="not complete yet, the frontier is 4"):
        batch_rows(options | {"endingFrontier": 5})
    shown = batch_rows(
        options | {"includeFrontier": "true"}, default_schema(headers=False, frontier=True)
    )
    assert {row["frontier"] for row in shown} == {"4"}


def test_several_streams_are_merged(log: Log, options: Any) -> None:
    first, second = create(log), create(log, "pays")
    days(first, 0, 5)
    days(second, 0, 2)
    engine = Engine(options | {"subscribe": "days,pays", "startingFrontier": "earliest"})
    rows = engine.run()
    assert told(rows) == {0: 8, 1: 8}
    assert {row["topic"] for row in rows} == {"days", "pays"}
    days(second, 2, 4)
    assert told(engine.run()) == {2: 8, 3: 8}


def test_an_aborted_stream_fails_the_query_after_its_last_whole_epoch(
    log: Log, options: Any
) -> None:
    writer = create(log)
    days(writer, 0, 2)
    writer.abort("eu", "disk on fire")
    engine = Engine(options | {"startingFrontier": "earliest"})
    assert engine.plan()
    assert told(engine.execute()) == {0: 4, 1: 4}
    with pytest.raises(EpochsAbortedError, match="disk on fire"):
        engine.plan()


def test_trimmed_epochs_stop_the_query_or_are_left_out(log: Log, options: Any) -> None:
    writer = create(log, segments=1)
    days(writer, 0, 3)
    engine = Engine(options | {"startingFrontier": "earliest", "maxEpochsPerTrigger": 1})
    assert engine.plan()
    engine.execute()
    log.trim("days", {0: 12})
    engine.start()
    with pytest.raises(DataLossError, match=r"whole are epochs from .*3.* on; set failOnDataLoss"):
        engine.plan()
    with pytest.raises(HistoryGoneError):
        Engine(options | {"startingFrontier": 0})
    loose = Engine(options | {"startingFrontier": 0, "failOnDataLoss": "false"})
    days(writer, 3, 5)
    assert told(loose.run()) == {3: 4, 4: 4}


def test_a_subscription_follows_the_checkpoint(log: Log, options: Any) -> None:
    writer = create(log)
    days(writer, 0, 3)
    named = options | {"subscriptionName": "report", "startingFrontier": "1"}
    engine = Engine(named)
    (info,) = listed(log.catalog)
    assert (info.name, info.frontier, info.mode) == ("report", (1,), "spark")
    engine.run()
    (info,) = listed(log.catalog)
    assert info.frontier == (3,)
    engine.start()
    assert listed(log.catalog)[0].frontier == (3,)
    # A new checkpoint without a start goes on where the last one was.
    again = Engine({name: value for name, value in named.items() if name != "startingFrontier"})
    days(writer, 3, 4)
    assert told(again.run()) == {3: 4}
    create(log, "pays")
    with pytest.raises(EpochSubscriptionError, match="forget"):
        Engine(named | {"subscribe": "pays"})


def test_a_query_that_goes_on_from_its_checkpoint_moves_its_subscription(
    log: Log, options: Any
) -> None:
    writer = create(log)
    days(writer, 0, 2)
    first = Engine(options | {"subscriptionName": "report", "startingFrontier": "earliest"})
    first.run()
    assert listed(log.catalog)[0].frontier == (2,)
    days(writer, 2, 4)
    for name in ("report", "other"):  # one that the query was given later begins where it is
        # Spark does not ask a query with a checkpoint where to begin.
        reader = stream_reader(options | {"subscriptionName": name})
        place = json.loads(first.log[-1])
        for _ in range(2):
            place = reader.latestOffset(place, reader.getDefaultReadLimit())
        found = {info.name: info.frontier for info in listed(log.catalog)}
        assert found[name] == (4,)


def test_a_plan_that_fails_loses_no_epoch(
    log: Log, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = create(log)
    days(writer, 0, 2)
    engine = Engine(options | {"startingFrontier": "earliest", "maxEpochsPerTrigger": 1})
    engine.plan()
    engine.execute()  # the second epoch waits in the walk
    days(writer, 2, 4)
    scan = ProgressLog.scan

    def failing(self: ProgressLog, start: int, end: int) -> Any:
        lines = scan(self, start, end)
        yield next(lines)
        raise CatalogUnavailableError("not now")

    reader, start = engine.reader, json.loads(engine.log[-1])
    with monkeypatch.context() as patch:
        patch.setattr(ProgressLog, "scan", failing)
        with pytest.raises(CatalogUnavailableError):
            reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert told([row for part in parts for row in rows_of(reader.read(part))]) == {
        1: 4, 2: 4, 3: 4
    }  # fmt: skip


def test_planning_looks_at_few_epochs_however_many_a_line_holds(
    log: Log, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "EPOCHS", 15)
    writer = create(log)
    for first in range(0, 300, 10):
        rows = [(day, b"") for day in range(first, first + 10)]
        writer.publish("eu", rows, advance_to=first + 10)
    engine = Engine(options | {"startingFrontier": "earliest", "maxEpochsPerTrigger": 3})
    engine.plan()
    planned = engine.reader._planner
    assert isinstance(planned, planner.EpochPlanner)
    assert planned._walk is not None
    assert len(planned._walk[1].waiting) == 17  # two lines, less what the batch took
    engine.execute()
    engine.run()
    assert told(engine.rows) == dict.fromkeys(range(300), 1)
    everything = Engine(options | {"startingFrontier": "earliest"})
    assert told(everything.run()) == dict.fromkeys(range(300), 1)
    repeated = stream_reader(options)
    ends = (json.loads(everything.initial), json.loads(everything.log[-1]))
    parts = repeated.partitions(*ends)
    assert told([row for part in parts for row in rows_of(repeated.read(part))]) == told(
        everything.rows
    )


def test_the_lag_is_told_in_epochs_and_rows(log: Log, options: Any) -> None:
    days(create(log), 0, 5)
    engine = Engine(options | {"startingFrontier": "earliest", "maxEpochsPerTrigger": 2})
    engine.plan()
    latest = json.dumps(engine.reader.reportLatestOffset())
    found = lag_of("q", None, 0, [(engine.log[-1], latest)])
    assert found is not None
    assert (found.events, found.epochs) == (12, 3)
    engine.run()
    latest = json.dumps(engine.reader.reportLatestOffset())
    found = lag_of("q", None, 0, [(engine.log[-1], latest)])
    assert found is not None
    assert (found.events, found.epochs) == (0, 0)


def test_many_small_commits_share_tasks_and_minpartitions_still_holds(
    log: Log, options: Any
) -> None:
    days(create(log, segments=8), 0, 30)
    engine = Engine(options | {"startingFrontier": "earliest"})
    engine.run()
    assert engine.widths == [1]
    wide = Engine(options | {"startingFrontier": "earliest", "minPartitions": 6})
    assert told(wide.run()) == dict.fromkeys(range(30), 4)
    assert wide.widths[0] >= 6


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epochs": "half"}, "give 'whole'"),
        ({"startingFrontier": "x"}, "no frontier of this stream"),
        ({"startingFrontier": "1,2"}, "no frontier of this stream"),
        ({"startingFrontier": "-1"}, "no frontier of this stream"),
        ({"startingFrontier": "1;2"}, "some are at or after others"),
        ({"maxEpochsPerTrigger": "0"}, "whole number above 0"),
        ({"includeFrontier": "maybe"}, "true or false"),
        ({"startingOffsets": "earliest"}, "use startingFrontier"),
        ({"assign": '{"days": [0]}', "subscribe": None}, "an epoch is whole over all segments"),
        ({"subscribePattern": "d.*", "subscribe": None}, "name the streams"),
        ({"minOffsetsPerTrigger": "4"}, "when it is complete"),
        ({"epochs": None, "startingFrontier": "1"}, "is for reads with epochs=whole"),
        ({"endingFrontier": "1"}, "is for batch reads"),
        ({"subscriptionName": "no/slash"}, "subscriptionName"),
    ],
)
def test_what_makes_no_sense_is_refused(
    log: Log, options: Any, wrong: dict[str, str | None], words: str
) -> None:
    days(create(log), 0, 2)
    given = {name: value for name, value in (options | wrong).items() if value is not None}
    with pytest.raises(HeadraceError, match=words):
        stream_reader(given).initialOffset()
    assert listed(log.catalog) == ()


def test_streams_without_epochs_or_of_other_times_are_refused(log: Log, options: Any) -> None:
    create(log)
    create(log, "pairs", length=2)
    log.create_stream("plain", StreamConfig(subjects=("plain.>",)), segments=1)
    with pytest.raises(NoEpochsError):
        source(options | {"subscribe": "plain"})
    with pytest.raises(TimeShapeError):
        source(options | {"subscribe": "days,pairs"})
    with pytest.raises(InvalidSchemaError, match="includeFrontier"):
        stream_reader(options, default_schema(headers=False, frontier=True))
    with pytest.raises(InvalidOptionError, match="streaming"):
        batch_rows(options | {"maxEpochsPerTrigger": 1})


def test_a_checkpoint_of_another_mode_or_stream_is_refused(log: Log, options: Any) -> None:
    writer = create(log)
    create(log, "pays")
    days(writer, 0, 2)
    engine = Engine(options | {"startingFrontier": "earliest"})
    engine.plan()
    place = json.loads(engine.log[-1])
    plain = {name: value for name, value in options.items() if name != "epochs"}
    rows = stream_reader(plain)
    with pytest.raises(ForeignCheckpointError, match="is of a query with epochs=whole"):
        rows.latestOffset(place, rows.getDefaultReadLimit())
    whole = stream_reader(options)
    limit = whole.getDefaultReadLimit()
    with pytest.raises(ForeignCheckpointError, match="without epochs=whole"):
        whole.latestOffset(rows.initialOffset(), limit)
    with pytest.raises(ForeignCheckpointError, match="reads pays"):
        stream_reader(options | {"subscribe": "pays"}).latestOffset(place, limit)
    with pytest.raises(ForeignCheckpointError, match="another catalog"):
        whole.latestOffset(place | {"catalog": "x"}, limit)
    log.delete_stream("days")
    create(log)
    with pytest.raises(ForeignCheckpointError, match="made anew"):
        stream_reader(options).latestOffset(place, limit)
