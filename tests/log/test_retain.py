"""Retention: what a policy says to keep is kept, whole batches go, and files go later."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.catalog import Tx, batches, progress
from headrace.catalog.batches import Place
from headrace.catalog.progress import Progress
from headrace.catalog.streams import (
    Consumed,
    Groups,
    Limits,
    Retention,
    Segment,
    Stream,
    StreamConfig,
)
from headrace.errors import TrimmedError
from headrace.log import limits, retain
from headrace.log.log import Log
from headrace.log.query import Query
from tests.log.helpers import create, event, everything, files, numbers, read, table

NOW_US = 1_000_000_000_000
T0 = datetime(2024, 1, 1, tzinfo=UTC)


# --- the plan, against its rules --------------------------------------------------------------


class World:
    """A stream's batches as plain data."""

    def __init__(self, segments: list[list[tuple[int, int, int]]]) -> None:
        self.places: dict[int, list[Place]] = {}
        made = []
        for number, raw in enumerate(segments):
            at = total = 0
            ages = sorted((age_s for _, _, age_s in raw), reverse=True)
            places = []
            for (rows, size, _), age_s in zip(raw, ages, strict=True):
                total += size
                places.append(Place(at, at + rows, size, total, NOW_US - age_s * 1_000_000))
                at += rows
            self.places[number] = places
            made.append(Segment(number, number, 0, 1, at, 0, total, 0, 0, 0, None))
        self.segments = tuple(made)

    def plan(
        self, retention: Retention, floors: dict[int, int | None] | None = None
    ) -> retain.Cuts:
        stream = Stream(
            1, "s", StreamConfig(subjects=("s",), retention=retention), 0, self.segments
        )
        return retain.plan(stream, NOW_US, self._read, floors or {})

    def _read(self, segment: Segment) -> Iterator[Place]:
        return iter(self.places[segment.number])

    def kept(self, cuts: retain.Cuts) -> list[Place]:
        """Whole batches go: one that reaches above the cut stays."""
        return [p for n, ps in self.places.items() for p in ps if p.end > cuts.get(n, 0)]

    def gone(self, cuts: retain.Cuts) -> list[Place]:
        return [p for n, ps in self.places.items() for p in ps if p.end <= cuts.get(n, 0)]

    def first_kept(self, cuts: retain.Cuts) -> list[Place]:
        return [
            next(p for p in ps if p.end > cuts.get(n, 0))
            for n, ps in self.places.items()
            if any(p.end > cuts.get(n, 0) for p in ps)
        ]


def rows(places: list[Place]) -> int:
    return sum(place.end - place.start for place in places)


def size(places: list[Place]) -> int:
    return sum(place.size_bytes for place in places)


worlds = st.builds(
    World,
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 50), st.integers(1, 500), st.integers(0, 100)), max_size=6
        ),
        min_size=1,
        max_size=4,
    ),
)
bounds = st.builds(
    Limits,
    age_s=st.none() | st.integers(1, 100),
    bytes=st.none() | st.integers(1, 3000),
    events=st.none() | st.integers(1, 300),
)


@given(worlds, st.integers(1, 300))
def test_a_limit_of_events_keeps_at_least_so_many(world: World, most: int) -> None:
    cuts = world.plan(Limits(events=most))
    kept = world.kept(cuts)
    assert rows(kept) >= min(most, rows(world.kept({})))
    assert all(rows(kept) - (p.end - p.start) < most for p in world.first_kept(cuts))


@given(worlds, st.integers(1, 3000))
def test_a_limit_of_bytes_keeps_at_least_so_many(world: World, most: int) -> None:
    cuts = world.plan(Limits(bytes=most))
    kept = world.kept(cuts)
    assert size(kept) >= min(most, size(world.kept({})))
    assert all(size(kept) - p.size_bytes < most for p in world.first_kept(cuts))


@given(worlds, st.integers(1, 100))
def test_a_limit_of_age_removes_what_is_older_and_nothing_else(world: World, age_s: int) -> None:
    cuts = world.plan(Limits(age_s=age_s))
    oldest_us = NOW_US - age_s * 1_000_000
    assert all(place.created_us < oldest_us for place in world.gone(cuts))
    assert all(place.created_us >= oldest_us for place in world.kept(cuts))


@given(worlds, bounds)
def test_what_is_within_every_limit_is_kept(world: World, keep: Limits) -> None:
    cuts = world.plan(keep)
    kept, gone = world.kept(cuts), world.gone(cuts)
    if keep == Limits():
        assert gone == []
    for place in gone:
        too_old = keep.age_s is not None and place.created_us < NOW_US - keep.age_s * 1_000_000
        too_many = keep.events is not None and rows(world.kept({})) > keep.events
        too_large = keep.bytes is not None and size(world.kept({})) > keep.bytes
        assert too_old or too_many or too_large
    for place in world.first_kept(cuts):
        assert keep.events is None or rows(kept) - (place.end - place.start) < keep.events
        assert keep.bytes is None or size(kept) - place.size_bytes < keep.bytes
        assert keep.age_s is None or place.created_us >= NOW_US - keep.age_s * 1_000_000


