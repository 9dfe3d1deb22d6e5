"""Rows that are decoded without Arrow are those that Arrow decodes, and damage is seen alike."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from headrace.catalog.streams import StreamConfig
from headrace.errors import DamagedBatchError, HeadraceError
from headrace.log import events, plain, rows
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.plain import Row, rows_of
from headrace.log.query import Query
from headrace.log.rows import rows_of_arrow


def some_row(rng: random.Random) -> dict[str, Any]:
    """A row with all columns; those that may be null often are."""

    def text() -> str:
        return "".join(rng.choices("ab.é𝄞", k=rng.randrange(5)))

    def or_none(value: Any) -> Any:
        return value if rng.random() < 0.6 else None

    pairs = [{"key": text(), "value": rng.randbytes(rng.randrange(3))} for _ in range(2)]
    return {
        "timestamp": rng.randrange(2**50),
        "subject": text(),
        "key": or_none(text()),
        "value": rng.randbytes(rng.randrange(9)),
        "headers": or_none(pairs[: rng.randrange(3)]),
        "epoch": or_none([rng.randrange(-(2**60), 2**60) for _ in range(rng.randrange(3))]),
        "origin": or_none({"region": text(), "sequence": rng.randrange(2**60)}),
        "marker": or_none(b"m"),
    }


def blob_of(layout: int, rows: list[dict[str, Any]]) -> bytes:
    schema = events.schema_of(layout)
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return bytes(events.encode_blob(pa.RecordBatch.from_arrays(arrays, schema=schema)))


def test_a_blob_decodes_as_arrow_decodes_it() -> None:
    rng = random.Random(7)
    for layout in sorted({bits | events.PLAIN for bits in range(256)}):
        for count in (0, 1, 2, 17):
            rows = [some_row(rng) for _ in range(count)]
            blob = blob_of(layout, rows)
            wanted = rows_of_arrow(events.decode_blob(blob, layout), 3)
            found = rows_of(blob, layout, 3, 40, 40 + count)
            assert [row._replace(offset=None) for row in found] == wanted
            assert [row.offset for row in found] == list(range(40, 40 + count))


def test_the_columns_are_those_that_are_stored() -> None:
    assert tuple(name for name, _ in events.COLUMNS) == plain.COLUMNS


def test_a_damaged_blob_is_a_value_error_and_never_another() -> None:
    rng = random.Random(5)
    row = {"timestamp": 1, "subject": "a.b", "key": "k", "value": b"xyz",
           "headers": [{"key": "h", "value": b"1"}], "epoch": [7], "origin": None,
           "marker": None}  # fmt: skip
    blob = blob_of(0b00111111, [row, row])
    refused = 0
    for at in range(len(blob)):
        for damaged in (
            blob[:at],
            blob[:at] + bytes([blob[at] ^ 1 << rng.randrange(8)]) + blob[at + 1 :],
        ):
            try:
                found = rows_of(damaged, 0b00111111, 0, 0, 2)
            except ValueError:
                refused += 1
            else:
                assert len(found) == 2
    assert refused > len(blob)


def filled(log: Log) -> list[Event]:
    """A stream with blobs, files, markers, splits, keys, headers and nulls."""
    log.create_stream("s", StreamConfig(subjects=("s.>",)), segments=2)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    made = [
        Event(
            subject=f"s.{n % 3}", value=b"%d" % n, key=str(n % 7) if n % 2 else None,
            headers=[("h", b"\xff"), ("h", b"2")] if n % 5 == 0 else None,
            timestamp=begin + timedelta(seconds=n),
        )
        for n in range(60)
    ]  # fmt: skip
    log.append("s", made[:20])
    log.append_marker("s", 0, b"mark")
    log.append("s", [Event(subject="s.big", value=bytes(700_000), key="b") for _ in range(3)])
    for event in made[20:40]:
        log.publish(event)
    log.split("s", 1)
    log.append("s", made[40:])
    return made


def both(log: Log, query: Query) -> tuple[list[Row], list[Row]]:
    arrow = [row for batch in log.read("s", query) for row in rows_of_arrow(batch)]
    return [row for some in log.rows("s", query) for row in some], arrow


@pytest.mark.parametrize("many", [rows.MANY_BLOBS, 5, -1])
def test_rows_are_what_a_read_gives(log: Log, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """Also where Arrow reads the rest of many small blobs, from somewhere on or all of them."""
    monkeypatch.setattr(rows, "MANY_BLOBS", many)
    filled(log)
    assert any(batch.num_rows for batch in log.read("s", Query(subject="s.big")))
    halfway = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
    for query in (
        Query(),
        Query(subject="s.1"),
        Query(limit=7),
        Query(start="latest"),
        Query(start=halfway),
        Query(until=halfway),
        Query(start={0: 3}, until={0: 9}, segments=[0]),
        Query(subject="s.big", limit=2),
    ):
        found, wanted = both(log, query)
        assert found == wanted, query


@pytest.mark.parametrize(
    "query",
    [Query(limit=0), Query(start=5), Query(start={9: 0}), Query(start={0: 999}), Query(subject="")],
)
def test_what_a_read_refuses_rows_refuse_in_the_same_words(log: Log, query: Query) -> None:
    filled(log)
    said = []
    for read in (log.read, log.rows):
        with pytest.raises(HeadraceError) as caught:
            list(read("s", query))
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


@pytest.mark.parametrize("many", [rows.MANY_BLOBS, -1])
def test_damage_is_skipped_where_a_read_skips_it(
    log: Log, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(rows, "MANY_BLOBS", many)
    filled(log)
    log.catalog.write(
        lambda tx: tx.execute(
            "UPDATE batches SET data = ? WHERE data IS NOT NULL AND start_offset = 0", (b"gone",)
        )
    )
    with pytest.raises(DamagedBatchError):
        list(log.rows("s"))
    seen: list[list[tuple[int, int, int, str]]] = []
    for read in (log.read, log.rows):
        met: list[DamagedBatchError] = []
        list(read("s", Query(), met.append))
        seen.append([(e.segment, e.start, e.end, e.reason) for e in met])
    assert seen[0] == seen[1] != []
