"""Writes to an epoch stream: rows, line, advance and (query, batch) are one commit. No JVM."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.catalog import epochs, leases
from headrace.catalog.streams import Epochs, StreamConfig
from headrace.epochs import operators
from headrace.epochs.runtime.status import explained, status
from headrace.errors import (
    EpochStreamEndedError,
    EpochStreamError,
    HeadraceError,
    LateEventError,
    NoEpochsError,
    ReplayMismatchError,
    SinkPublisherError,
)
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.log.query import Query
from headrace.spark import sink, staging
from headrace.spark.columns import HEADERS
from headrace.spark.sink import Staged, batch_writer, stream_writer
from tests.spark.engine import batch_rows

TYPES: dict[str, DataType] = {
    "subject": StringType(),
    "value": StringType(),
    "day": LongType(),
    "timestamp": TimestampType(),
    "frontier": StringType(),
    "at": ArrayType(LongType()),
    "headers": HEADERS,
}
PLAIN = "subject value"
SCHEMA = f"{PLAIN} day"
Rows = list[tuple[int, str]]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(tmp_path / "data")
    for name, length in (("days", 0), ("pairs", 2)):
        config = StreamConfig(subjects=(f"{name}.>",), epochs=Epochs(length=length))
        log.create_stream(name, config, segments=2)
    for name in ("plain", "dead"):
        log.create_stream(name, StreamConfig(subjects=(f"{name}.>",)), segments=1)
    yield log
    log.catalog.close()


@pytest.fixture
def url(log: Log, tmp_path: Path) -> str:
    return str(tmp_path / "data")


def schema_of(names: str) -> StructType:
    """Columns by name; to parse types takes Spark."""
    return StructType([StructField(name, TYPES[name]) for name in names.split()])


class Writes:
    """A streaming query: stages in tasks, commits on the driver, and can do so again."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, url: str, name: str = "q", **options: str
    ) -> None:
        given = {"catalog": url, "stream": "days", "epochColumn": "day", "frontier": "none"}
        self._patch, self.name = monkeypatch, name
        self.options = {k: v for k, v in (given | options).items() if v}
        self.schema = SCHEMA

    def stage(self, number: int, *tasks: Rows | pa.RecordBatch) -> list[Staged]:
        writer = stream_writer(self.options, schema_of(self.schema), False)
        found = []
        for at, rows in enumerate(tasks):
            self._patch.setattr(sink, "_task", lambda at=at: (at, self.name, "run", number))
            batch = rows if isinstance(rows, pa.RecordBatch) else table(rows)
            message = writer.write(iter([batch]))
            assert isinstance(message, Staged)
            found.append(message)
        return found

    def commit(self, number: int, messages: list[Staged]) -> None:
        writer = stream_writer(self.options, schema_of(self.schema), False)
        writer.commit(messages, number)

    def run(self, number: int, *tasks: Rows | pa.RecordBatch) -> None:
        self.commit(number, self.stage(number, *tasks))


def table(rows: Rows) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "subject": pa.array([f"days.{value}" for _, value in rows]),
            "value": pa.array([value for _, value in rows]),
            "day": pa.array([day for day, _ in rows], pa.int64()),
        }
    )


def whole(url: str, stream: str = "days") -> dict[Any, list[str]]:
    """The complete epochs, as whoever reads them gets them: every row counted against its line."""
    found: dict[Any, list[str]] = {}
    for row in batch_rows({"catalog": url, "subscribe": stream, "epochs": "whole"}):
        time = tuple(row["epoch"]) if len(row["epoch"]) > 1 else row["epoch"][0]
        found.setdefault(time, []).append(row["value"].decode())
    return {time: sorted(values) for time, values in sorted(found.items())}


