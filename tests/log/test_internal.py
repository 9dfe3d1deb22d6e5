"""Streams that belong to groups, and streams whose segments are partitions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.catalog.streams import Consumed, Fixed, StreamConfig
from headrace.errors import (
    InternalStreamError,
    InvalidConfigError,
    InvalidEventError,
    InvalidNameError,
    NoStreamError,
    StreamExistsError,
    TilingError,
)
from headrace.log import internal
from headrace.log.events import Event
from headrace.log.given import to_batch
from headrace.log.log import Log
from headrace.subjects import route_partition, route_partition_array


def test_internal_stream_takes_events_by_segment_and_is_read_like_any_other(log: Log) -> None:
    log.create_internal_stream("orders.billing", 3, Consumed())
    write = log.write_of()
    write.add(
        "orders.billing", to_batch(Event(subject="2.a", value=b"x")), segment=2, captured=True
    )
    log.commit(write)
    (batch,) = log.read("orders.billing")
    assert batch.column("subject").to_pylist() == ["2.a"]
    assert [s.events for s in log.stream("orders.billing").segments] == [0, 0, 1]


def test_internal_stream_captures_nothing_and_overlaps_nothing(log: Log) -> None:
    log.create_internal_stream("orders.billing", 1)
    with pytest.raises(NoStreamError):
        log.publish(Event(subject="0.a", value=b""))
    log.create_stream("all", StreamConfig(subjects=(">",)))
    assert log.publish(Event(subject="0.a", value=b"")).stream == "all"
    assert [stream.name for stream in log.streams()] == ["all"]
    assert [s.name for s in log.streams(internal=True)] == ["all", "orders.billing"]


def test_people_cannot_change_an_internal_stream(log: Log) -> None:
    log.create_internal_stream("orders.billing", 2)
    with pytest.raises(InternalStreamError, match="goes when the group is deleted"):
        log.delete_stream("orders.billing")
    with pytest.raises(InternalStreamError):
        log.configure_stream("orders.billing", scaling=Fixed())
    with pytest.raises(InternalStreamError):
        log.split("orders.billing", 0)
    with pytest.raises(InvalidEventError, match="which alone appends"):
        log.append("orders.billing", Event(subject="0.a", value=b""))
    with pytest.raises(InvalidNameError):
        log.create_stream("orders.billing", StreamConfig(subjects=("a",)))
    assert len(log.stream("orders.billing").segments) == 2


def test_internal_streams_are_made_once_and_need_a_name_of_their_own(log: Log) -> None:
    made = log.create_internal_stream("a.b", 2, Consumed())
    assert log.create_internal_stream("a.b", 2, Consumed()) == made
    with pytest.raises(StreamExistsError, match="another form"):
        log.create_internal_stream("a.b", 3, Consumed())
    with pytest.raises(InvalidConfigError, match="holds no"):
        log.create_internal_stream("ab", 1)
    with pytest.raises(InvalidConfigError):
        log.create_internal_stream("a.c", 0)
    with pytest.raises(InvalidConfigError, match="only groups"):
        log.create_stream("mine", StreamConfig(subjects=("a",), internal=True))
    assert log.catalog.write(lambda tx: internal.delete(tx, "a.b"))
    assert not log.catalog.write(lambda tx: internal.delete(tx, "a.b"))


def test_partition_is_the_number_of_the_segment(log: Log) -> None:
    stream = log.create_stream("orders", StreamConfig(subjects=("orders.>",), partitions=5))
    assert [s.number for s in stream.open_segments] == [0, 1, 2, 3, 4]
    sent = [Event(subject=f"orders.{n}", value=b"") for n in range(200)]
    log.append("orders", sent[:100])
    for event in sent[100:110]:
        log.publish(event)
    log.append("orders", sent[110:])
    for number in range(5):
        found = [
            subject
            for batch in log.read("orders")
            if batch.num_rows
            for subject, at in zip(
                batch.column("subject").to_pylist(),
                batch.column("segment").to_pylist(),
                strict=True,
            )
            if at == number
        ]
        assert found == [
            e.subject for e in sent if route_partition(None, e.subject, (), 5) == number
        ]


def test_partitions_are_never_scaled(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",), partitions=2))
    with pytest.raises(TilingError, match="cannot be split or merged"):
        log.split("orders", 0)
    with pytest.raises(InvalidConfigError, match="one segment for each"):
        log.create_stream("other", StreamConfig(subjects=("o.>",), partitions=2), segments=3)
    with pytest.raises(InvalidConfigError):
        log.create_stream("other", StreamConfig(subjects=("o.>",), partitions=-1))


def test_partition_of_a_column_is_that_of_each_row() -> None:
    subjects = [f"a.{n % 7}.{n}" if n % 3 else "a" for n in range(100)]
    keys = [f"k{n}" if n % 4 == 0 else None for n in range(100)]
    for tokens in ((), (2,), (3, 2), (9,)):
        for few in (10, 100):
            column = route_partition_array(
                pa.array(keys[:few]), pa.array(subjects[:few]), tokens, 13
            )
            alone = [
                route_partition(k, s, tokens, 13)
                for k, s in zip(keys[:few], subjects[:few], strict=True)
            ]
            assert column.tolist() == alone


def test_tokens_are_joined_without_a_separator() -> None:
    assert route_partition(None, "x.ab.c", (2, 3), 97) == route_partition(
        None, "x.a.bc", (2, 3), 97
    )
