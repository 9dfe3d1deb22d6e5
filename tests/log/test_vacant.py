"""Segments of which nothing is left go, and nobody who reads is led astray by it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog import progress
from headrace.catalog.progress import Progress
from headrace.catalog.streams import Epochs, StreamConfig
from headrace.errors import SegmentGoneError, TrimmedError, UnknownSegmentError
from headrace.log import order
from headrace.log.audit import examine
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.log.vacant import drop_vacant
from tests.log.helpers import create, event, numbers, values


def segments(log: Log) -> list[int]:
    return [segment.number for segment in log.stream("s").segments]


def trim_all(log: Log, *only: int) -> None:
    stream = log.stream("s")
    log.trim("s", {s.number: s.head for s in stream.segments if s.number in only or not only})


def drop(log: Log, **more: Any) -> tuple[int, ...]:
    return drop_vacant(log.catalog, "s", grace_s=-1, **more)


def test_what_is_sealed_and_trimmed_goes_and_the_rest_is_read_as_before(log: Log) -> None:
    create(log, segments=2)
    log.append("s", [event(number, key=str(number)) for number in range(20)])
    log.split("s", 0)
    log.merge("s", [2, 3])
    assert drop(log) == ()  # events are left in 0
    trim_all(log, 0)
    before = sorted(numbers(log))
    assert drop(log) == (0, 2, 3)
    assert segments(log) == [1, 4]
    assert sorted(numbers(log)) == before
    assert list(examine(log)) == []
    create(log, segments=2)  # in the same way as before
    log.split("s", 4)
    assert segments(log) == [1, 4, 5, 6]  # numbers are not used again


def test_a_stream_that_is_scaled_and_trimmed_for_long_stays_small(log: Log) -> None:
    create(log)
    last: tuple[int, ...] = (0,)
    for number in range(15):
        opened = log.split("s", last[0]).opened
        log.append("s", [event(number, key="a")])
        last = log.merge("s", opened).opened
        trim_all(log)
        drop(log)
        assert len(segments(log)) <= 3


def test_an_empty_segment_stays_as_long_as_one_that_it_follows(log: Log) -> None:
    create(log)
    log.append("s", [event(1, key="a")])
    log.split("s", 0)
    log.merge("s", [1, 2])
    log.append("s", [event(2, key="a")])
    assert drop(log) == ()
    assert segments(log) == [0, 1, 2, 3]
    assert numbers(log) == [1, 2]


def test_a_segment_stays_until_every_group_has_passed_it(log: Log) -> None:
    create(log)
    log.append("s", [event(number) for number in range(3)])
    first = log.stream("s").segments[0]
    log.catalog.write(lambda tx: progress.subscribe(tx, first.id, "g"))
    log.split("s", 0)
    trim_all(log)
    assert drop(log) == ()
    log.catalog.write(lambda tx: progress.put(tx, Progress("g", first.id, 2)))
    assert drop(log) == ()
    log.catalog.write(lambda tx: progress.put(tx, Progress("g", first.id, 3)))
    log.catalog.write(lambda tx: progress.put(tx, Progress("let-go", first.id, 1)))
    assert drop(log) == ()
    log.catalog.write(lambda tx: progress.put(tx, Progress("let-go", first.id, 3)))
    assert drop(log, named=lambda _tx, _stream: {0}) == ()
    assert drop(log) == (0,)
    assert log.catalog.read(lambda tx: progress.floors(tx, [first.id])) == {}


def test_it_stays_for_a_while_after_it_was_sealed(log: Log) -> None:
    create(log)
    log.split("s", 0)
    assert drop_vacant(log.catalog, "s") == ()
    assert drop_vacant(log.catalog, "gone") == ()


def test_a_stream_with_epochs_keeps_its_segments(log: Log) -> None:
    log.create_stream("s", StreamConfig(subjects=("s.>",), epochs=Epochs()))
    log.split("s", 0)
    assert drop(log) == ()


def test_a_place_in_a_segment_that_is_gone_is_an_error_that_says_so(log: Log) -> None:
    create(log)
    log.append("s", [event(1, key="a")])
    log.split("s", 0)
    trim_all(log)
    drop(log)
    for query in (
        Query(start={0: 1}),
        Query(start={0: 0}, follow=True),
        Query(segments=[0]),
        Query(until={0: 1}),
    ):
        with pytest.raises(SegmentGoneError, match="segment 0") as error:
            log.reader("s", query)
        assert isinstance(error.value, TrimmedError)
    with pytest.raises(UnknownSegmentError):
        log.reader("s", Query(start={7: 0}))


def test_a_read_that_stood_still_in_a_segment_that_is_gone_is_told(log: Log) -> None:
    create(log)
    log.append("s", [event(1, key="a")])
    at_the_end = log.reader("s", Query(follow=True))
    before_it = log.reader("s", Query(follow=True))
    bounded = log.reader("s", Query())
    assert at_the_end.next() is not None
    opened = log.split("s", 0).opened
    log.merge("s", opened)
    log.append("s", [event(2, key="a")])
    trim_all(log, 0)
    drop(log)
    for reader in (at_the_end, before_it, bounded):
        with pytest.raises(SegmentGoneError):
            reader.next()


def test_a_read_that_follows_goes_on_where_it_has_finished_what_goes(log: Log) -> None:
    create(log)
    log.append("s", [event(1, key="a")])
    reader = log.reader("s", Query(follow=True))
    assert reader.next() is not None
    log.split("s", 0)
    assert reader.next() is None
    trim_all(log, 0)
    drop(log)
    log.append("s", [event(2, key="a")])
    assert reader.next() is not None
    assert values(log) == ["2"]


@given(st.data())
def test_for_whoever_has_passed_it_nothing_changes(data: st.DataObject) -> None:
    """What is ready, waiting and finished in what stays is the same before and after."""
    count = data.draw(st.integers(1, 9))
    graph = {
        number: tuple(sorted(data.draw(st.sets(st.integers(0, number - 1), max_size=3))))
        if number
        else ()
        for number in range(count)
    }
    some = st.sets(st.integers(0, count - 1))
    through = data.draw(some)
    empty = data.draw(some)
    passed = empty & through
    gone = order.standing(graph, passed).finished
    left = {
        number: tuple(p for p in before if p not in gone)
        for number, before in graph.items()
        if number not in gone
    }
    before, after = order.standing(graph, through), order.standing(left, through)
    assert after.ready == before.ready
    assert after.waiting == before.waiting
    assert after.finished == before.finished - gone
