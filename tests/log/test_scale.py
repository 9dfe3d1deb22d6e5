"""Scale: one atomic step that keeps every event and the order within every key."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog import Catalog, Tx, streams
from headrace.catalog.streams import KEY_SPACE, Segment, Stream, StreamConfig
from headrace.errors import (
    HeadraceError,
    InvalidConfigError,
    SegmentSealedError,
    TilingError,
    UnknownSegmentError,
    UnknownStreamError,
)
from headrace.log import limits, scale
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.store import Store
from tests.log.helpers import check_dense, create, event, everything, heads, per_key, read, table
from tests.support import process, wait_until


def open_ranges(log: Log) -> list[tuple[int, int]]:
    found = [(s.range_lo, s.range_hi) for s in log.stream("s").segments if not s.sealed]
    return sorted(found)


def check_tiled(log: Log) -> None:
    ranges = open_ranges(log)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == KEY_SPACE
    assert all(a[1] == b[0] for a, b in pairwise(ranges))


def wait_for_appends(log: Log) -> None:
    """Let the writers of a race come to their turn."""
    before = sum(heads(log).values())
    wait_until(lambda: sum(heads(log).values()) > before, "an append")


def test_a_split_seals_one_segment_and_opens_its_parts(log: Log) -> None:
    create(log, segments=2)
    log.append("s", table(20))
    done = log.split("s", 0, 3)
    assert (done.sealed, done.opened) == ((0,), (2, 3, 4))
    stream = log.stream("s")
    assert [segment.sealed for segment in stream.segments] == [True, False, False, False, False]
    assert stream.segments[0].successors == (2, 3, 4)
    assert [stream.segments[n].predecessors for n in (2, 3, 4)] == [(0,)] * 3
    assert [stream.segments[n].head for n in (2, 3, 4)] == [0] * 3
    check_tiled(log)
    log.append("s", table(20))
    assert len(read(log)) == 40


def test_a_merge_joins_neighbours_in_any_order(log: Log) -> None:
    create(log, segments=4)
    assert log.merge("s", [2, 1]).opened == (4,)
    assert set(log.stream("s").segments[4].predecessors) == {1, 2}
    check_tiled(log)
    assert log.merge("s", [3, 0, 4]).opened == (5,)
    assert open_ranges(log) == [(0, KEY_SPACE)]


def test_a_retile_draws_edges_only_between_what_overlaps(log: Log) -> None:
    create(log, segments=2)
    half, quarter = KEY_SPACE // 2, KEY_SPACE // 4
    log.retile("s", [0, 1], [(half + quarter, KEY_SPACE), (0, quarter), (quarter, half + quarter)])
    stream = log.stream("s")
    assert [s.range_lo for s in stream.segments[2:]] == [0, quarter, half + quarter]
    assert [s.predecessors for s in stream.segments[2:]] == [(0,), (0, 1), (1,)]
    check_tiled(log)


def test_segments_apart_can_be_retiled_together(log: Log) -> None:
    create(log, segments=4)
    quarter = KEY_SPACE // 4
    log.retile("s", [0, 2], [(0, quarter), (2 * quarter, 3 * quarter)])
    check_tiled(log)


def test_a_scaling_that_does_not_fit_is_refused(log: Log) -> None:
    create(log, segments=4)
    log.append("s", table(20))
    log.split("s", 3, 2)
    before = everything(log)
    q = KEY_SPACE // 4
    bad: list[tuple[type[HeadraceError], Callable[[], Any]]] = [
        (SegmentSealedError, lambda: log.split("s", 3)),
        (SegmentSealedError, lambda: log.merge("s", [3, 2])),
        (UnknownSegmentError, lambda: log.split("s", 9)),
        (UnknownSegmentError, lambda: log.retile("s", [0, 9], [(0, q)])),
        (UnknownStreamError, lambda: log.split("none", 0)),
        (TilingError, lambda: log.split("s", 0, 1)),
        (TilingError, lambda: log.split("s", 0, 0)),
        (TilingError, lambda: log.split("s", 0, -2)),
        (TilingError, lambda: log.split("s", 0, streams.SEGMENTS_MAX + 1)),
        (InvalidConfigError, lambda: log.split("s", 0, streams.SEGMENTS_MAX)),
        (TilingError, lambda: log.merge("s", [0])),
        (TilingError, lambda: log.merge("s", [])),
        (TilingError, lambda: log.merge("s", [0, 0])),
        (TilingError, lambda: log.merge("s", [0, 2])),
        (TilingError, lambda: log.retile("s", [0], [])),
        (TilingError, lambda: log.retile("s", [], [(0, q)])),
        (TilingError, lambda: log.retile("s", [0], [(0, q - 1)])),
        (TilingError, lambda: log.retile("s", [0], [(1, q)])),
        (TilingError, lambda: log.retile("s", [0], [(0, q + 1)])),
        (TilingError, lambda: log.retile("s", [0], [(0, 5), (6, q)])),
        (TilingError, lambda: log.retile("s", [0], [(0, 7), (6, q)])),
        (TilingError, lambda: log.retile("s", [0], [(0, q), (0, q)])),
        (TilingError, lambda: log.retile("s", [0], [(0, 0), (0, q)])),
        (TilingError, lambda: log.retile("s", [0], [(q, 0)])),
        (TilingError, lambda: log.retile("s", [0], [(-1, q)])),
        (TilingError, lambda: log.retile("s", [0], [(0, KEY_SPACE + 1)])),
    ]
    for error, call in bad:
        with pytest.raises(error):
            call()
        assert everything(log) == before


@given(
    st.lists(st.integers(1, KEY_SPACE - 1), max_size=6, unique=True),
    st.lists(st.integers(1, KEY_SPACE - 1), max_size=6, unique=True),
)
def test_only_tilings_of_the_same_keys_are_taken(old: list[int], new: list[int]) -> None:
    def ranges(cuts: list[int]) -> list[tuple[int, int]]:
        edges = [0, *sorted(cuts), KEY_SPACE]
        return list(pairwise(edges))

    sealed = [
        Segment(n, n, lo, hi, 0, 0, 0, 0, 0, 0, None) for n, (lo, hi) in enumerate(ranges(old))
    ]
    wanted = ranges(new)
    assert scale.check_tiling(sealed, list(reversed(wanted))) == wanted
    if len(wanted) > 1:
        with pytest.raises(TilingError):
            scale.check_tiling(sealed, wanted[1:])
    with pytest.raises(TilingError):
        scale.check_tiling(sealed, [*wanted, wanted[0]])


@given(st.integers(0, KEY_SPACE - 1), st.integers(1, 5000), st.integers(1, 50))
def test_even_parts_cover_the_range_and_differ_by_one_at_most(
    lo: int, width: int, parts: int
) -> None:
    if parts > width:
        with pytest.raises(TilingError):
            scale.even_ranges(lo, lo + width, parts)
        return
    found = scale.even_ranges(lo, lo + width, parts)
    assert (found[0][0], found[-1][1], len(found)) == (lo, lo + width, parts)
    sizes = {hi - lo for lo, hi in found}
    assert max(sizes) - min(sizes) <= 1


# --- order through any sequence of scalings ---------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_random_scalings_keep_every_key_in_order(
    log: Log, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Against a model: appends, scalings and trims at random; readers of several kinds."""
    rng = random.Random(seed)
    monkeypatch.setattr(limits, "INLINE_BYTES", 2000)
    monkeypatch.setattr(limits, "READ_ROWS", 25)
    create(log, segments=rng.randrange(1, 4))
    model: dict[str, list[str]] = {}
    follower = log.reader("s", Query(follow=True))
    followed: list[dict[str, Any]] = []
    resumed: list[dict[str, Any]] = []
    place: Any = "earliest"
    count = 0
    for _ in range(70):
        open_now = sorted(
            (s for s in log.stream("s").segments if not s.sealed), key=lambda s: s.range_lo
        )
        match rng.randrange(6):
            case 0 if len(open_now) < 12:
                log.split("s", rng.choice(open_now).number, rng.randrange(2, 4))
            case 1 if len(open_now) > 1:
                at = rng.randrange(len(open_now) - 1)
                log.merge("s", [s.number for s in open_now[at : at + 2]])
            case 2:
                at = rng.randrange(len(open_now))
                chosen = open_now[at : at + rng.randrange(1, 4)]
                lo, hi = chosen[0].range_lo, chosen[-1].range_hi
                cuts = sorted({lo, hi, *(rng.randrange(lo, hi) for _ in range(2))})
                log.retile("s", [s.number for s in chosen], list(pairwise(cuts)))
            case 3:
                while (batch := follower.next()) is not None:
                    followed.extend(batch.to_pylist())
            case 4:
                reader = log.reader("s", Query(start=place, limit=rng.randrange(1, 60)))
                while (batch := reader.next()) is not None:
                    resumed.extend(batch.to_pylist())
                place = reader.positions
            case _:
                made = []
                for _ in range(rng.choice((1, 3, 60))):
                    key = f"k{rng.randrange(12)}"
                    model.setdefault(key, []).append(str(count))
                    made.append(event(count, key=key))
                    count += 1
                log.append("s", made)
        check_tiled(log)
    while (batch := follower.next()) is not None:
        followed.extend(batch.to_pylist())
    resumed.extend(read(log, start=place))
    for rows in (read(log), followed, resumed):
        check_dense(rows)
        assert per_key(rows) == model
    filtered = read(log, subject="s.x")
    assert per_key(filtered) == model