def test_rows_and_advance_are_one_commit_and_come_once(
    monkeypatch: pytest.MonkeyPatch, log: Log, url: str
) -> None:
    query = Writes(monkeypatch, url, frontier="delay:2")
    query.run(0, [(1, "a"), (2, "b")], [(4, "c"), (1, "d")])
    assert whole(url) == {1: ["a", "d"]}
    found = status(log, "days")
    assert (found.frontier, found.open_rows) == ((2,), 2)
    assert (found.publishers[0].owner, found.publishers[0].state) == ("spark-q", "query")
    assert "belongs to the Spark query spark-q" in explained(found)[0]
    # The driver died between the commit and Spark's own log: the batch comes again.
    again = query.stage(0, [(1, "a"), (2, "b")], [(4, "c"), (1, "d")])
    query.commit(0, again)
    assert whole(url) == {1: ["a", "d"]}
    with pytest.raises(ReplayMismatchError):
        query.run(0, [(1, "a")])
    # Between stage and commit: what was staged is nothing.
    query.stage(1, [(5, "lost")])
    query.run(1, [(5, "e"), (3, "f")])
    assert whole(url) == {1: ["a", "d"], 2: ["b"]}
    assert status(log, "days").frontier == (3,)


def test_every_row_is_told_also_those_in_files_and_after_a_split(
    monkeypatch: pytest.MonkeyPatch, log: Log, url: str
) -> None:
    monkeypatch.setattr(staging, "ROWS_BYTES", 256)
    query = Writes(monkeypatch, url, frontier="batch")
    rows = [(n % 3, f"{n}") for n in range(60)]
    staged = query.stage(0, rows[:30], rows[30:], [(2, "little")])
    assert sum(len(part.files) for message in staged for part in message.parts) > 2
    log.split("days", 0, 2)
    query.commit(0, staged)
    found = whole(url)
    assert {day: len(values) for day, values in found.items()} == {0: 20, 1: 20, 2: 21}
    assert sorted(value for values in found.values() for value in values) == sorted(
        [*(value for _, value in rows), "little"]
    )
    assert status(log, "days").frontier == (3,)


@pytest.mark.parametrize("late", ["fail", "drop", "deadLetter"])
def test_late_rows_fail_are_dropped_or_put_aside(
    monkeypatch: pytest.MonkeyPatch, log: Log, url: str, late: str
) -> None:
    query = Writes(monkeypatch, url, frontier="batch", lateRows=late, deadLetterStream="dead")
    query.run(0, [(5, "a")])
    if late == "fail":
        with pytest.raises(LateEventError, match=r"1 row at epoch 3.*'spark' holds 6.*row 1"):
            query.run(1, [(7, "b"), (3, "old")])
        assert whole(url) == {5: ["a"]}
        return
    query.run(1, [(7, "b"), (3, "old")])
    query.run(1, [(7, "b"), (3, "old")])  # again
    assert whole(url) == {5: ["a"], 7: ["b"]}
    dead = [row for batch in log.read("dead", Query()) for row in batch.to_pylist()]
    assert len(dead) == (late == "deadLetter")
    if dead:
        reasons = {each["key"]: each["value"] for each in dead[0]["headers"]}
        assert b"epoch [3] is late: 'spark' holds 6" in reasons["headrace-reason"]


def test_every_micro_batch_is_an_epoch(monkeypatch: pytest.MonkeyPatch, log: Log, url: str) -> None:
    query = Writes(monkeypatch, url, epochColumn="", epoch="batch", frontier="")
    query.schema = PLAIN
    rows = [table([(0, name)]).select(["subject", "value"]) for name in "abcd"]
    query.run(0, rows[0], rows[1])
    query.run(1, rows[2])
    query.run(1, rows[2])
    query.run(2, rows[3].slice(0, 0))
    query.run(3, rows[3])
    assert whole(url) == {0: ["a", "b"], 1: ["c"], 2: ["d"]}
    assert status(log, "days").frontier == (3,)


