"""Damage: what is not as it was written is named, and never skipped unseen."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.catalog import Tx
from headrace.catalog.sqlite import SqliteCatalog
from headrace.errors import DamagedBatchError
from headrace.log import events, limits
from headrace.log.log import Log
from headrace.log.query import Query
from tests.log.helpers import create, event, files, numbers, read, table


def fill(log: Log) -> None:
    """Three batches of ten events: 0-9, 10-19, 20-29."""
    create(log)
    for first in (0, 10, 20):
        log.append("s", [event(n) for n in range(first, first + 10)])


def change(log: Log, sql: str, *params: Any) -> None:
    def apply(tx: Tx) -> None:
        assert tx.execute(sql, params) == 1

    log.catalog.write(apply)


def blob(log: Log, start: int) -> bytes:
    row = log.catalog.read(
        lambda tx: tx.row("SELECT data FROM batches WHERE start_offset = ?", (start,))
    )
    assert row is not None
    return bytes(row[0])


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]


def skipping(log: Log, **query: Any) -> tuple[list[int], list[tuple[int, int, int]]]:
    """What is read around the damage, and what was said to be damaged."""
    skipped: list[tuple[int, int, int]] = []

    def note(error: DamagedBatchError) -> None:
        skipped.append((error.segment, error.start, error.end))

    found = [
        int(value.as_py().rstrip(b"."))
        for batch in log.read("s", Query(**query), note)
        for value in batch.column("value")
    ]
    return found, skipped


@pytest.mark.parametrize("start", [0, 10, 20])
def test_a_flipped_byte_in_a_blob_is_found_and_the_batch_named(log: Log, start: int) -> None:
    fill(log)
    data = blob(log, start)
    change(
        log,
        "UPDATE batches SET data = ? WHERE start_offset = ?",
        flip(data, len(data) // 2),
        start,
    )
    with pytest.raises(DamagedBatchError) as caught:
        read(log)
    error = caught.value
    assert (error.stream, error.segment, error.start, error.end) == ("s", 0, start, start + 10)
    assert f"offsets {start} to {start + 9}" in str(error)
    rest = [n for n in range(30) if not start <= n < start + 10]
    assert skipping(log) == (rest, [(0, start, start + 10)])


def test_what_stands_before_the_damage_is_given_first(log: Log) -> None:
    fill(log)
    change(log, "UPDATE batches SET data = ? WHERE start_offset = 10", flip(blob(log, 10), 50))
    reader = log.reader("s", Query())
    batch = reader.next()
    assert batch is not None
    assert batch.column("offset").to_pylist() == list(range(10))
    for _ in range(2):
        with pytest.raises(DamagedBatchError):
            reader.next()
        assert reader.positions == {0: 10}


@pytest.mark.parametrize(
    "change_to",
    ["data = NULL", "data = X'00'", "checksum = checksum + 1", "bytes = bytes + 1", "layout = 999"],
)
def test_a_record_that_does_not_fit_its_blob_is_damage(log: Log, change_to: str) -> None:
    fill(log)
    sql = change_to
    if "X'00'" in sql and not hasattr(log.catalog, "folder"):
        sql = "data = '\\x00'::bytea"
    change(log, f"UPDATE batches SET {sql} WHERE start_offset = 10")
    with pytest.raises(DamagedBatchError):
        read(log)
    assert skipping(log) == ([*range(10), *range(20, 30)], [(0, 10, 20)])


def test_a_blob_of_another_number_of_events_is_damage(log: Log) -> None:
    fill(log)
    change(log, "UPDATE batches SET end_offset = 19 WHERE start_offset = 10")
    with pytest.raises(DamagedBatchError):
        read(log)
    found, skipped = skipping(log)
    assert found == [*range(10), *range(20, 30)]
    assert skipped[0] == (0, 10, 19)


def test_a_record_that_is_missing_is_damage(log: Log) -> None:
    fill(log)
    change(log, "DELETE FROM batches WHERE start_offset = 10")
    with pytest.raises(DamagedBatchError, match="missing") as caught:
        read(log)
    assert (caught.value.start, caught.value.end) == (10, 20)
    assert skipping(log) == ([*range(10), *range(20, 30)], [(0, 10, 20)])


@pytest.mark.parametrize("gone", [0, 20])
def test_a_record_missing_at_either_end_is_damage(log: Log, gone: int) -> None:
    fill(log)
    change(log, "DELETE FROM batches WHERE start_offset = ?", gone)
    with pytest.raises(DamagedBatchError) as caught:
        read(log)
    assert (caught.value.start, caught.value.end) == (gone, gone + 10)
    rest = [n for n in range(30) if not gone <= n < gone + 10]
    assert skipping(log) == (rest, [(0, gone, gone + 10)])


@pytest.mark.parametrize("gone", [0, 10, 20])
def test_a_search_by_time_ends_when_a_record_is_missing(log: Log, gone: int) -> None:
    create(log)
    for first in (0, 10, 20):
        log.append(
            "s",
            [
                event(n, timestamp=datetime(2024, 1, 1, 0, n, tzinfo=UTC))
                for n in range(first, first + 10)
            ],
        )
    change(log, "DELETE FROM batches WHERE start_offset = ?", gone)
    for minute in (0, 5, 12, 18, 25, 29):
        start = datetime(2024, 1, 1, 0, minute, tzinfo=UTC)
        found, _ = skipping(log, start=start)
        wanted = [n for n in range(minute, 30) if not gone <= n < gone + 10]
        assert set(found) >= set(wanted)


def test_a_search_by_time_through_damage_is_told_or_skipped(log: Log) -> None:
    create(log)
    for first in (0, 10):
        log.append(
            "s",
            [
                event(n, timestamp=datetime(2024, 1, 1, 0, n, tzinfo=UTC))
                for n in range(first, first + 10)
            ],
        )
    change(log, "UPDATE batches SET data = ? WHERE start_offset = 0", flip(blob(log, 0), 40))
    start = datetime(2024, 1, 1, 0, 5, tzinfo=UTC)
    with pytest.raises(DamagedBatchError):
        read(log, start=start)
    assert skipping(log, start=start)[0] == list(range(10, 20))


# --- files -----------------------------------------------------------------------------------


@pytest.fixture
def filed(log: Log, monkeypatch: pytest.MonkeyPatch) -> Log:
    """A blob, a file, a blob: 0-9, 10-309, 310-319."""
    monkeypatch.setattr(limits, "INLINE_BYTES", 1000)
    create(log)
    log.append("s", table(10))
    log.append("s", table(300, value_bytes=20))
    log.append("s", table(10))
    assert len(files(log)) == 1
    return log


def file_of(log: Log) -> Path:
    assert log.store is not None
    return Path(log.store.url) / files(log)[0]


def check_file_damage(log: Log) -> None:
    with pytest.raises(DamagedBatchError) as caught:
        read(log)
    assert (caught.value.segment, caught.value.end) == (0, 310)
    assert 10 <= caught.value.start < 310
    found, skipped = skipping(log)
    assert found[:10] == list(range(10))
    assert found[-10:] == list(range(10))
    assert skipped == [(0, caught.value.start, 310)]
    assert len(found) == 20 + caught.value.start - 10


def test_a_file_that_is_gone_is_damage_and_is_named(filed: Log) -> None:
    path = file_of(filed)
    path.unlink()
    with pytest.raises(DamagedBatchError, match=path.name):
        read(filed)
    check_file_damage(filed)


def test_a_path_that_is_no_text_is_damage_of_that_batch_alone(filed: Log) -> None:
    if not isinstance(filed.catalog, SqliteCatalog):
        return  # PostgreSQL refuses such a text
    path = b"\xff" + files(filed)[0].encode()
    change(filed, "UPDATE batches SET path = CAST(? AS TEXT) WHERE path IS NOT NULL", path)
    with pytest.raises(DamagedBatchError, match=r"\\xff.* is missing"):
        read(filed)
    check_file_damage(filed)


@pytest.mark.parametrize("size", [0, 3, 100, -1])
def test_a_file_that_is_cut_short_is_damage(filed: Log, size: int) -> None:
    path = file_of(filed)
    data = path.read_bytes()
    path.write_bytes(data[:size])
    check_file_damage(filed)


def test_a_file_of_nonsense_is_damage(filed: Log) -> None:
    file_of(filed).write_bytes(os.urandom(5000))
    check_file_damage(filed)


def test_a_file_of_another_batch_is_damage(filed: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(filed)
    filed.append("s", table(200, value_bytes=20))
    (other,) = [name for name in files(filed) if not str(path).endswith(name)]
    assert filed.store is not None
    path.write_bytes((Path(filed.store.url) / other).read_bytes())
    with pytest.raises(DamagedBatchError):
        read(filed)


def test_the_file_is_read_again_once_it_is_restored(filed: Log) -> None:
    path = file_of(filed)
    data = path.read_bytes()
    path.unlink()
    reader = filed.reader("s", Query())
    assert reader.next() is not None
    with pytest.raises(DamagedBatchError):
        reader.next()
    path.write_bytes(data)
    rows = []
    while (batch := reader.next()) is not None:
        rows.extend(batch.to_pylist())
    assert [row["offset"] for row in rows] == list(range(10, 320))


def test_any_flipped_byte_of_a_file_is_found_or_harmless(filed: Log) -> None:
    """Every event that comes out is one that went in, wherever the file is hit."""
    path = file_of(filed)
    good = path.read_bytes()
    whole = read(filed)
    rng = random.Random(11)
    hits = set(rng.sample(range(len(good)), 120)) | set(range(len(good) - 40, len(good)))
    found_out = 0
    for at in sorted(hits):
        path.write_bytes(
            flip(good, at) if rng.random() < 0.5 else good[:at] + b"\xff" + good[at + 1 :]
        )
        try:
            rows = read(filed)
        except DamagedBatchError:
            found_out += 1
            continue
        assert rows == whole, f"byte {at} of {len(good)} changed what was read"
    assert found_out > len(hits) // 2
    path.write_bytes(good)
    assert read(filed) == whole


# --- decoders fed with anything ---------------------------------------------------------------


SAMPLE = events.batch_of(
    [
        events.Event(
            subject=f"s.{n}", value=bytes([n]), key=f"k{n}", headers={"h": b"v"}, epoch=(n,)
        )
        for n in range(20)
    ],
    1,
)
SAMPLE_BLOB = events.encode_blob(SAMPLE)
SAMPLE_LAYOUT = events.layout_of(SAMPLE.schema)


def decode(data: bytes | memoryview, layout: int) -> pa.RecordBatch | None:
    """What the decoder makes of it; the errors are those that reading takes for damage."""
    try:
        return events.decode_blob(data, layout)
    except (pa.ArrowException, ValueError, OSError, EOFError):
        return None


@given(st.binary(max_size=400), st.integers(-5, 300))
@settings(max_examples=150, deadline=None)
def test_the_decoder_takes_any_bytes_without_a_crash(data: bytes, layout: int) -> None:
    decode(data, layout)


@given(st.integers(0, len(SAMPLE_BLOB)), st.integers(1, 255))
@settings(max_examples=100, deadline=None)
def test_the_decoder_takes_cut_blobs_and_other_layouts_without_a_crash(
    cut: int, layout: int
) -> None:
    decode(SAMPLE_BLOB[:cut], SAMPLE_LAYOUT)
    decode(SAMPLE_BLOB, layout)


def test_a_blob_round_trips_in_any_layout() -> None:
    for layout in range(1, 256):
        schema = events.schema_of(layout)
        empty = schema.empty_table().to_batches()
        batch = empty[0] if empty else pa.RecordBatch.from_pylist([], schema)
        assert events.layout_of(schema) == layout
        assert events.decode_blob(events.encode_blob(batch), layout).schema == schema
    assert events.decode_blob(SAMPLE_BLOB, SAMPLE_LAYOUT).equals(
        SAMPLE.cast(events.schema_of(SAMPLE_LAYOUT))
    )


def test_any_change_of_a_blob_is_found_by_its_checksum(log: Log) -> None:
    create(log)
    log.append("s", [event(n, key=str(n), headers={"h": b"v"}) for n in range(20)])
    good = blob(log, 0)
    whole = read(log)
    rng = random.Random(7)
    for _ in range(60):
        data = bytearray(good)
        match rng.randrange(4):
            case 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 1:
                del data[rng.randrange(len(data)) :]
            case 2:
                at = rng.randrange(len(data))
                data[at : at + 16] = rng.randbytes(16)
            case _:
                data += rng.randbytes(8)
        if bytes(data) == good:
            continue
        change(log, "UPDATE batches SET data = ? WHERE start_offset = 0", bytes(data))
        with pytest.raises(DamagedBatchError):
            read(log)
    change(log, "UPDATE batches SET data = ? WHERE start_offset = 0", good)
    assert read(log) == whole
    assert numbers(log) == list(range(20))
