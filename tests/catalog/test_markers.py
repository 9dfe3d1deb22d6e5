"""Markers: counted where they stand, through appends and trims."""

from __future__ import annotations

import random

import pytest

from headrace.catalog import Catalog, Tx, batches, markers, streams, tiling
from headrace.catalog.batches import NewBatch
from headrace.catalog.streams import Limits, Stream, StreamConfig


def make(catalog: Catalog, name: str = "s") -> Stream:
    config = StreamConfig(subjects=(f"{name}.>",), retention=Limits())
    return catalog.write(lambda tx: tiling.create(tx, name, config, [(0, 10), (10, 20)]))


def append(catalog: Catalog, segment_id: int, rows: int, marked: tuple[int, ...] = ()) -> int:
    new = NewBatch(segment_id, rows, 10 * rows, 0, 135, 0, b"", markers=marked)
    found = catalog.write(lambda tx: batches.append(tx, [new]))
    assert found is not None
    return found[segment_id]


def trim(catalog: Catalog, stream: Stream, segment_id: int, before: int) -> None:
    catalog.write(lambda tx: batches.trim(tx, stream.id, segment_id, before))


def found_between(catalog: Catalog, segment_id: int, start: int, end: int) -> int:
    return catalog.read(lambda tx: markers.between(tx, segment_id, start, end))


def segment_of(catalog: Catalog, number: int) -> streams.Segment:
    found = catalog.read(lambda tx: streams.require(tx, "s")).segment(number)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(3))
def test_markers_between_offsets_are_counted_as_a_list_would(catalog: Catalog, seed: int) -> None:
    rng = random.Random(seed)
    stream = make(catalog)
    ids = [segment.id for segment in stream.segments]
    known: dict[int, list[int]] = {segment_id: [] for segment_id in ids}
    heads = dict.fromkeys(ids, 0)
    for _ in range(60):
        segment_id = rng.choice(ids)
        if rng.random() < 0.15:
            cut = rng.randint(0, heads[segment_id])
            trim(catalog, stream, segment_id, cut)
        else:
            rows = rng.randint(1, 6)
            marked = tuple(row for row in range(rows) if rng.random() < 0.3)
            start = append(catalog, segment_id, rows, marked)
            assert start == heads[segment_id]
            known[segment_id] += [start + row for row in marked]
            heads[segment_id] += rows
        for at, each in enumerate(ids):
            segment = segment_of(catalog, at)
            kept = [offset for offset in known[each] if offset >= segment.tail]
            assert segment.markers == len(kept)
            assert segment.events == segment.head - segment.tail - len(kept)
            for _ in range(5):
                lo, hi = sorted(rng.choices(range(segment.tail, segment.head + 2), k=2))
                assert found_between(catalog, each, lo, hi) == sum(lo <= o < hi for o in kept)


def test_events_in_ranges_leave_out_markers_and_what_is_not_retained(catalog: Catalog) -> None:
    stream = make(catalog)
    first = stream.segments[0].id
    append(catalog, first, 4, (1,))
    append(catalog, first, 4, (0, 3))

    def events(*ranges: tuple[int, int]) -> int:
        segment = segment_of(catalog, 0)
        return catalog.read(lambda tx: markers.events_in(tx, segment, ranges))

    assert events((0, 8)) == 5
    assert events((0, 2), (4, 6)) == 2
    assert events((3, 3), (7, 5)) == 0
    trim(catalog, stream, first, 4)
    assert events((0, 8)) == 2


def test_markers_go_with_their_stream(catalog: Catalog) -> None:
    stream = make(catalog)
    append(catalog, stream.segments[0].id, 2, (0, 1))

    def delete(tx: Tx) -> None:
        streams.delete(tx, streams.require(tx, "s"))

    catalog.write(delete)
    assert catalog.read(lambda tx: tx.rows("SELECT * FROM markers")) == []
