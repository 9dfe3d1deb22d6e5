"""Native reads give the rows of the source, offsets and all, through Spark's own file scan."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import headrace.spark
from headrace.catalog.batches import FilePlace
from headrace.errors import InvalidOptionError, NotSharedError, UnknownStreamError
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark import native
from headrace.spark.columns import default_schema
from headrace.spark.connection import check_shared
from headrace.spark.options import parse_options
from tests.log.helpers import check_dense, create, event, files, table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Its name has what names may have."""
    return tmp_path / "a é%20,b#c"


@pytest.fixture
def log(folder: Path) -> Iterator[Log]:
    opened = open_log(folder)
    yield opened
    opened.catalog.close()


def rows(frame: Any) -> list[dict[str, Any]]:
    found = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted(found, key=lambda row: (row["segment"], row["offset"]))


def fill(log: Log) -> None:
    """Files, blobs between and after them, and a file with a marker."""
    create(log, segments=2)
    log.append("s", table(4000, value_bytes=600))
    log.append("s", table(20))
    log.append("s", table(4000, value_bytes=600))
    log.append("s", [event(1, headers={"a": b"b"}, epoch=(1, 2), key="k1")])
    log.append_marker("s", 0, b"internal")
    log.append(
        "s", [Event(subject=f"s.{n % 3}.x", value=b"." * 700, key=f"{n}") for n in range(4000)]
    )
    assert len(files(log)) >= 6


def test_a_native_read_gives_the_rows_of_the_source(
    spark: SparkSession, log: Log, folder: Path
) -> None:
    fill(log)
    frame = headrace.spark.read(spark, "s", catalog=folder, headers=True)
    source = spark.read.format("headrace").option("catalog", str(folder)).option("subscribe", "s")
    expected = rows(source.option("includeHeaders", "true").load())
    found = rows(frame)
    assert frame.columns == default_schema(headers=True).names
    assert len(found) == 12_021
    assert found == expected
    assert "FileScan parquet" in frame._jdf.queryExecution().toString()
    by_subject = headrace.spark.read(spark, "s", catalog=folder, subject="s.1.*")
    assert rows(by_subject.select("segment", "offset", "subject")) == [
        {"segment": row["segment"], "offset": row["offset"], "subject": row["subject"]}
        for row in expected
        if row["subject"].startswith("s.1.")
    ]


def test_a_native_read_between_places(spark: SparkSession, log: Log, folder: Path) -> None:
    fill(log)
    total = {segment.number: segment.head for segment in log.stream("s").segments}
    end = {number: head - 50 for number, head in total.items()}
    frame = headrace.spark.read(spark, "s", catalog=folder, start={0: 7, 1: 3000}, end=end)
    found = rows(frame.select("segment", "offset"))
    marker = 1
    assert len(found) == sum(end.values()) - 3007 - marker
    assert found[0] == {"segment": 0, "offset": 7}
    assert found[-1] == {"segment": 1, "offset": end[1] - 1}


def test_files_that_are_cut_and_blobs_come_through_the_source(log: Log, folder: Path) -> None:
    create(log)
    log.append("s", table(3000, value_bytes=600))
    log.append("s", table(10))
    log.append("s", table(3000, value_bytes=600))
    given = {"catalog": str(folder), "subscribe": "s"}
    parts = native.plan(log, parse_options(given), "s")
    assert [(f.place.start, f.place.end) for f in parts.files] == [(0, 3000), (3010, 6010)]
    assert [(s.start, s.end) for s in parts.spans] == [(3000, 3010)]
    cut = given | {"startingOffsets": '{"s": {"0": 1}}', "endingOffsets": '{"s": {"0": 6009}}'}
    parts = native.plan(log, parse_options(cut), "s")
    assert parts.files == []
    assert [(s.start, s.end) for s in parts.spans] == [(1, 6009)]
    parts = native.plan(log, parse_options(given), "s", native=False)
    assert parts.files == []


def test_a_folder_that_looks_like_a_pattern_is_left_to_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark would take its name for a pattern, and give no rows or too many."""
    for name in ("a[b]", "a{c,d}", "a*"):
        odd = open_log(tmp_path / name)
        assert native._root(spark, odd) is None
        odd.catalog.close()
    create_in = open_log(tmp_path / "a*")
    create(create_in)
    create_in.append("s", table(3000, value_bytes=600))
    create_in.catalog.close()
    assert headrace.spark.read(spark, "s", catalog=tmp_path / "a*").count() == 3000


@given(st.lists(st.integers(1, 400), max_size=60))
def test_every_file_is_told_apart_from_the_others_of_its_group(sizes: list[int]) -> None:
    placed = [
        native.NativeFile(0, FilePlace(at, at + 1, size, 7, f"{at}"))
        for at, size in enumerate(sizes)
    ]
    groups = native.group_files(placed)
    assert sorted(f.place.start for g in groups for f in g.files) == list(range(len(sizes)))
    for group in groups:
        marks = {file.place.size_bytes % group.modulus for file in group.files}
        assert len(marks) == len(group.files)


def test_a_native_read_of_an_empty_stream_and_by_time(
    spark: SparkSession, log: Log, folder: Path
) -> None:
    create(log)
    frame = headrace.spark.read(spark, "s", catalog=folder)
    assert (frame.columns, frame.count()) == (default_schema(headers=False).names, 0)
    day = datetime(2026, 1, 1, tzinfo=UTC)
    log.append("s", [event(n, timestamp=day + timedelta(hours=n)) for n in range(10)])
    part = headrace.spark.read(
        spark, "s", catalog=folder, start=day + timedelta(hours=2), end=day + timedelta(hours=5)
    )
    found = rows(part)
    check_dense(found, {0: 2})
    assert len(found) == 3


def test_bad_input_of_a_native_read(
    spark: SparkSession, log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log)
    with pytest.raises(UnknownStreamError):
        headrace.spark.read(spark, "nobody", catalog=folder)
    with pytest.raises(InvalidOptionError, match="not a place"):
        headrace.spark.read(spark, "s", catalog=folder, start=5)  # type: ignore[arg-type]
    with pytest.raises(NotSharedError):
        check_shared(log, "spark://far:7077")
