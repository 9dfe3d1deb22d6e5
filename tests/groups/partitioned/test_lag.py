"""Lag of a group in one segment, from the catalog alone."""

from __future__ import annotations

from headrace.catalog import Tx
from headrace.catalog import progress as stored
from headrace.catalog.streams import Segment, StreamConfig
from headrace.groups.partitioned.lag import UnitLag, unit_lag
from headrace.groups.progress import Progress
from headrace.log.events import Event
from headrace.log.log import Log


def segment_of(log: Log) -> Segment:
    (segment,) = log.stream("orders").segments
    return segment


def lag(log: Log) -> UnitLag:
    return log.catalog.read(lambda tx: unit_lag(tx, "g", segment_of(log)), snapshot=True)


def acked(log: Log, progress: Progress) -> None:
    segment_id = segment_of(log).id

    def put(tx: Tx) -> None:
        stored.put(tx, stored.Progress("g", segment_id, progress.floor, progress.encode()))

    log.catalog.write(put)


def append(log: Log, count: int) -> None:
    log.append("orders", [Event(subject="orders.x", value=bytes(100)) for _ in range(count)])


def test_lag_counts_what_is_retained_and_not_acked(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    assert lag(log) == UnitLag(0, 0, 0.0)
    append(log, 10)
    append(log, 10)
    everything = lag(log)
    assert everything.events == 20
    assert everything.bytes == segment_of(log).bytes
    assert 0 <= everything.seconds < 60
    acked(log, Progress(3, ((5, 6), (12, 13))))
    assert lag(log).events == 15
    log.trim("orders", {0: 10})
    assert lag(log).events == 9
    acked(log, Progress(20))
    assert lag(log) == UnitLag(0, 0, 0.0)


def test_markers_do_not_count(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    for _ in range(5):
        append(log, 2)
        log.append_marker("orders", 0, b"m")  # at 2, 5, 8, 11 and 14
    assert lag(log).events == 10
    acked(log, Progress(3, ((4, 6), (8, 9))))
    assert lag(log).events == 7
    acked(log, Progress(14))
    assert lag(log) == UnitLag(0, 0, 0.0)
