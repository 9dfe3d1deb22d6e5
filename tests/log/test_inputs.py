"""Inputs: every one is bounded, refused with an error of its own, and then nothing has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headrace.catalog import Catalog
from headrace.catalog.streams import (
    SEGMENTS_MAX,
    ByBytes,
    ByEvents,
    Consumed,
    Groups,
    Limits,
    StreamConfig,
)
from headrace.errors import (
    AppendTooLargeError,
    EventTooLargeError,
    InvalidConfigError,
    InvalidEventError,
    InvalidFilterError,
    InvalidInputError,
    InvalidNameError,
    InvalidSubjectError,
    StreamExistsError,
    SubjectOverlapError,
    UnknownSegmentError,
    UnknownStreamError,
)
from headrace.log import limits
from headrace.log.config import SUBJECTS_MAX
from headrace.log.events import Event
from headrace.log.given import to_batch
from headrace.log.log import Log
from tests.log.helpers import create, event, everything, read, values

pytestmark = pytest.mark.usefixtures("either_way")

BAD_SUBJECTS = [
    "",
    ".",
    "s..x",
    ".s",
    "s.",
    "s.*",
    "s.>",
    "s.a b",
    "s.\t",
    "s.\x00",
    "s.\u2003",
    "s." + "x" * 511,
    "s" + ".x" * 64,
    "s.\ud800",
]


def one(**fields: Any) -> Event:
    return Event(**({"subject": "s.x", "value": b""} | fields))


BAD_EVENTS: dict[str, tuple[Any, type[Exception]]] = {
    **{f"subject {n}": (one(subject=s), InvalidSubjectError) for n, s in enumerate(BAD_SUBJECTS)},
    "subject of another type": (one(subject=b"s.x"), InvalidSubjectError),
    "subject that the stream does not capture": (one(subject="t.x"), InvalidEventError),
    "text as value": (one(value="text"), InvalidEventError),
    "no value": (one(value=None), InvalidEventError),
    "number as value": (one(value=7), InvalidEventError),
    "too large a value": (one(value=b"x" * (limits.EVENT_BYTES_MAX + 1)), EventTooLargeError),
    "bytes as key": (one(key=b"k"), InvalidEventError),
    "too long a key": (one(key="k" * (limits.KEY_BYTES_MAX + 1)), EventTooLargeError),
    "too long a key in bytes": (one(key="ü" * 513), EventTooLargeError),
    "a key that is no text": (one(key="\ud800"), InvalidEventError),
    "too many headers": (one(headers=[("h", b"")] * 65), EventTooLargeError),
    "too large headers": (one(headers={"h": b"x" * 65_536}), EventTooLargeError),
    "too large headers as text": (one(headers={"h": "ü" * 40_000}), EventTooLargeError),
    "headers that are no pairs": (one(headers=[("a",)]), InvalidEventError),
    "headers that are text": (one(headers="abc"), InvalidEventError),
    "headers that are a number": (one(headers=5), InvalidEventError),
    "a header's name of bytes": (one(headers={b"a": b"b"}), InvalidEventError),
    "a header's name that is no text": (one(headers={"\ud800": b"b"}), InvalidEventError),
    "a header's value that is no text": (one(headers={"a": "\ud800"}), InvalidEventError),
    "a header without value": (one(headers={"a": None}), InvalidEventError),
    "a time that is text": (one(timestamp="now"), InvalidEventError),
    "an empty epoch": (one(epoch=()), InvalidEventError),
    "too long an epoch": (one(epoch=(1,) * 9), InvalidEventError),
    "an epoch of text": (one(epoch=("1",)), InvalidEventError),
    "an epoch that is a list": (one(epoch=[1]), InvalidEventError),
    "an epoch out of range": (one(epoch=(1 << 63,)), InvalidEventError),
    "an epoch without a place beyond it": (one(epoch=((1 << 63) - 1,)), InvalidEventError),
    "an epoch below zero": (one(epoch=(-1,)), InvalidEventError),
    "an epoch of fractions": (one(epoch=(1.5,)), InvalidEventError),
    "no event": ({"subject": "s.x", "value": b""}, InvalidEventError),
    "text": ("s.x", InvalidEventError),
    "bytes": (b"s.x", InvalidEventError),
    "nothing": (None, InvalidEventError),
    "a list of no events": ([one(), "s.x"], InvalidEventError),
}


def test_an_event_that_breaks_a_rule_is_refused(catalog: Catalog) -> None:
    log = Log(catalog, None)
    create(log, segments=2)
    before = everything(log)
    for what, (bad, error) in BAD_EVENTS.items():
        with pytest.raises(error):
            log.append("s", bad)
        if isinstance(bad, Event):
            with pytest.raises(InvalidInputError):
                log.append("s", [one(), bad, one()])
        assert everything(log) == before, what


def column(name: str, data: Any, kind: pa.DataType | None = None) -> pa.Table:
    count = len(data)
    columns: dict[str, Any] = {"subject": ["s.x"] * count, "value": [b""] * count}
    columns[name] = pa.array(data, kind) if not isinstance(data, pa.Array) else data
    return pa.table(columns)


def invalid_utf8() -> pa.Array:
    """A column of text that holds a byte which no text has."""
    binary = pa.array([b"good", b"\xff\xfe"])
    return pa.Array.from_buffers(pa.string(), 2, binary.buffers())


def headers_of(size: int) -> list[dict[str, Any]]:
    return [{"key": "h", "value": b"x" * size}]


BAD_TABLES: dict[str, tuple[Callable[[], Any], int | None, type[Exception]]] = {
    **{
        f"subject {n}": (partial(column, "subject", ["s.x", s]), 1, InvalidEventError)
        for n, s in enumerate(BAD_SUBJECTS)
        if s != "s.\ud800"
    },
    "a subject that is null": (lambda: column("subject", ["s.x", None]), 1, InvalidEventError),
    "a subject that is no text": (
        lambda: column("subject", pa.array([b"s.x", b"\xff"])),
        None,
        InvalidEventError,
    ),
    "a subject not captured": (lambda: column("subject", ["s.x", "t.x"]), 1, InvalidEventError),
    "a value that is null": (lambda: column("value", [b"", None, b""]), 1, InvalidEventError),
    "values that are numbers": (lambda: column("value", [1, 2]), None, InvalidEventError),
    "too large a value": (
        lambda: column("value", [b"", b"x" * (limits.EVENT_BYTES_MAX + 1)]),
        1,
        EventTooLargeError,
    ),
    "too long a key": (lambda: column("key", ["a", "k" * 1025]), 1, EventTooLargeError),
    "a key that is no text": (lambda: column("key", invalid_utf8()), 1, InvalidEventError),
    "too many headers": (
        lambda: column("headers", [None, headers_of(1) * 65]),
        1,
        EventTooLargeError,
    ),
    "too large headers": (
        lambda: column("headers", [headers_of(1), None, headers_of(65_536)]),
        2,
        EventTooLargeError,
    ),
    "a header without name": (
        lambda: column("headers", [[{"key": None, "value": b""}]]),
        None,
        InvalidEventError,
    ),
    "a header without value": (
        lambda: column("headers", [[{"key": "h", "value": None}]]),
        None,
        InvalidEventError,
    ),
    "a header that is null": (
        lambda: column("headers", [[None, *headers_of(1)]]),
        None,
        InvalidEventError,
    ),
    "headers that are numbers": (lambda: column("headers", [1]), None, InvalidEventError),
    "an empty epoch": (
        lambda: column("epoch", [[1], []], pa.list_(pa.int64())),
        1,
        InvalidEventError,
    ),
    "too long an epoch": (lambda: column("epoch", [[1], [1] * 9]), 1, InvalidEventError),
    "an epoch below zero": (lambda: column("epoch", [[1], [-1]]), None, InvalidEventError),
    "an epoch without a place beyond it": (
        lambda: column("epoch", [[(1 << 63) - 1]]),
        None,
        InvalidEventError,
    ),
    "an epoch with a null": (lambda: column("epoch", [[1, None]]), None, InvalidEventError),
    "an epoch out of range": (
        lambda: column("epoch", [[1 << 63]], pa.list_(pa.uint64())),
        None,
        InvalidEventError,
    ),
    "a time out of range": (
        lambda: column("timestamp", pa.array([1 << 62], pa.timestamp("s"))),
        None,
        InvalidEventError,
    ),
    "a time that no calendar has": (
        lambda: column("timestamp", pa.array([0, 1 << 61], pa.timestamp("us"))),
        1,
        InvalidEventError,
    ),
    "times that are text": (lambda: column("timestamp", ["yesterday"]), None, InvalidEventError),
    "an unknown column": (lambda: column("colour", ["red"]), None, InvalidEventError),
    "a marker": (lambda: column("marker", [b"m"]), None, InvalidEventError),
    "an origin": (
        lambda: column("origin", [None, {"region": "eu", "sequence": 7}]),
        1,
        InvalidEventError,
    ),
    "an origin that is text": (lambda: column("origin", ["JFK"]), 0, InvalidEventError),
    "offsets": (lambda: column("offset", [1]), None, InvalidEventError),
    "no subject": (lambda: pa.table({"value": [b""]}), None, InvalidEventError),
    "no value": (lambda: pa.table({"subject": ["s.x"]}), None, InvalidEventError),
    "a column twice": (
        lambda: pa.Table.from_arrays(
            [pa.array(["s.x"]), pa.array([b""]), pa.array([b""])], ["subject", "value", "value"]
        ),
        None,
        InvalidEventError,
    ),
}


def test_a_table_that_breaks_a_rule_is_refused(catalog: Catalog) -> None:
    log = Log(catalog, None)
    create(log, segments=2)
    before = everything(log)
    for what, (make, row, error) in BAD_TABLES.items():
        with pytest.raises(error) as caught:
            log.append("s", make())
        assert everything(log) == before, what
        if row is not None:
            assert getattr(caught.value, "row", None) == row, what


def test_the_largest_of_everything_is_taken(log: Log) -> None:
    create(log)
    subject = "s" + ".x" * 63
    longest = "s." + "y" * 510
    for name in (subject, longest):
        log.append("s", Event(subject=name, value=b""))
        log.append("s", pa.table({"subject": [name], "value": [b""]}))
    log.append(
        "s",
        one(
            key="k" * 1024,
            headers=[(f"h{n:02}", b"x" * 1021) for n in range(64)],
            epoch=(0, (1 << 63) - 2, *range(6)),
            timestamp=datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        ),
    )
    log.append(
        "s",
        pa.table(
            {
                "subject": ["s.x"] * 2,
                "value": [b""] * 2,
                "key": ["k" * 1024, "j"],
                "headers": [[{"key": f"h{n:02}", "value": b"x" * 1021} for n in range(64)], None],
                "timestamp": pa.array([datetime.min, datetime.max], pa.timestamp("us", "UTC")),
            }
        ),
    )
    assert len(read(log)) == 7


def test_many_rows_with_headers_are_checked_quickly(log: Log) -> None:
    """In one pass over the column, not row by row."""
    create(log)
    rows = pa.array(
        [headers_of(10)] * 50_000,
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    data = pa.table({"subject": ["s.x"] * 50_000, "value": [b""] * 50_000, "headers": rows})
    started = time.thread_time()
    to_batch(data)
    assert time.thread_time() - started < 0.25


def test_an_append_larger_than_the_limits_is_refused(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log)
    before = everything(log)
    monkeypatch.setattr(limits, "APPEND_ROWS_MAX", 10)
    for data in ([event(n) for n in range(11)], column("value", [b""] * 11)):
        with pytest.raises(AppendTooLargeError):
            log.append("s", data)
    with pytest.raises(AppendTooLargeError):
        log.append("s", iter(lambda: event("endless"), None))
    monkeypatch.setattr(limits, "APPEND_ROWS_MAX", 100)
    monkeypatch.setattr(limits, "APPEND_BYTES_MAX", 1000)
    for data in (
        [event("x" * 200) for _ in range(6)],
        [event("", key="k" * 200) for _ in range(6)],
        column("value", [b"x" * 200] * 6),
    ):
        with pytest.raises(AppendTooLargeError):
            log.append("s", data)
    assert everything(log) == before
    log.append("s", [event(n) for n in range(10)])


# --- streams ---------------------------------------------------------------------------------


def test_a_bad_stream_name_is_refused(catalog: Catalog) -> None:
    log = Log(catalog, None)
    before = everything(log)
    uses: list[Callable[[str], Any]] = [
        log.stream,
        log.delete_stream,
        log.trim,
        lambda name: log.append(name, event(1)),
        lambda name: list(log.read(name)),
    ]
    names: list[Any] = ["", "a b", "a.b", "ü", "a/b", "x" * 65, "a\n", "a\x00", "\ud800", None, 5]
    for name in names:
        with pytest.raises(InvalidNameError):
            log.create_stream(name, StreamConfig(subjects=("s.>",)))
        for use in uses if isinstance(name, str) else ():
            with pytest.raises((UnknownStreamError, InvalidInputError)):
                use(name)
    assert everything(log) == before


BAD_CONFIGS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "no subjects": ({"subjects": ()}, InvalidConfigError),
    "too many subjects": (
        {"subjects": tuple(f"s.{n}" for n in range(SUBJECTS_MAX + 1))},
        InvalidConfigError,
    ),
    "a malformed filter": ({"subjects": ("s..x",)}, InvalidFilterError),
    "a wildcard in the middle": ({"subjects": ("s.>.x",)}, InvalidFilterError),
    "a filter that is no text": ({"subjects": (5,)}, InvalidFilterError),
    "one text": ({"subjects": "abc"}, InvalidConfigError),
    "key token 0": ({"key_tokens": (0,)}, InvalidConfigError),
    "key token beyond": ({"key_tokens": (65,)}, InvalidConfigError),
    "key token of text": ({"key_tokens": ("1",)}, InvalidConfigError),
    "negative age": ({"retention": Limits(age_s=-1)}, InvalidConfigError),
    "no events": ({"retention": Limits(events=0)}, InvalidConfigError),
    "half a byte": ({"retention": Limits(bytes=0.5)}, InvalidConfigError),  # type: ignore[arg-type]
    "bad cap": ({"retention": Groups(cap=Limits(bytes=-5))}, InvalidConfigError),
    "retention of text": ({"retention": "forever"}, InvalidConfigError),
    "target 0": ({"scaling": ByEvents(target_per_s=0)}, InvalidConfigError),
    "factor 1": ({"scaling": ByBytes(target_per_s=5, factor=1)}, InvalidConfigError),
    "factor 65": ({"scaling": ByBytes(target_per_s=5, factor=65)}, InvalidConfigError),
    "minimum 0": ({"scaling": ByEvents(target_per_s=5, minimum=0)}, InvalidConfigError),
}


def test_a_configuration_that_breaks_a_rule_is_refused(catalog: Catalog) -> None:
    log = Log(catalog, None)
    create(log, "other")
    before = everything(log)
    for what, (fields, error) in BAD_CONFIGS.items():
        with pytest.raises(error):
            log.create_stream("s", StreamConfig(**({"subjects": ("s.>",)} | fields)))
        if "retention" in fields or "scaling" in fields:
            with pytest.raises(error):
                log.configure_stream("other", **fields)
        assert everything(log) == before, what


def test_a_number_of_segments_out_of_bounds_is_refused(catalog: Catalog) -> None:
    log = Log(catalog, None)
    before = everything(log)
    numbers: list[Any] = [0, -1, SEGMENTS_MAX + 1, 10**9, 1.5, "2"]
    for number in numbers:
        with pytest.raises(InvalidConfigError):
            log.create_stream("s", StreamConfig(subjects=("s.>",)), number)
    assert everything(log) == before


def test_streams_that_would_capture_the_same_subject_are_refused(log: Log) -> None:
    log.create_stream("a", StreamConfig(subjects=("x.*.z", "orders.>")))
    before = everything(log)
    for subjects in ((">",), ("orders.eu",), ("new.>", "x.y.*"), ("*.y.z",), ("x/+/z",)):
        with pytest.raises(SubjectOverlapError, match="'a'"):
            log.create_stream("b", StreamConfig(subjects=subjects))
        assert everything(log) == before
    log.create_stream("b", StreamConfig(subjects=("x.y", "orders", "x.*.*.*")))


def test_creating_a_stream_again_changes_nothing_or_is_refused(log: Log) -> None:
    config = StreamConfig(subjects=("s.>", "s.>"), retention=Limits(age_s=60))
    first = log.create_stream("s", config, 3)
    before = everything(log)
    assert (
        log.create_stream("s", StreamConfig(subjects=("s.>",), retention=Limits(age_s=60))) == first
    )
    for other in (
        StreamConfig(subjects=("s.>",)),
        StreamConfig(subjects=("s.*",), retention=Limits(age_s=60)),
    ):
        with pytest.raises(StreamExistsError):
            log.create_stream("s", other)
    assert everything(log) == before


def test_a_stream_can_be_configured_and_looked_at(log: Log) -> None:
    create(log, segments=2)
    changed = log.configure_stream("s", retention=Consumed())
    assert changed.config.retention == Consumed()
    changed = log.configure_stream("s", scaling=ByEvents(target_per_s=10, minimum=2))
    assert changed.config == StreamConfig(
        subjects=("s.>",), retention=Consumed(), scaling=ByEvents(target_per_s=10, minimum=2)
    )
    assert log.stream("s") == changed
    assert [stream.name for stream in log.streams()] == ["s"]
    with pytest.raises(UnknownStreamError):
        log.configure_stream("none", retention=Consumed())


def test_a_deleted_stream_is_gone_and_its_name_and_subjects_are_free(log: Log) -> None:
    create(log, segments=2)
    create(log, "t")
    log.append("s", event(1), producer="p", sequence=1)
    log.append("t", event("kept", stream="t"))
    log.delete_stream("s")
    with pytest.raises(UnknownStreamError):
        log.delete_stream("s")
    with pytest.raises(UnknownStreamError):
        log.append("s", event(1))
    log.create_stream("again", StreamConfig(subjects=("s.>",)))
    log.append("again", event("new"), producer="p", sequence=1)
    assert values(log, "again") == ["new"]
    assert values(log, "t") == ["kept"]
    rows = log.catalog.read(lambda tx: tx.rows("SELECT DISTINCT stream_id FROM segments"))
    assert len(rows) == 2


def test_trimming_an_unknown_segment_is_refused(log: Log) -> None:
    create(log)
    log.append("s", event(1))
    before = everything(log)
    with pytest.raises(UnknownSegmentError):
        log.trim("s", {0: 1, 4: 1})
    assert everything(log) == before
