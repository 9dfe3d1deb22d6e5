"""What a read leaves undecoded, and that nothing which fits is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.log import files
from headrace.log.cursor import Cursor
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.log.picking import Pick, Text
from tests.log.helpers import create

DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A segment with two files of four row groups each, and blobs behind them."""
    opened = open_log(tmp_path_factory.mktemp("picking"))
    create(opened)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "ROW_GROUP_ROWS", 500)
        opened.append("s", days(0, 2000))
        opened.append("s", days(2000, 2000))
    opened.append("s", days(4000, 20).drop_columns(["key"]))
    yield opened
    opened.catalog.close()


def days(first: int, count: int) -> pa.Table:
    """A day for every hundred events, but that the last of each hundred comes ten days late."""
    numbers = range(first, first + count)
    stamps = [(n // 100 - 10 * (n % 100 == 99)) * DAY_US for n in numbers]
    return pa.table(
        {
            "timestamp": pa.array(stamps, pa.timestamp("us", "UTC")),
            "subject": [f"s.{n // 500}.x" for n in numbers],
            "key": [None if n % 5 == 0 else f"k{n // 1000}" for n in numbers],
            "value": [str(n).encode().ljust(1000, b".") for n in numbers],
        }
    )


def through(log: Log, pick: Pick | None, start: int = 0) -> list[pa.RecordBatch]:
    """What a cursor gives, with its position checked."""
    (segment,) = log.stream("s").segments
    cursor = Cursor(log.catalog, log.store, "s", segment, start, pick=pick)
    found = []
    while cursor.position < segment.head:
        before = cursor.position
        batch = cursor.next(segment.head)
        assert cursor.position > before
        if batch is not None:
            assert batch.column("offset")[-1].as_py() == cursor.position - 1
            found.append(batch)
    return found


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


PICKS = {
    "times": (Pick(since_us=7 * DAY_US, until_us=12 * DAY_US), 2020),
    "since": (Pick(since_us=35 * DAY_US), 520),
    "before": (Pick(until_us=-9 * DAY_US), 520),
    "subject": (Pick(texts=(Text("subject", frozenset(["s.3.x"])),)), 520),
    "subjects": (Pick(texts=(Text("subject", frozenset(["s.3.x", "s.4.x", "q"])),)), 1020),
    "prefix": (Pick(texts=(Text("subject", prefix="s.7."),)), 520),
    "nothing": (Pick(texts=(Text("subject", prefix="s.9"),)), 20),
    "key": (Pick(texts=(Text("key", frozenset(["k1"])),)), 1020),
    "both": (Pick(since_us=2 * DAY_US, texts=(Text("subject", prefix="s.2"),)), 520),
}


@pytest.mark.parametrize("name", PICKS)
def test_what_fits_is_read_and_row_groups_without_it_are_not_decoded(log: Log, name: str) -> None:
    pick, decoded = PICKS[name]
    everything = rows(through(log, None))
    assert len(everything) == 4020

    def fits(row: dict[str, Any]) -> bool:
        at_us = int(row["timestamp"].timestamp()) * 1_000_000
        if pick.since_us is not None and at_us < pick.since_us:
            return False
        if pick.until_us is not None and at_us >= pick.until_us:
            return False
        return all(
            (told := row.get(text.column)) is not None
            and (told in text.one_of if text.one_of is not None else told.startswith(text.prefix))
            for text in pick.texts
        )

    wanted = [row["offset"] for row in everything if fits(row)]
    read = through(log, pick)
    assert [row["offset"] for batch in read for row in pick.rows(batch).to_pylist()] == wanted
    assert sum(batch.num_rows for batch in read) == decoded


def test_a_read_that_begins_within_a_row_group_keeps_its_offsets(log: Log) -> None:
    pick = Pick(frozenset(["value"]), texts=(Text("subject", prefix="s.5"),))
    for start in (0, 499, 700, 2000, 2501, 2730):
        found = rows([pick.rows(batch) for batch in through(log, pick, start)])
        assert [row["offset"] for row in found] == list(range(max(start, 2500), 3000))
        assert all(int(row["value"].rstrip(b".")) == row["offset"] for row in found)


def test_columns_that_are_not_wanted_are_not_read_from_files(log: Log) -> None:
    first, *_ = through(log, Pick(frozenset(["key", "segment"])))
    assert first.schema.names == ["offset", "key"]
    first, *_ = through(log, Pick(frozenset(["offset"])))
    assert first.schema.names == ["offset", "timestamp"]


def test_a_subject_filter_becomes_the_text_before_its_first_wildcard() -> None:
    for pattern, text in {
        "a.b": Text("subject", frozenset(["a.b"]), "a.b"),
        "a.*.c": Text("subject", None, "a."),
        "a.b.>": Text("subject", None, "a.b."),
        ">": Text("subject"),
    }.items():
        assert Pick().with_subject(pattern).texts == (text,)