# --- races -----------------------------------------------------------------------------------


def test_scaling_under_threads_that_append_loses_nothing(
    log: Log, reopen: Callable[[], Catalog], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 1500)
    create(log, segments=2)
    logs = (log, Log(reopen(), store))
    appended: dict[str, list[str]] = {}
    errors: list[BaseException] = []
    stop = threading.Event()

    def write(number: int) -> None:
        mine = logs[number % 2]
        count = 0
        try:
            while not stop.is_set():
                made = [event(f"{count}.{n}", key=f"w{number}-{n % 4}") for n in range(24)]
                mine.append("s", made)
                for one in made:
                    assert one.key is not None
                    appended.setdefault(one.key, []).append(one.value.decode())
                count += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    rng = random.Random(3)
    scaler = Log(reopen(), None)
    for _ in range(25):
        open_now = sorted(
            (s for s in scaler.stream("s").segments if not s.sealed), key=lambda s: s.range_lo
        )
        if len(open_now) > 4:
            at = rng.randrange(len(open_now) - 1)
            scaler.merge("s", [s.number for s in open_now[at : at + 2]])
        else:
            scaler.split("s", rng.choice(open_now).number, 2)
        wait_for_appends(scaler)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    rows = read(log)
    check_dense(rows)
    assert per_key(rows) == appended
    assert log.store is not None
    recorded = log.catalog.read(lambda tx: tx.rows("SELECT path FROM batches WHERE path <> ''"))
    assert sorted(row[0] for row in recorded) == sorted(f.path for f in log.store.list(""))


