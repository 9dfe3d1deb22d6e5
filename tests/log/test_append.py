"""Append: one, many or Arrow; offsets, order, idempotence, conditions, all or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.catalog import Catalog, producers
from headrace.catalog.producers import Placed
from headrace.catalog.streams import KEY_SPACE, StreamConfig
from headrace.errors import (
    HeadMoved,
    InvalidEventError,
    InvalidInputError,
    NoStreamError,
    SequenceError,
    SequenceReusedError,
    StoreUnavailableError,
    UnknownSegmentError,
    UnknownStreamError,
)
from headrace.log import events, limits
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.events import Event
from headrace.log.given import to_batch
from headrace.log.joined import Joined
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.store import Store
from headrace.subjects import route_hash
from tests.log.helpers import (
    check_dense,
    create,
    event,
    everything,
    files,
    heads,
    numbers,
    per_key,
    read,
    table,
    values,
)

pytestmark = pytest.mark.usefixtures("either_way")


def test_one_event_is_read_back_with_all_its_parts(log: Log) -> None:
    create(log)
    at = datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC)
    placed = log.append(
        "s",
        Event(
            subject="s.eu.1",
            value=b"\x00\xff",
            key="k",
            headers={"a": b"1", "b": "zwei"},
            timestamp=at,
            epoch=(1, 2),
        ),
    )
    assert placed == (Placed("s", 0, 0, 1),)
    assert read(log) == [
        {
            "segment": 0,
            "offset": 0,
            "timestamp": at,
            "subject": "s.eu.1",
            "key": "k",
            "value": b"\x00\xff",
            "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": b"zwei"}],
            "epoch": [1, 2],
            "origin": None,
        }
    ]


def test_what_was_not_given_is_null_and_the_time_is_now(log: Log) -> None:
    create(log)
    before = datetime.now(UTC)
    log.append("s", Event(subject="s.x", value=b""))
    (row,) = read(log)
    assert before - timedelta(milliseconds=1) <= row["timestamp"] <= datetime.now(UTC)
    assert [row[name] for name in ("key", "headers", "epoch", "origin")] == [None] * 4


def test_events_with_and_without_parts_stand_side_by_side(log: Log) -> None:
    create(log)
    log.append("s", [event(0), event(1, key="k"), event(2, headers={"h": b"x"}), event(3)])
    log.append("s", event(4))
    log.append("s", event(5, epoch=(9,)))
    rows = read(log)
    assert [row["key"] for row in rows] == [None, "k", None, None, None, None]
    assert [row["headers"] for row in rows][2] == [{"key": "h", "value": b"x"}]
    assert [row["epoch"] for row in rows] == [None] * 5 + [[9]]
    check_dense(rows)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_value_may_be_any_bytes(log: Log, kind: Callable[[bytes], Any]) -> None:
    create(log)
    log.append("s", [Event(subject="s.x", value=kind(b"abc")) for _ in range(2)])
    log.append("s", Event(subject="s.x", value=kind(b"abc")))
    assert values(log) == ["abc"] * 3


def test_a_value_that_is_a_strided_view_is_taken_as_its_bytes(log: Log) -> None:
    create(log)
    strided = memoryview(b"a-b-c-")[::2]
    wide = np.arange(3, dtype=np.int32).data
    for value in (strided, wide):
        log.append("s", Event(subject="s.x", value=value))  # type: ignore[arg-type]
    assert [row["value"] for row in read(log)] == [b"abc", np.arange(3, dtype=np.int32).tobytes()]


def test_times_without_zone_are_utc_and_others_are_converted(log: Log) -> None:
    create(log)
    naive = datetime(2024, 1, 1, 12)
    west = datetime(2024, 1, 1, 7, tzinfo=timezone(timedelta(hours=-5)))
    log.append("s", [event(0, timestamp=naive), event(1, timestamp=west)])
    log.append("s", event(2, timestamp=datetime.min))
    log.append("s", event(3, timestamp=datetime.max))
    stamps = [row["timestamp"] for row in read(log)]
    assert stamps[:2] == [datetime(2024, 1, 1, 12, tzinfo=UTC)] * 2
    assert stamps[2:] == [moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max)]


def test_an_iterable_may_be_a_generator_and_may_be_empty(log: Log) -> None:
    create(log, segments=3)
    assert log.append("s", (event(n) for n in range(5)))[0].start == 0
    assert log.append("s", []) == ()
    assert log.append("s", table(0)) == ()
    assert len(read(log)) == 5


def test_offsets_are_dense_and_order_within_a_key_is_kept(log: Log) -> None:
    create(log, segments=4)
    placed = [
        log.append("s", [event(f"{call}.{n}", key=f"k{n % 5}") for n in range(20)])
        for call in range(3)
    ]
    rows = read(log)
    check_dense(rows)
    assert sum(spot.count for call in placed for spot in call) == 60
    expected = {
        f"k{k}": [f"{call}.{n}" for call in range(3) for n in range(20) if n % 5 == k]
        for k in range(5)
    }
    assert per_key(rows) == expected


def test_a_key_goes_to_the_segment_that_owns_its_hash(log: Log) -> None:
    create(log, segments=5)
    stream = log.stream("s")
    log.append("s", table(500, keys=100))
    for number in range(20):
        log.append("s", event("one", key=f"k{number}"))
    for row in read(log):
        segment = stream.segment(row["segment"])
        assert segment is not None
        found = route_hash(row["key"], row["subject"], ())
        assert segment.range_lo <= found < segment.range_hi
    assert (stream.segments[0].range_lo, stream.segments[-1].range_hi) == (0, KEY_SPACE)


def test_without_a_key_the_chosen_tokens_of_the_subject_decide(log: Log) -> None:
    log.create_stream("s", StreamConfig(subjects=("s.>",), key_tokens=(2,)), segments=8)
    log.append("s", [Event(subject=f"s.a.{n}", value=b"") for n in range(30)])
    log.append("s", Event(subject="s.a.one", value=b""))
    assert len({row["segment"] for row in read(log)}) == 1


def test_positions_follow_the_input(log: Log) -> None:
    create(log, segments=4)
    joined = Joined(log.write_of(), [("s", event(n, key=f"k{n}")) for n in range(50)])
    places = [place for own in joined.outcomes(log.commit(joined.write)) for place in own.placed]
    by_place = {(row["segment"], row["offset"]): row["value"] for row in read(log)}
    assert [by_place[place.segment, place.start] for place in places] == [
        str(n).encode() for n in range(50)
    ]


# --- Arrow -----------------------------------------------------------------------------------


def plain() -> dict[str, Any]:
    return {"subject": ["s.a", "s.b", "s.c"], "key": ["x", None, "z"], "value": [b"1", b"2", b"3"]}


SHAPES: dict[str, Callable[[], pa.Table | pa.RecordBatch]] = {
    "table": lambda: pa.table(plain()),
    "batch": lambda: pa.RecordBatch.from_pydict(plain()),
    "sliced": lambda: pa.concat_tables([pa.table(plain())] * 3).combine_chunks().slice(3, 3),
    "sliced batch": lambda: (
        pa.concat_tables([pa.table(plain())] * 3).combine_chunks().to_batches()[0].slice(3, 3)
    ),
    "chunked": lambda: pa.concat_tables([pa.table(plain()).slice(n, 1) for n in range(3)]),
    "strings as values": lambda: pa.table(plain() | {"value": ["1", "2", "3"]}),
    "large": lambda: pa.table(plain()).cast(
        pa.schema(
            [
                ("subject", pa.large_string()),
                ("key", pa.large_string()),
                ("value", pa.large_binary()),
            ]
        )
    ),
    "views": lambda: pa.table(
        {
            "subject": pa.array(plain()["subject"], pa.string_view()),
            "key": pa.array(plain()["key"], pa.string_view()),
            "value": pa.array(plain()["value"], pa.binary_view()),
        }
    ),
    "dictionaries": lambda: pa.table(
        {
            "subject": pa.array(plain()["subject"]).dictionary_encode(),
            "key": pa.array(plain()["key"]).dictionary_encode(),
            "value": pa.array(plain()["value"]).dictionary_encode(),
        }
    ),
    "chunked dictionaries": lambda: pa.concat_tables(
        [
            pa.table(
                {
                    name: pa.array(column[n : n + 1])
                    .cast(pa.string() if name != "value" else pa.binary())
                    .dictionary_encode()
                    for name, column in plain().items()
                }
            )
            for n in range(3)
        ]
    ),
    "binary subjects": lambda: pa.table(
        plain() | {"subject": [name.encode() for name in plain()["subject"]]}
    ),
    "other order of columns": lambda: pa.table(
        {name: plain()[name] for name in ("value", "key", "subject")}
    ),
}


def test_arrow_data_of_any_layout_is_taken(log: Log) -> None:
    for segments in (1, 3):
        for number, (shape, make) in enumerate(SHAPES.items()):
            name = f"s{segments}-{number}"
            log.create_stream(name, StreamConfig(subjects=(f"{name}.>",)), segments)
            data = make()
            subjects = [f"{name}.{each}" for each in "abc"]
            kind = data.schema.field("subject").type
            column = pa.array(subjects)
            column = (
                column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
            )
            at = data.schema.names.index("subject")
            log.append(name, data.set_column(at, "subject", column))
            rows = sorted(read(log, name), key=lambda row: str(row["subject"]))
            assert [(row["subject"], row["key"], row["value"]) for row in rows] == [
                (subjects[0], "x", b"1"),
                (subjects[1], None, b"2"),
                (subjects[2], "z", b"3"),
            ], shape


def test_arrow_times_of_any_unit_are_taken(log: Log) -> None:
    create(log)
    moment = datetime(2024, 5, 6, 7, 8, 9)
    for unit, zone in (("s", None), ("ms", None), ("us", "UTC"), ("ns", None), ("ns", "UTC")):
        log.append(
            "s",
            pa.table(
                {
                    "subject": ["s.x"] * 2,
                    "value": [b"", b""],
                    "timestamp": pa.array([moment, None], pa.timestamp(unit, zone)),
                }
            ),
        )
    now = datetime.now(UTC)
    for row in read(log):
        if row["offset"] % 2 == 0:
            assert row["timestamp"] == moment.replace(tzinfo=UTC)
        else:
            assert abs(row["timestamp"] - now) < timedelta(minutes=1)


def test_arrow_times_are_cut_to_microseconds_and_converted_from_their_zone(log: Log) -> None:
    create(log)
    column = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "America/New_York"))
    log.append("s", pa.table({"subject": ["s.x"], "value": [b""], "timestamp": column}))
    (row,) = read(log)
    assert row["timestamp"] == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)


def test_arrow_headers_and_epochs_are_taken(log: Log) -> None:
    create(log)
    log.append(
        "s",
        pa.table(
            {
                "subject": ["s.x"] * 3,
                "value": [b"0", b"1", b"2"],
                "headers": [[{"key": "h", "value": b"v"}], None, []],
                "epoch": [[1, 2], None, [3]],
                "origin": pa.nulls(3),
            }
        ).slice(0, 3),
    )
    rows = read(log)
    assert [row["headers"] for row in rows] == [[{"key": "h", "value": b"v"}], None, []]
    assert [row["epoch"] for row in rows] == [[1, 2], None, [3]]
    assert [row["origin"] for row in rows] == [None] * 3


def test_an_origin_that_headrace_sets_is_read_and_cannot_be_appended_again(log: Log) -> None:
    create(log)
    copied = to_batch([event(n) for n in range(3)])
    origins = pa.array([None, {"region": "eu", "sequence": 7}, None], events.ORIGIN)
    write = log.write_of()
    write.add("s", copied.append_column("origin", origins))
    log.commit(write)
    assert [row["origin"] for row in read(log)] == [None, {"region": "eu", "sequence": 7}, None]
    (batch,) = log.read("s")
    again = batch.drop_columns(["segment", "offset"])
    with pytest.raises(InvalidEventError, match="row 1: origin cannot be given") as caught:
        log.append("s", again)
    assert caught.value.row == 1
    assert heads(log) == {0: 3}
    log.append("s", again.slice(2))


def test_what_was_read_can_be_appended_again(log: Log) -> None:
    create(log)
    create(log, "t", segments=3)
    log.append("s", [event(n, key=f"k{n % 3}", headers={"h": b"x"}) for n in range(10)])
    for batch in log.read("s"):
        again = pa.Table.from_batches([batch]).drop_columns(["segment", "offset"])
        again = again.set_column(
            again.schema.names.index("subject"), "subject", pa.array(["t.x"] * len(again))
        )
        log.append("t", again)
    assert per_key(read(log, "t")) == per_key(read(log))


# --- blobs and files -------------------------------------------------------------------------


def test_small_shares_stay_in_the_catalog_and_large_ones_become_files(log: Log) -> None:
    create(log)
    log.append("s", table(1000, value_bytes=900))
    assert files(log) == []
    log.append("s", table(1000, value_bytes=1200))
    assert len(files(log)) == 1
    log.append("s", table(10))
    rows = read(log)
    check_dense(rows)
    assert [int(row["value"].rstrip(b".")) for row in rows] == [
        *range(1000),
        *range(1000),
        *range(10),
    ]


def test_a_large_share_is_cut_into_files(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 10_000)
    monkeypatch.setattr(limits, "FILE_BYTES", 50_000)
    create(log, segments=2)
    placed = log.append("s", table(5000, keys=50, value_bytes=50))
    assert len(files(log)) > 4
    assert sum(spot.count for spot in placed) == 5000
    rows = read(log)
    check_dense(rows)
    assert sorted(int(row["value"].rstrip(b".")) for row in rows) == list(range(5000))
    for found in per_key(rows).values():
        assert [int(value) for value in found] == sorted(int(value) for value in found)


def test_a_log_without_a_store_keeps_everything_in_the_catalog(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 10_000)
    log = Log(catalog, None)
    create(log, segments=2)
    log.append("s", table(3000, keys=50, value_bytes=50))
    rows = read(log)
    check_dense(rows)
    assert len(rows) == 3000


def test_one_event_of_the_largest_size_is_taken(log: Log) -> None:
    create(log, segments=2)
    big = b"x" * limits.EVENT_BYTES_MAX
    log.append("s", Event(subject="s.x", value=big))
    log.append("s", [Event(subject="s.x", value=big, key="k") for _ in range(2)])
    assert [len(row["value"]) for row in read(log)] == [limits.EVENT_BYTES_MAX] * 3


def test_an_append_whose_file_cannot_be_written_changes_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 1000)
    create(log, segments=4)
    before = everything(log)
    real = Store.put
    calls = []

    def failing(store: Store, path: str, data: bytes) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise StoreUnavailableError("the network is down")
        real(store, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", failing)
        with pytest.raises(StoreUnavailableError):
            log.append("s", table(1000, keys=100, value_bytes=50), producer="p", sequence=1)
    assert len(calls) == 3
    assert everything(log) == before
    log.append("s", table(1000, keys=100, value_bytes=50), producer="p", sequence=1)
    assert sorted(numbers(log)) == list(range(1000))


# --- idempotent producers --------------------------------------------------------------------


@pytest.mark.parametrize("inline_bytes", [1 << 20, 1000])
def test_a_repeat_returns_the_first_positions_and_writes_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", inline_bytes)
    create(log, segments=3)
    first = log.append("s", table(300, value_bytes=30), producer="p", sequence=4)
    before = everything(log)
    assert log.append("s", table(300, value_bytes=30), producer="p", sequence=4) == first
    assert everything(log) == before
    assert log.append("s", event(1), producer="q", sequence=4) != first
    assert log.append("s", event(1), producer="p", sequence=5) != first


def test_a_sequence_that_comes_again_with_other_events_is_refused(log: Log) -> None:
    """A program that counts from 0 again after a restart is told, and loses nothing."""
    create(log, segments=2)
    create(log, "t")
    for n in range(3):
        log.publish(event(n), producer="till", sequence=n)
        # Another time is no other event: the first one was made up.
        log.publish(event(n), producer="till", sequence=n)
    log.append("s", table(300), producer="bulk", sequence=7)
    before = everything(log)
    for again in (
        lambda: log.publish(event(9), producer="till", sequence=1),
        lambda: log.publish(event(1, key="k"), producer="till", sequence=1),
        lambda: log.append("s", [event(1), event(1)], producer="till", sequence=1),
        lambda: log.append("s", table(299), producer="bulk", sequence=7),
    ):
        with pytest.raises(SequenceReusedError, match="go on after") as caught:
            again()
        assert caught.value.last in (2, 7)
    assert everything(log) == before
    # The stream counts too, and how the events came does not.
    assert log.append("s", event(2), producer="till", sequence=2)[0].count == 1
    assert len(read(log)) == 303
    assert log.append("t", event(1, stream="t"), producer="till", sequence=1)[0].start == 0


def test_a_sequence_recorded_without_a_checksum_is_a_repeat(log: Log) -> None:
    create(log)
    first = log.publish(event(1), producer="p", sequence=1)
    log.catalog.write(lambda tx: tx.execute("UPDATE producers SET checksum = NULL"))
    assert log.publish(event(2), producer="p", sequence=1) == first


def test_a_repeat_after_a_scaling_returns_the_first_positions(log: Log) -> None:
    create(log, segments=2)
    write = log.write_of(producer="p", sequence=1)
    write.add("s", to_batch([event(n, key=f"k{n}") for n in range(40)]))
    first = log.commit(write)
    log.split("s", 0, 3)
    log.merge("s", [1, 4])
    again = log.write_of(producer="p", sequence=1)
    again.add("s", to_batch([event(n, key=f"k{n}") for n in range(40)]))
    second = log.commit(again)
    assert second.repeat
    assert second.placed == first.placed
    assert len(read(log)) == 40


def test_the_same_sequence_sent_at_once_is_written_once(
    log: Log, reopen: Callable[[], Catalog], store: Store
) -> None:
    create(log, segments=2)
    logs = (log, Log(reopen(), store))
    found = []

    def send(number: int) -> None:
        found.append(
            logs[number % 2].append(
                "s", [event(n, key=str(n)) for n in range(4)], producer="p", sequence=9
            )
        )

    threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(read(log)) == 4


def test_sequences_are_remembered_within_a_window(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "KEPT", 5)
    create(log)
    places = [log.append("s", event(n), producer="p", sequence=n) for n in range(10)]
    for sequence in range(5, 10):
        assert log.append("s", event(sequence), producer="p", sequence=sequence) == places[sequence]
    before = everything(log)
    for sequence in range(5):
        with pytest.raises(SequenceError):
            log.append("s", event("again"), producer="p", sequence=sequence)
    assert everything(log) == before
    assert log.catalog.read(lambda tx: tx.row("SELECT count(*) FROM producers")) == (5,)
    log.append("s", event("jump"), producer="p", sequence=1000)
    with pytest.raises(SequenceError):
        log.append("s", event("again"), producer="p", sequence=9)


def test_sequences_may_come_out_of_order_within_the_window(log: Log) -> None:
    create(log)
    for sequence in (3, 1, 2, 0):
        log.append("s", event(sequence), producer="p", sequence=sequence)
    for sequence in (0, 1, 2, 3):
        log.append("s", event(sequence), producer="p", sequence=sequence)
    assert numbers(log) == [3, 1, 2, 0]


def test_producers_of_different_streams_do_not_meet(log: Log) -> None:
    create(log)
    create(log, "t")
    log.append("s", event(1), producer="p", sequence=1)
    log.append("t", event(2, stream="t"), producer="p", sequence=1)
    assert (numbers(log), numbers(log, "t")) == ([1], [2])


def test_a_producer_and_a_sequence_belong_together(log: Log) -> None:
    create(log)
    before = everything(log)
    bad: list[dict[str, Any]] = [
        {"producer": "p"},
        {"sequence": 1},
        {"producer": "p", "sequence": -1},
        {"producer": "p", "sequence": 1 << 62},
        {"producer": "p", "sequence": "1"},
        {"producer": "p q", "sequence": 1},
        {"producer": "", "sequence": 1},
        {"producer": "x" * 65, "sequence": 1},
    ]
    for arguments in bad:
        with pytest.raises(InvalidInputError):
            log.append("s", event(1), **arguments)
    assert everything(log) == before


# --- conditions ------------------------------------------------------------------------------


def test_a_conditional_append_needs_the_expected_head(log: Log) -> None:
    create(log)
    log.append("s", event(0), expected_heads={0: 0})
    before = everything(log)
    with pytest.raises(HeadMoved) as caught:
        log.append("s", event("no"), expected_heads={0: 0})
    error = caught.value
    assert (error.stream, error.segment, error.expected, error.head) == ("s", 0, 0, 1)
    with pytest.raises(HeadMoved):
        log.append("s", event("no"), expected_heads={0: 2})
    with pytest.raises(UnknownSegmentError):
        log.append("s", event("no"), expected_heads={7: 0})
    assert everything(log) == before
    log.append("s", event(1), expected_heads={0: 1})
    assert numbers(log) == [0, 1]


def test_every_expected_head_counts(log: Log) -> None:
    create(log, segments=2)
    log.append("s", [event(n, key=str(n)) for n in range(10)])
    now = heads(log)
    with pytest.raises(HeadMoved):
        log.append("s", event("no", key="1"), expected_heads=now | {1: now[1] + 1})
    log.append("s", event("yes", key="1"), expected_heads=now)


def test_of_concurrent_conditional_appends_one_wins(
    log: Log, reopen: Callable[[], Catalog], store: Store
) -> None:
    create(log)
    logs = (log, Log(reopen(), store))
    won = []

    def race(number: int) -> None:
        for expected in range(10):
            try:
                logs[number % 2].append("s", event(number), expected_heads={0: expected})
                won.append(expected)
            except HeadMoved:
                continue

    threads = [threading.Thread(target=race, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(10))
    assert len(read(log)) == 10


# --- several at once -------------------------------------------------------------------------


def test_appends_to_several_streams_commit_together(log: Log) -> None:
    create(log, segments=2)
    create(log, "t", segments=3)
    write = log.write_of()
    write.add("s", to_batch([event(n, key=str(n)) for n in range(6)]))
    write.add("t", to_batch([event(n, key=str(n), stream="t") for n in range(6)]))
    write.add("s", to_batch(event(6)))
    outcome = log.commit(write)
    assert {spot.stream for spot in outcome.placed} == {"s", "t"}
    assert sorted(numbers(log)) == list(range(7))
    assert sorted(numbers(log, "t")) == list(range(6))
    assert sum(spot.count for spot in outcome.placed) == 13


def test_if_one_of_several_streams_refuses_none_is_written(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 500)
    create(log, segments=2)
    create(log, "t")
    log.append("t", event(0, stream="t"))
    before = everything(log)
    write = log.write_of(producer="p", sequence=1)
    write.add("s", to_batch(table(200)))
    write.add("t", to_batch(event(1, stream="t")), expected={0: 0})
    with pytest.raises(HeadMoved):
        log.commit(write)
    assert everything(log) == before
    for second, error in (
        (("none", to_batch(event(1, stream="none"))), UnknownStreamError),
        (("t", to_batch(event(1, stream="s"))), InvalidInputError),
    ):
        write = log.write_of()
        write.add("s", to_batch(table(200)))
        write.add(*second)
        with pytest.raises(error):
            log.commit(write)
        assert everything(log) == before


def test_a_transaction_of_a_producer_is_written_once(log: Log) -> None:
    create(log)
    create(log, "t")

    def send() -> Any:
        write = log.write_of(producer="p", sequence=1)
        write.transaction = True
        write.add("s", to_batch(event(1)))
        write.add("t", to_batch(event(2, stream="t")))
        return log.commit(write)

    first, second = send(), send()
    assert first.placed == second.placed
    assert (first.repeat, second.repeat) == (False, True)
    assert (numbers(log), numbers(log, "t")) == ([1], [2])


def test_an_empty_write_is_no_error(log: Log) -> None:
    assert log.commit(log.write_of()).placed == ()
    assert log.commit(log.write_of(producer="p", sequence=1)).placed == ()


def test_a_write_is_all_or_nothing_for_its_readers(log: Log) -> None:
    create(log, segments=4)
    stop = threading.Event()
    seen: list[int] = []

    def look() -> None:
        while not stop.is_set():
            seen.append(sum(heads(log).values()))

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(15):
        log.append("s", table(40, keys=40))
    stop.set()
    thread.join()
    assert {count % 40 for count in seen} == {0}


# --- markers and streams ---------------------------------------------------------------------


def test_markers_stand_in_line_and_are_kept_from_readers(log: Log) -> None:
    create(log)
    log.append("s", event(0))
    placed = log.append_marker("s", 0, b"internal")
    assert placed == Placed("s", 0, 1, 1)
    log.append("s", event(1))
    rows = read(log)
    assert [(row["offset"], row["value"]) for row in rows] == [(0, b"0"), (2, b"1")]
    shown = [row for batch in log.read("s", Query(markers=True)) for row in batch.to_pylist()]
    assert [row["marker"] for row in shown] == [None, b"internal", None]
    assert [row["offset"] for row in shown] == [0, 1, 2]


def test_markers_are_no_events(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """In line with events in one batch, in blobs and in files, before and after compaction."""
    create(log)
    for inline_bytes in (limits.INLINE_BYTES, limits.INLINE_BYTES, 0, 0):
        monkeypatch.setattr(limits, "INLINE_BYTES", inline_bytes)
        batch = to_batch([event(n) for n in range(6)])
        marks = pa.array([None, b"m", None, None, b"m", b"m"], pa.binary())
        write = log.write_of()
        write.add("s", batch.append_column("marker", marks), segment=0)
        log.commit(write)
    (segment,) = log.stream("s").segments
    assert (segment.head, segment.events, segment.markers) == (24, 12, 12)
    assert len(files(log)) == 2
    assert numbers(log) == [0, 2, 3] * 4
    assert log.compact("s", CompactionPolicy(min_batches=2, min_age_s=0)).events == 12
    assert log.stream("s").segments == (segment,)
    assert numbers(log) == [0, 2, 3] * 4
    log.trim("s", {0: 24})
    assert log.stream("s").segments[0].events == log.stream("s").segments[0].markers == 0


def test_a_marker_needs_an_open_segment(log: Log) -> None:
    create(log)
    log.split("s", 0)
    before = everything(log)
    for segment in (0, 9):
        with pytest.raises(UnknownSegmentError, match="no open segment"):
            log.append_marker("s", segment, b"m")
    assert everything(log) == before
    log.append_marker("s", 1, b"m")
    assert read(log) == []


def test_the_stream_of_a_subject_is_found(log: Log, reopen: Callable[[], Catalog]) -> None:
    create(log)
    assert log.routes.stream_for("s.a.b") == "s"
    with pytest.raises(NoStreamError):
        log.routes.stream_for("t.a")
    other = Log(reopen(), None)
    create(other, "t")
    assert log.routes.stream_for("t.a") == "t"


def test_a_stream_deleted_elsewhere_takes_no_more_events(
    log: Log, reopen: Callable[[], Catalog], store: Store
) -> None:
    create(log, segments=2)
    log.append("s", event(1))
    other = Log(reopen(), store)
    other.delete_stream("s")
    create(other, "t", segments=2)
    other.append("t", event("first", stream="t"))
    with pytest.raises(UnknownStreamError):
        log.append("s", event(2))
    assert values(log, "t") == ["first"]


def test_a_stream_made_anew_elsewhere_is_found_again(
    log: Log, reopen: Callable[[], Catalog], store: Store
) -> None:
    create(log, segments=2)
    log.append("s", event("old"))
    other = Log(reopen(), store)
    other.delete_stream("s")
    create(other, "s")
    log.append("s", event("new"))
    assert values(other) == ["new"]
    assert values(log) == ["new"]


def test_what_was_routed_in_another_history_is_routed_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog that went back may have given the number of a segment to another stream."""
    create(log)
    write = log.write_of()
    write.add("s", to_batch([event("1")]))
    write.prepare()
    log.delete_stream("s")
    create(log, "other")
    create(log)
    monkeypatch.setattr(type(log.catalog), "turns", log.catalog.turns + 1)
    write.prepare()  # as the queue of writes does, once it is its turn
    ((share,),) = write.shares
    assert share.segment_id == log.stream("s").segments[0].id
    log.commit(write)
    assert values(log) == ["1"]
    assert values(log, "other") == []