def test_a_publisher_belongs_to_its_query_until_it_is_taken_over(
    monkeypatch: pytest.MonkeyPatch, log: Log, url: str
) -> None:
    first = Writes(monkeypatch, url, "first", frontier="delay:1", takeover="true")
    first.run(0, [(3, "done"), (5, "open")])
    second = Writes(monkeypatch, url, "second", frontier="batch")
    with pytest.raises(SinkPublisherError, match="belongs to spark-first; set another publisher"):
        second.run(0, [(6, "x")])
    second.options["takeover"] = "true"
    second.run(0, [(5, "mine")])
    assert whole(url) == {3: ["done"], 5: ["mine"]}, "what the first had left open is taken back"
    with pytest.raises(SinkPublisherError, match="was taken over from this query by spark-second"):
        first.run(1, [(9, "never")])
    second.run(1, [(7, "on")])
    assert whole(url) == {3: ["done"], 5: ["mine"], 7: ["on"]}
    other = Writes(monkeypatch, url, "third", publisher="other", frontier="none")
    other.run(0, [(9, "beside")])
    assert {one.name for one in status(log, "days").publishers} == {"spark", "other"}


def test_a_frontier_comes_from_a_column(
    monkeypatch: pytest.MonkeyPatch, log: Log, url: str
) -> None:
    query = Writes(monkeypatch, url, frontier="column:frontier")
    query.schema = f"{SCHEMA} frontier"

    def told(rows: Rows, texts: list[str]) -> pa.RecordBatch:
        return table(rows).append_column("frontier", pa.array(texts))

    query.run(0, told([(1, "a"), (2, "b")], ["2", "2"]), told([(2, "c")], ["2"]))
    assert whole(url) == {1: ["a"]}
    query.run(1, told([(4, "d")], ["4"]))
    assert whole(url) == {1: ["a"], 2: ["b", "c"]}
    other = Writes(monkeypatch, url, "other", publisher="other", frontier="none")
    other.run(0, [(9, "beside")])
    query.run(2, told([(5, "e")], [""]))
    assert [one.name for one in status(log, "days").publishers] == ["other"]
    lease = epochs.lease_name(log.stream("days").id, "spark")
    assert log.catalog.read(lambda tx: leases.get(tx, lease)) is None
    query.run(2, told([(5, "e")], [""]))  # the very same batch, again
    with pytest.raises(SinkPublisherError, match="was closed, by an empty frontier"):
        query.run(3, told([(9, "f")], ["9"]))
    operators.release(log, "days", "other")
    assert status(log, "days").status == "closed"
    assert whole(url) == {1: ["a"], 2: ["b", "c"], 4: ["d"], 5: ["e"], 9: ["beside"]}
    with pytest.raises(EpochStreamEndedError):
        query.run(3, told([(9, "f")], ["9"]))


def test_timestamps_and_arrays_are_epochs(
    monkeypatch: pytest.MonkeyPatch, log: Log, url: str
) -> None:
    query = Writes(monkeypatch, url, epochColumn="timestamp", epochUnit="day", frontier="batch")
    query.schema = f"{PLAIN} timestamp"
    stamps = [datetime(1970, 1, 3, 5, tzinfo=UTC), datetime(1970, 1, 4, tzinfo=UTC)]
    rows = table([(0, "a"), (0, "b")]).drop_columns(["day"])
    query.run(0, rows.append_column("timestamp", pa.array(stamps, pa.timestamp("us", "UTC"))))
    assert whole(url) == {2: ["a"], 3: ["b"]}
    pairs = Writes(monkeypatch, url, "p", stream="pairs", epochColumn="at", frontier="batch")
    pairs.schema = f"{PLAIN} at"
    batch = pa.record_batch(
        {
            "subject": ["pairs.x", "pairs.y"],
            "value": ["a", "b"],
            "at": pa.array([[0, 1], [1, 0]], pa.list_(pa.int64())),
        }
    )
    pairs.run(0, batch)
    assert whole(url, "pairs") == {(0, 1): ["a"], (1, 0): ["b"]}
    assert status(log, "pairs").frontier == ((0, 2), (1, 1), (2, 0))