def test_scaling_under_processes_that_append_loses_nothing(log: Log, catalog_url: str) -> None:
    create(log)
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(process("tests.log.worker", catalog_url, name))
            for name in ("a", "b", "c")
        }
        for worker in workers.values():
            assert worker.line() == "ready"
        for step in range(12):
            open_now = [s.number for s in log.stream("s").segments if not s.sealed]
            if step % 3 == 2:
                log.merge("s", open_now)
            else:
                log.split("s", open_now[0], 3)
            wait_for_appends(log)
        for worker in workers.values():
            worker.tell("stop")
        counts = {name: int(worker.line()) for name, worker in workers.items()}
        for worker in workers.values():
            worker.finish()
    rows = read(log)
    check_dense(rows)
    assert per_key(rows) == {
        f"{name}-{key}": [f"{name}-{key}:{n}" for n in range(count)]
        for name, count in counts.items()
        for key in range(5)
        if count
    }
    assert sum(counts.values()) >= 12


def test_readers_under_scaling_and_appending_see_order(
    log: Log, reopen: Callable[[], Catalog], store: Store
) -> None:
    """A follower in step with writers and a scaler; and it ends with everything."""
    create(log)
    follower = Log(reopen(), store)
    seen: list[dict[str, Any]] = []
    errors: list[BaseException] = []
    total = 40 * 10

    def follow() -> None:
        try:
            for batch in follower.read("s", Query(follow=True)):
                seen.extend(batch.to_pylist())
                if len(seen) >= total:
                    return
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    for step in range(40):
        log.append("s", [event(step, key=f"k{n}") for n in range(10)])
        if step % 8 == 3:
            log.split("s", next(s.number for s in log.stream("s").segments if not s.sealed))
        if step % 16 == 7:
            log.merge("s", [s.number for s in log.stream("s").segments if not s.sealed])
    thread.join(20)
    assert not thread.is_alive()
    assert errors == []
    check_dense(seen)
    assert per_key(seen) == {f"k{n}": [str(step) for step in range(40)] for n in range(10)}


def test_of_concurrent_scalings_of_a_segment_one_happens(
    log: Log, reopen: Callable[[], Catalog]
) -> None:
    create(log)
    logs = (log, Log(reopen(), None))
    outcomes: list[object] = []

    def race(number: int) -> None:
        try:
            outcomes.append(logs[number % 2].split("s", 0, 2 + number))
        except SegmentSealedError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(outcome, SegmentSealedError) for outcome in outcomes) == 5
    check_tiled(log)


def test_a_stream_that_is_split_while_it_is_read_shows_no_segment_without_its_past(
    log: Log,
) -> None:
    """Statements of one transaction may see different moments on PostgreSQL."""
    log.create_stream("s", StreamConfig(subjects=("s.>",)))
    seen = []
    for query in streams.asking("s"):
        seen.append(log.catalog.read(partial(_rows, query)))
        if len(seen) == 2:
            log.split("s", 0)
    (found,) = streams._streams(*seen)
    assert isinstance(found, Stream)
    assert [(each.number, each.successors) for each in found.segments] == [(0, ())]
    assert [each.predecessors for each in log.stream("s").segments] == [(), (0,), (0,)]


def _rows(query: Any, tx: Tx) -> list[Any]:
    return list(tx.rows(*query))
