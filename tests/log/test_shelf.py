"""Blobs that become one record batch, whatever their sizes and columns and what comes after."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from zlib_ng.zlib_ng import crc32

from headrace.catalog.batches import Batch
from headrace.log import checksums, events, limits
from headrace.log.events import Event
from headrace.log.shelf import SMALL_BYTES, UNDECODABLE, Shelf, flaw


def batch_of(data: pa.RecordBatch, start: int) -> Batch:
    blob = bytes(events.encode_blob(data))
    layout = events.layout_of(data.schema)
    end = start + data.num_rows
    return Batch(start, end, len(blob), layout, checksums.of_blob(blob, layout), None, blob)


def some(count: int, rng: random.Random, size: int = 100) -> list[Batch]:
    """Batches of a few events each, with and without keys, headers and epochs."""
    found, at = [], 0
    for _ in range(count):
        keyed, headed, dated = (rng.random() < 0.3 for _ in range(3))
        rows = [
            Event(
                subject=f"a.{at + n}",
                value=rng.randbytes(rng.randrange(size)),
                key=str(n) if keyed else None,
                headers={"h": b"1"} if headed else None,
                epoch=(at, n) if dated else None,
            )
            for n in range(rng.randrange(1, 5))
        ]
        found.append(batch_of(events.batch_of(rows, 7), at))
        at = found[-1].end
    return found


def joined(batches: list[Batch], *, copies: bool = True) -> pa.RecordBatch:
    shelf = Shelf(copies=copies)
    for batch in batches:
        assert shelf.put(batch)
    found = shelf.joined()
    assert found is not None
    return found


def rows_of(batches: list[Batch]) -> list[dict[str, Any]]:
    """One by one, with None for what a batch does not have."""
    rows = []
    for batch in batches:
        assert batch.data is not None
        rows += events.decode_blob(batch.data, batch.layout).to_pylist()
    names = {name for row in rows for name in row}
    return [{name: row.get(name) for name in names} for row in rows]


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("size", [100, 2 * SMALL_BYTES])
def test_nothing_changes_but_the_number_of_batches(size: int, copies: bool) -> None:
    rng = random.Random(size)
    for count in (1, 2, 3, 20):
        batches = some(count, rng, size)
        assert joined(batches, copies=copies).to_pylist() == rows_of(batches)


def test_more_than_fits_is_joined_in_parts() -> None:
    rng = random.Random(3)
    data = events.batch_of([Event(subject="a", value=rng.randbytes(SMALL_BYTES - 1000))], 7)
    count = 3 * limits.READ_BYTES // SMALL_BYTES
    batches = [batch_of(data, n) for n in range(count)]
    assert joined(batches).column("value").to_pylist() == data.column("value").to_pylist() * count


@pytest.mark.parametrize("count", [1, 2, 9])
def test_what_was_joined_does_not_change_with_what_comes_next(count: int) -> None:
    rng = random.Random(count)
    first = [batch_of(events.batch_of([Event(subject="a", value=b"x" * 99)], 7), 0)] * count
    found = joined(first)
    before = found.to_pylist()
    joined(some(50, rng))
    joined([batch_of(events.batch_of([Event(subject="b", value=b"y" * 99)], 8), 0)] * count)
    assert found.to_pylist() == before == rows_of(first)


def test_an_empty_shelf_has_nothing() -> None:
    assert Shelf().joined() is None


def test_a_blob_that_is_not_what_was_stored_is_not_taken() -> None:
    (good,) = some(1, random.Random(1))
    assert good.data is not None
    bad = msgspec.structs.replace(good, data=good.data[:-1] + b"?")
    shelf = Shelf()
    assert shelf.put(good)
    assert not shelf.put(bad)
    assert not shelf.put(msgspec.structs.replace(good, data=None))
    assert "checksum" in flaw(bad)
    found = shelf.joined()
    assert found is not None
    assert found.num_rows == good.end


def test_the_checksum_covers_the_layout_and_older_ones_are_read_too() -> None:
    (good,) = some(1, random.Random(3))
    for bit in range(8):
        assert not Shelf().put(msgspec.structs.replace(good, layout=good.layout ^ 1 << bit))
    assert good.data is not None
    older = msgspec.structs.replace(good, checksum=crc32(good.data))
    assert joined([older]).equals(joined([good]))


@pytest.mark.parametrize("count", [1, 5])
def test_a_blob_that_was_stored_and_is_no_good_is_told_from_the_others(count: int) -> None:
    batches = some(count, random.Random(2))
    junk = bytes(80)
    bad = Batch(0, 1, len(junk), events.PLAIN, crc32(junk), None, junk)
    miscounted = msgspec.structs.replace(batches[0], end=batches[0].end + 1)
    for one in (bad, miscounted):
        with pytest.raises(UNDECODABLE):
            joined([*batches, one])
        shelf = Shelf(copies=False)
        assert all(shelf.put(batch) for batch in batches)
        assert not shelf.put(one)
    assert "cannot be decoded" in flaw(bad)
    assert "events" in flaw(miscounted)