@given(worlds, st.lists(st.none() | st.integers(0, 300), min_size=4, max_size=4))
def test_a_work_queue_keeps_what_is_not_acked(world: World, acked: list[int | None]) -> None:
    floors = dict(enumerate(acked))
    cuts = world.plan(Consumed(), floors)
    for number, places in world.places.items():
        floor = floors[number]
        for place in places:
            assert (place in world.gone(cuts)) == (floor is not None and place.end <= floor) or (
                # The same batch may stand in several segments of the model.
                sum(place in ps for ps in world.places.values()) > 1
            )


@given(worlds, bounds, bounds, st.lists(st.none() | st.integers(0, 300), min_size=4, max_size=4))
@settings(max_examples=200)
def test_groups_hold_back_trimming_between_the_minimum_and_the_cap(
    world: World, keep: Limits, cap: Limits, acked: list[int | None]
) -> None:
    floors = dict(enumerate(acked))
    cuts = world.plan(Groups(keep=keep, cap=cap), floors)
    capped = world.plan(cap)
    for segment in world.segments:
        cut = cuts[segment.number]
        if cut > capped.get(segment.number, 0):
            # Beyond the cap, only what every group has acked may go.
            assert cut <= (floors[segment.number] or 0)
        assert cut >= capped.get(segment.number, 0)
    if cap == Limits() and keep != Limits():
        kept = world.kept(cuts)
        everything_held = world.kept({})
        assert keep.events is None or rows(kept) >= min(keep.events, rows(everything_held))
        assert keep.bytes is None or size(kept) >= min(keep.bytes, size(everything_held))
        if keep.age_s is not None:
            young_us = NOW_US - keep.age_s * 1_000_000
            assert all(place.created_us < young_us for place in world.gone(cuts))


# --- in the log ------------------------------------------------------------------------------


def fill(log: Log, count: int = 5, **config: Any) -> None:
    """Batches of ten events each."""
    create(log, **config)
    for first in range(0, count * 10, 10):
        log.append(
            "s", [event(n, timestamp=T0 + timedelta(minutes=n)) for n in range(first, first + 10)]
        )


def age(log: Log, below: int, by_s: int) -> None:
    """Make the batches below an offset older."""
    log.catalog.write(
        lambda tx: tx.execute(
            "UPDATE batches SET created_us = created_us - ? WHERE start_offset < ?",
            (by_s * 1_000_000, below),
        )
    )


def segment_id(log: Log, number: int = 0) -> int:
    segment = log.stream("s").segment(number)
    assert segment is not None
    return segment.id


def subscribe(log: Log, group: str, floor: int | None = None, number: int = 0) -> None:
    def apply(tx: Tx) -> None:
        progress.subscribe(tx, log.stream("s").id, group)
        if floor is not None:
            progress.put(tx, Progress(group, segment_id(log, number), floor))

    log.catalog.write(apply)


def test_without_limits_everything_is_kept(log: Log) -> None:
    fill(log)
    age(log, 50, 10**6)
    before = everything(log)
    assert log.trim("s") == {0: 0}
    assert everything(log) == before


def test_a_limit_of_events_is_applied_to_whole_batches(log: Log) -> None:
    fill(log, retention=Limits(events=25))
    assert log.trim("s") == {0: 20}
    assert numbers(log) == list(range(20, 50))
    segment = log.stream("s").segments[0]
    assert (segment.events, segment.head, segment.tail) == (30, 50, 20)
    assert 0 < segment.retained_bytes < segment.bytes
    before = everything(log)
    assert log.trim("s") == {0: 20}
    assert everything(log) == before
    log.append("s", [event(n) for n in range(50, 60)])
    assert log.trim("s") == {0: 30}


def test_markers_do_not_count_against_a_limit_of_events(log: Log) -> None:
    create(log, retention=Limits(events=25))
    for first in range(0, 50, 10):
        log.append("s", [event(n) for n in range(first, first + 10)])
        for _ in range(10):
            log.append_marker("s", 0, b"m")
    assert log.trim("s") == {0: 40}
    assert numbers(log) == list(range(20, 50))
    segment = log.stream("s").segments[0]
    assert (segment.events, segment.markers) == (30, 30)


def test_a_limit_of_bytes_follows_what_is_retained(log: Log) -> None:
    fill(log)
    found = log.catalog.read(lambda tx: tx.rows("SELECT bytes FROM batches ORDER BY start_offset"))
    sizes = [row[0] for row in found]
    log.configure_stream("s", retention=Limits(bytes=sum(sizes[2:])))
    assert log.trim("s") == {0: 20}
    assert log.stream("s").segments[0].retained_bytes == sum(sizes[2:])
    log.configure_stream("s", retention=Limits(bytes=sum(sizes[3:]) - 1))
    assert log.trim("s") == {0: 30}


