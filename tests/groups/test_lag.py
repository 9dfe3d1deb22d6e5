"""Lag in events, bytes and seconds, from the catalog alone."""

from __future__ import annotations

from headrace.catalog import Tx
from headrace.catalog.streams import StreamConfig
from headrace.groups.consumer.acks import store
from headrace.groups.lag import GroupLag, group_lag
from headrace.groups.progress import Progress
from headrace.log.events import Event
from headrace.log.log import Log


def lag(log: Log) -> GroupLag:
    return log.catalog.read(lambda tx: group_lag(tx, "g", "orders"), snapshot=True)


def progress(log: Log, progress: Progress, segment: int = 0) -> None:
    found = log.stream("orders").segment(segment)
    assert found is not None
    segment_id = found.id

    def put(tx: Tx) -> None:
        store(tx, "g", segment_id, progress)

    log.catalog.write(put)


def test_lag_counts_what_is_not_acked(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    assert lag(log).events == 0
    assert lag(log).seconds == 0
    events = [Event(subject="orders.x", value=bytes(100)) for _ in range(10)]
    log.append("orders", events)
    log.append("orders", events)
    everything = lag(log)
    (unit,) = everything.units
    assert (everything.events, unit.floor, unit.head) == (20, 0, 20)
    assert everything.bytes == log.stream("orders").segments[0].bytes
    assert 0 <= everything.seconds < 60
    progress(log, Progress(10, ((15, 20),)))
    half = lag(log)
    assert half.events == 5
    assert 0 < half.bytes < everything.bytes / 2
    progress(log, Progress(20))
    done = lag(log)
    assert (done.events, done.bytes, done.seconds) == (0, 0, 0)


def test_what_was_trimmed_does_not_count(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    for _ in range(2):
        log.append("orders", [Event(subject="orders.x", value=b"") for _ in range(10)])
    progress(log, Progress(3, ((5, 6), (12, 13))))
    log.trim("orders", {0: 10})
    assert lag(log).events == 9


def test_markers_do_not_count(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    for _ in range(5):
        log.append("orders", [Event(subject="orders.x", value=b"") for _ in range(2)])
        log.append_marker("orders", 0, b"m")
    assert lag(log).events == 10
    progress(log, Progress(3, ((4, 6), (8, 9))))  # a marker at 2, 5, 8, 11 and 14
    assert lag(log).events == 7
    progress(log, Progress(14))
    assert (lag(log).events, lag(log).bytes, lag(log).seconds) == (0, 0, 0)


def test_the_group_is_as_late_as_its_latest_unit(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)), segments=2)
    log.append("orders", [Event(subject="orders.x", value=b"", key=str(n)) for n in range(50)])
    heads = [segment.head for segment in log.stream("orders").segments]
    progress(log, Progress(heads[0]))
    found = lag(log)
    assert found.events == heads[1]
    assert found.seconds == found.units[1].seconds
    assert found.units[0].seconds == 0