def test_a_batch_write_names_an_epoch_and_how_far_it_goes(log: Log, url: str) -> None:
    def write(rows: Rows, **options: str) -> None:
        given = {"catalog": url, "stream": "days"} | options
        by_column = "epochColumn" in options
        batch = table(rows) if by_column else table(rows).select(["subject", "value"])
        schema = schema_of(SCHEMA if by_column else PLAIN)
        writer = batch_writer(given, schema, False)
        writer.commit([writer.write(iter([batch]))] if rows else [])

    write([(0, "a")], epoch="17", advanceTo="18")
    write([(18, "b"), (19, "c")], epochColumn="day", advanceTo="19")
    assert whole(url) == {17: ["a"], 18: ["b"]}
    write([], epoch="19", advanceTo="20")
    assert whole(url) == {17: ["a"], 18: ["b"], 19: ["c"]}
    with pytest.raises(LateEventError):
        write([(0, "late")], epoch="19")
    assert status(log, "days").publishers[0].state == "left"
    for _ in range(2):
        write([(0, "once")], epoch="20", advanceTo="21", producer="job", sequence="1")
    assert whole(url)[20] == ["once"]
    with pytest.raises(HeadraceError, match="epoch=batch is for streaming"):
        write([(0, "x")], epoch="batch")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epoch": "batch"}, "not both"),
        ({"frontier": "slow"}, "give batch, delay:N"),
        ({"frontier": "delay:x"}, "give batch, delay:N"),
        ({"frontier": "column:none"}, "no such column"),
        ({"frontier": "column:headers"}, "it must be an integer"),
        ({"frontier": ""}, "option frontier is missing"),
        ({"lateRows": "keep"}, "fail, drop, deadLetter"),
        ({"lateRows": "deadLetter"}, "needs the option deadLetterStream"),
        ({"epochUnit": "week"}, "is one of microsecond"),
        ({"epochUnit": "day"}, "epochUnit is for timestamps"),
        ({"epochColumn": "no"}, "epochColumn=no: there is no such column"),
        ({"epochColumn": "value"}, "is string; the stream takes an integer"),
        ({"epochColumn": "timestamp"}, "say with epochUnit"),
        ({"takeover": "yes"}, "give true or false"),
        ({"publisher": "a/b"}, "publisher"),
        ({"epochColumn": "", "epoch": "17"}, "are for batch writes"),
        ({"epochColumn": "", "epoch": "x"}, "no frontier of this stream"),
        ({"stream": "pairs", "frontier": "delay:2"}, "counts integers"),
        ({"stream": "pairs"}, "the stream takes array<bigint>"),
        ({"stream": "plain"}, "has no epochs"),
        ({"epochColumn": "", "frontier": ""}, "epochColumn or epoch"),
    ],
)
def test_what_makes_no_sense_is_refused(
    log: Log, url: str, wrong: dict[str, str], words: str
) -> None:
    given = {"catalog": url, "stream": "days", "epochColumn": "day", "frontier": "none"} | wrong
    columns = SCHEMA if given["epochColumn"] == "day" else PLAIN
    schema = schema_of(f"{columns} timestamp headers")
    with pytest.raises(HeadraceError, match=words):
        stream_writer({name: value for name, value in given.items() if value}, schema, False)


def test_rows_without_an_epoch_are_bad_rows(
    monkeypatch: pytest.MonkeyPatch, log: Log, url: str
) -> None:
    query = Writes(monkeypatch, url, frontier="batch")
    for day in (None, -1):
        batch = table([(1, "a")]).set_column(2, "day", pa.array([day], pa.int64()))
        with pytest.raises(HeadraceError, match="row 0"):
            query.run(0, batch)
    assert whole(url) == {}
    with pytest.raises(EpochStreamError):
        stream_writer(
            {"catalog": url, "stream": "days"},
            schema_of(PLAIN),
            False,
        )
    with pytest.raises(NoEpochsError):
        Writes(monkeypatch, url, stream="plain").stage(0, [(1, "a")])