def test_a_limit_of_age_goes_by_the_time_of_appending(log: Log) -> None:
    fill(log, retention=Limits(age_s=3600))
    assert log.trim("s") == {0: 0}
    age(log, 20, 3700)
    assert log.trim("s") == {0: 20}


def test_limits_hold_over_all_segments_oldest_first(log: Log) -> None:
    create(log, segments=4, retention=Limits(events=40))
    for call in range(10):
        log.append("s", [event(call, key=f"k{n}") for n in range(20)])
    log.split("s", 0)
    log.append("s", [event(10, key=f"k{n}") for n in range(20)])
    log.trim("s")
    kept = read(log)
    assert 40 <= len(kept) < 80
    assert min(int(row["value"]) for row in kept) >= 7


def test_a_work_queue_is_trimmed_as_its_group_acks(log: Log) -> None:
    fill(log, retention=Consumed())
    assert log.trim("s") == {0: 0}
    subscribe(log, "g")
    assert log.trim("s") == {0: 0}
    subscribe(log, "g", 25)
    assert log.trim("s") == {0: 20}
    subscribe(log, "slow")
    subscribe(log, "g", 50)
    assert log.trim("s") == {0: 20}
    stream_id = log.stream("s").id
    log.catalog.write(lambda tx: progress.unsubscribe(tx, stream_id, "slow"))
    assert log.trim("s") == {0: 50}
    assert read(log) == []
    log.append("s", event(50))
    assert numbers(log) == [50]


def test_groups_hold_back_and_a_cap_overrides_them(log: Log) -> None:
    fill(log, retention=Groups(keep=Limits(events=10)))
    subscribe(log, "fast", 50)
    subscribe(log, "slow", 15)
    assert log.trim("s") == {0: 10}
    subscribe(log, "slow", 50)
    assert log.trim("s") == {0: 40}
    subscribe(log, "late")
    log.append("s", [event(n) for n in range(50, 80)])
    assert log.trim("s") == {0: 40}
    log.configure_stream("s", retention=Groups(cap=Limits(events=15)))
    assert log.trim("s") == {0: 50}


def test_trimming_by_offset_and_by_time_overrides_the_policy(log: Log) -> None:
    fill(log)
    assert log.trim("s", {0: 9}) == {0: 0}
    assert log.trim("s", {0: 10}) == {0: 10}
    assert log.trim("s", {0: 5}) == {0: 10}
    assert log.trim("s", T0 + timedelta(minutes=25)) == {0: 20}
    assert log.trim("s", T0) == {0: 20}
    assert numbers(log) == list(range(20, 50))
    assert log.trim("s", T0 + timedelta(days=9)) == {0: 50}
    log.append("s", event(50))
    assert log.trim("s", {0: 10**12}) == {0: 51}
    with pytest.raises(TrimmedError) as caught:
        read(log, start=3)
    assert caught.value.first == 51


def test_trimming_by_time_keeps_late_events_of_earlier_times(log: Log) -> None:
    create(log)
    for minute in (30, 10, 40, 20):
        log.append("s", event(minute, timestamp=T0 + timedelta(minutes=minute)))
    log.trim("s", T0 + timedelta(minutes=35))
    assert set(numbers(log)) >= {40, 20}


def test_many_batches_are_trimmed_in_steps(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "TRIM_BATCHES_MAX", 3)
    monkeypatch.setattr(retain, "PAGE", 2)
    fill(log, 10, retention=Limits(events=10))
    before = log.catalog.statistics()["commits"]
    assert log.trim("s") == {0: 90}
    assert log.catalog.statistics()["commits"] - before >= 3
    assert numbers(log) == list(range(90, 100))


def test_a_read_under_way_finishes_a_file_that_is_trimmed(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 1000)
    monkeypatch.setattr(limits, "READ_ROWS", 50)
    create(log)
    log.append("s", table(300))
    log.append("s", table(300))
    reader = log.reader("s", Query())
    first = reader.next()
    assert first is not None
    log.trim("s", {0: 300})
    count = first.num_rows
    while count < 300:
        batch = reader.next()
        assert batch is not None
        count += batch.num_rows
    assert len(files(log)) == 2


def test_a_policy_that_changes_with_time_never_takes_too_much(log: Log) -> None:
    """Trims between appends, again and again: the newest events are always there."""
    create(log, segments=2, retention=Limits(events=30))
    for call in itertools.islice(itertools.count(), 25):
        log.append("s", [event(call * 10 + n, key=f"k{n}") for n in range(10)])
        log.trim("s")
        kept = set(numbers(log))
        assert len(kept) >= min(30, (call + 1) * 10)
        assert kept >= set(range(call * 10, call * 10 + 10))
