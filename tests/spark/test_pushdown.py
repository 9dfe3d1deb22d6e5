"""Filters that reach the source: they spare work and change no answer."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from headrace.errors import DamagedBatchError
from headrace.log import files
from headrace.log.open import open_log
from headrace.spark.pushdown import Narrowing
from headrace.spark.source import FilteringReader, OffsetRun
from tests.log.helpers import create
from tests.spark.engine import rows_of, shipped, source

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty appends, a day each, to two segments; every tenth append is two weeks late."""
    made = tmp_path_factory.mktemp("pushdown")
    opened = open_log(made)
    create(opened, segments=2)
    for day in range(40):
        at = FIRST + (day - 14 * (day % 10 == 9)) * DAY
        numbers = range(12)
        opened.append(
            "s",
            pa.table(
                {
                    "timestamp": pa.array([at] * 12, pa.timestamp("us", "UTC")),
                    "subject": [f"s.{n % 3}.{day % 4}" for n in numbers],
                    "key": [f"k{n}" for n in numbers],
                    "value": [b"v"] * 12,
                }
            ),
        )
    opened.catalog.close()
    return made


def read(folder: Path, filters: list[Filter]) -> tuple[list[dict[str, Any]], int]:
    """Rows that the source gives for filters, and how many offsets its tasks go through."""
    options = {"catalog": str(folder), "subscribe": "s"}
    made = source(options)
    reader = FilteringReader(made._options(), made.schema())
    assert reader.pushFilters(filters) == filters, "Spark applies all of them once more"
    parts = reader.partitions()
    worker = pickle.loads(pickle.dumps(reader))
    planned = 0
    for part in parts:
        assert isinstance(part, OffsetRun)
        planned += sum(span.events for span, _ in part.spans)
    return [row for part in parts for row in rows_of(worker.read(shipped(part)))], planned


def at(day: int) -> datetime:
    return FIRST + day * DAY


CASES: dict[str, tuple[list[Filter], Any]] = {
    "from": ([GreaterThanOrEqual(("timestamp",), at(30))], lambda r: r["timestamp"] >= at(30)),
    "after": ([GreaterThan(("timestamp",), at(30))], lambda r: r["timestamp"] > at(30)),
    "until": ([LessThanOrEqual(("timestamp",), at(5))], lambda r: r["timestamp"] <= at(5)),
    "before": ([LessThan(("timestamp",), at(5))], lambda r: r["timestamp"] < at(5)),
    "one time": ([EqualTo(("timestamp",), at(15))], lambda r: r["timestamp"] == at(15)),
    "a day": (
        [GreaterThanOrEqual(("timestamp",), at(15)), LessThan(("timestamp",), at(16))],
        lambda r: r["timestamp"] == at(15),
    ),
    "no time": (
        [GreaterThan(("timestamp",), at(15)), LessThan(("timestamp",), at(15))],
        lambda _: False,
    ),
    "subject": ([EqualTo(("subject",), "s.1.2")], lambda r: r["subject"] == "s.1.2"),
    "subjects": (
        [In(("subject",), ("s.1.2", "s.0.0"))],
        lambda r: r["subject"] in ("s.1.2", "s.0.0"),
    ),
    "prefix": (
        [StringStartsWith(("subject",), "s.1"), StringStartsWith(("key",), "k1")],
        lambda r: r["subject"].startswith("s.1") and r["key"].startswith("k1"),
    ),
    "both": (
        [EqualTo(("subject",), "s.2.2"), GreaterThan(("timestamp",), at(20))],
        lambda r: r["subject"] == "s.2.2" and r["timestamp"] > at(20),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_source_gives_exactly_the_rows_that_fit(folder: Path, case: str) -> None:
    filters, fits = CASES[case]
    everything, _ = read(folder, [])
    assert len(everything) == 480
    found, _ = read(folder, filters)
    assert found == [row for row in everything if fits(row)]


def test_what_lies_before_a_time_is_not_planned_even_if_some_came_late(folder: Path) -> None:
    found, planned = read(folder, [GreaterThanOrEqual(("timestamp",), at(36))])
    # Day 36 to 38; the last append was two weeks late, and lies behind them.
    assert (len(found), planned) == (36, 48)
    assert read(folder, [GreaterThan(("timestamp",), at(38))]) == ([], 0)


def test_a_filter_that_says_nothing_of_use_is_left_to_spark() -> None:
    unknown: list[Filter] = [
        Not(EqualTo(("subject",), "s.1.2")),
        EqualTo(("value",), b"v"),
        StringStartsWith(("topic",), "s"),
        GreaterThan(("subject",), "s"),
    ]
    assert Narrowing.of(unknown) == Narrowing()


def test_what_cannot_fit_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two row groups is damaged: what has to decode it fails."""
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 1000)
    log = open_log(tmp_path)
    create(log)
    numbers = range(2000)
    times = [at(number // 1000) for number in numbers]
    log.append(
        "s",
        pa.table(
            {
                "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
                "subject": [f"s.{'ab'[number // 1000]}" for number in numbers],
                "value": [str(number).encode().ljust(1000, b".") for number in numbers],
            }
        ),
    )
    log.catalog.close()
    (path,) = (tmp_path / "store").rglob("*.parquet")
    values = pq.read_metadata(path).row_group(0).column(2)
    with path.open("r+b") as file:
        file.seek(values.data_page_offset + values.total_compressed_size // 2)
        file.write(bytes(8))
    fitting: list[Filter] = [
        EqualTo(("subject",), "s.b"),
        StringStartsWith(("subject",), "s.b"),
        GreaterThan(("timestamp",), at(0)),
    ]
    for each in fitting:
        assert len(read(tmp_path, [each])[0]) == 1000
    damaged: list[Filter] = [EqualTo(("subject",), "s.a"), LessThan(("timestamp",), at(1))]
    for some in ([], damaged[:1], damaged[1:]):
        with pytest.raises(DamagedBatchError, match="cannot be read"):
            read(tmp_path, some)
