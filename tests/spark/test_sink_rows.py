"""Which columns and rows can be events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from headrace.catalog.streams import Segment, Stream, StreamConfig
from headrace.errors import InvalidSinkError, InvalidSubjectError
from headrace.log import events, limits
from headrace.log.columns import check_batch
from headrace.log.routing import Route
from headrace.spark import sink_rows
from headrace.spark.sink_rows import Columns, plan_columns

NOW_US = 1_700_000_000_000_000
SEGMENT = Segment(1, 0, 0, 1 << 32, 0, 0, 0, 0, 0, 0, None)
ROUTE = Route(Stream(1, "clean", StreamConfig(subjects=("clean.>",)), 0, (SEGMENT,)))


# Spark alone can read a schema from text.
pytestmark = pytest.mark.usefixtures("spark")


def schema(text: str) -> StructType:
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found


def test_a_stream_of_the_source_can_be_written_as_it_is() -> None:
    found = plan_columns(
        schema(
            "key binary, value binary, topic string, partition int, offset long, "
            "timestamp timestamp, subject string, segment int, epoch array<bigint>, "
            "headers array<struct<key:string,value:binary>>"
        )
    )
    assert found == Columns("value", "subject", "key", "headers", "timestamp", "epoch")


def test_subject_and_key_come_from_options_or_from_named_columns() -> None:
    found = plan_columns(schema("value string"), subject="clean.x", key="k")
    assert (found.subject_text, found.key_text) == ("clean.x", "k")
    found = plan_columns(
        schema("value string, city string, user string"), subject_column="city", key_column="user"
    )
    assert (found.subject, found.key) == ("city", "user")


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("subject string", {}, "the column value is missing"),
        ("value binary", {}, "events need a subject"),
        ("value binary, subject string, id long, at date", {}, "unknown columns at, id"),
        ("value long, subject string", {}, "column value is bigint; it must be binary or string"),
        ("value binary, subject int", {}, "column subject is int"),
        ("value binary, subject string, key double", {}, "column key is double"),
        ("value binary, subject string, timestamp long", {}, "column timestamp is bigint"),
        ("value binary, subject string, headers map<string,binary>", {}, "column headers is map"),
        ("value binary, subject string, epoch long", {}, "column epoch is bigint"),
        ("value binary", {"subject_column": "city"}, "there is no such column"),
        ("value binary, value string, subject string", {}, "appears twice"),
    ],
)
def test_columns_that_do_not_fit_are_refused(text: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSinkError, match=said):
        plan_columns(schema(text), **options)


def test_a_constant_subject_is_judged_at_once() -> None:
    with pytest.raises(InvalidSubjectError, match="wildcard"):
        plan_columns(schema("value binary"), subject="clean.*")


def test_rows_become_stored_columns() -> None:
    at = datetime(2024, 5, 1, tzinfo=UTC)
    given_rows = pa.record_batch(
        {
            "value": pa.array(["ä", None]),
            "subject": pa.array(["a", "b"]),
            "key": pa.array([b"k", None], pa.binary()),
            "timestamp": pa.array([at, None], pa.timestamp("us", "Europe/Berlin")),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}], None],
                pa.list_(
                    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
                ),
            ),
        }
    )
    columns = Columns("value", "subject", "key", "headers", "timestamp", subject_prefix="clean.")
    found = sink_rows.convert(given_rows, columns, NOW_US)
    assert found.to_pylist() == [
        {
            "timestamp": at,
            "subject": "clean.a",
            "key": "k",
            "value": "ä".encode(),
            "headers": [{"key": "h", "value": b"1"}],
        },
        {
            "timestamp": datetime.fromtimestamp(NOW_US / 1e6, UTC),
            "subject": "clean.b",
            "key": None,
            "value": None,
            "headers": None,
        },
    ]
    assert found.schema == events.schema_of(events.layout_of(found.schema))


def stored(values: list[bytes | None], subjects: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "timestamp": pa.array([NOW_US] * len(values), events.TIMESTAMP),
            "subject": pa.array(subjects, pa.string()),
            "value": pa.array(values, pa.binary()),
        }
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"x", None]),
            st.sampled_from(["clean.a", "clean.b", "clean..c", "other.d", "clean. e", None]),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_exactly_the_bad_rows_are_found_in_their_order(
    rows: list[tuple[bytes | None, str | None]],
) -> None:
    batch = stored([value for value, _ in rows], [subject for _, subject in rows])
    bad = list(sink_rows.judge(batch, ROUTE))
    expected = [
        at
        for at, (value, subject) in enumerate(rows)
        if value is None or subject not in {"clean.a", "clean.b"}
    ]
    assert [each.row for each in bad] == expected
    left = sink_rows.without(batch, bad)
    assert left.num_rows == len(rows) - len(expected)
    assert list(sink_rows.judge(left, ROUTE)) == []


def test_a_bad_row_has_a_reason_of_its_own() -> None:
    batch = stored(
        [b"x", None, b"x", b"x", b"x" * (limits.EVENT_BYTES_MAX + 1)],
        ["clean..a", "clean.a", "other.a", None, "clean.a"],
    )
    assert [each.reason for each in sink_rows.judge(batch, ROUTE)] == [
        "token 2 is empty",
        "value is null",
        "stream 'clean' captures clean.>, not 'other.a'",
        "it is null",
        "value has 8388609 bytes; at most 8388608 are allowed",
    ]


def test_a_row_with_an_origin_is_refused_and_the_others_pass() -> None:
    columns = plan_columns(schema("value binary, subject string, origin string"))
    assert columns.origin == "origin"
    given_rows = pa.record_batch(
        {
            "value": [b"0", b"1", b"2"],
            "subject": ["clean.a"] * 3,
            "origin": [None, "JFK", None],
        }
    )
    batch = sink_rows.convert(given_rows, columns, NOW_US)
    bad = list(sink_rows.judge(batch, ROUTE))
    assert [(each.row, each.reason) for each in bad] == [(1, events.ORIGIN_REFUSED)]
    plain = sink_rows.convert(given_rows.slice(2), columns, NOW_US)
    assert list(sink_rows.judge(plain, ROUTE)) == []
    left = sink_rows.without(batch, bad)
    assert left.schema == plain.schema
    assert left.column("value").to_pylist() == [b"0", b"2"]


def test_dead_letters_are_events_whatever_was_wrong_with_the_row() -> None:
    batch = stored([None, b"x" * (limits.EVENT_BYTES_MAX + 1), b"x"], ["clean.a", None, "o" * 5000])
    keys = pa.array([b"k", b"\xff", b"k" * 5000], pa.binary()).view(pa.string())
    batch = batch.add_column(2, "key", keys)
    bad = list(sink_rows.judge(batch, ROUTE))
    dead = sink_rows.dead_letters(
        batch, bad, subject="dead.clean", stream="clean", partition=3, first=100
    )
    check_batch(dead)
    found = dead.to_pylist()
    assert [row["key"] for row in found] == ["k", None, None]
    assert [len(row["value"]) for row in found] == [0, 0, 1]
    headers = {each["key"]: each["value"] for each in found[0]["headers"]}
    assert headers == {
        "headrace-reason": b"value is null",
        "headrace-stream": b"clean",
        "headrace-place": b"3:100",
        "headrace-subject": b"clean.a",
    }


@pytest.mark.parametrize(
    ("pattern", "subject"),
    [("dead.>", "dead.clean"), ("dead.*.rows", "dead.clean.rows"), ("dead", "dead")],
)
def test_a_dead_letter_has_a_subject_that_its_stream_captures(pattern: str, subject: str) -> None:
    route = Route(Stream(2, "dead", StreamConfig(subjects=(pattern,)), 0, (SEGMENT,)))
    assert sink_rows.dead_subject(route, "clean") == subject
