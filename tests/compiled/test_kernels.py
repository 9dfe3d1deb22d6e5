"""What is compiled does what the rest of the package does, and leaves the rest to it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import compiled
from headrace.catalog.streams import KEY_SPACE, Segment, Stream, StreamConfig
from headrace.errors import InvalidEventError
from headrace.log import checksums, columns, events, limits, message
from headrace.log.append import Write
from headrace.log.routing import Route
from headrace.log.shares import Share
from headrace.subjects import SUBJECT_PLAIN_BYTES, key_hash, rules

kernels: Any = compiled.kernels
HEADERS = Path(sysconfig.get_path("include"), "Python.h")
SUBJECTS = st.text("ab.*> µ\x7f", max_size=8) | st.just("a." * 64 + "a")
PLAIN_SUBJECTS = st.lists(st.text("ab1", min_size=1, max_size=5), min_size=1, max_size=4).map(
    lambda tokens: ".".join(["s", *tokens])
)


built = pytest.mark.skipif(kernels is None, reason="the compiled parts are not there")


def test_they_are_built_where_they_can_be() -> None:
    """`make` installs a compiler if there is none; Python's headers it cannot."""
    wanted = os.environ.get("HEADRACE_COMPILED") != "0"
    assert (kernels is not None) == (wanted and HEADERS.is_file())


def test_they_can_be_switched_off() -> None:
    ask = "from headrace import compiled; print(compiled.kernels)"
    told = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "HEADRACE_COMPILED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "None\n"


def sliced(array: pa.Array) -> pa.Array:
    """The same rows from the middle of a longer column."""
    filler = pa.array(["x.y", "z"]).cast(array.type)
    return pa.concat_arrays([filler, array, filler]).slice(2, len(array))


# --- texts ---------------------------------------------------------------------------------


@built
@given(st.lists(SUBJECTS | PLAIN_SUBJECTS, max_size=5))
def test_plain_subjects_are_those_without_a_fault_or_anything_unusual(rows: list[str]) -> None:
    column = sliced(pa.array(rows, pa.string()))
    usual = all(
        row.isascii()
        and "*" not in row
        and ">" not in row
        and len(row) <= SUBJECT_PLAIN_BYTES
        and rules.subject_fault(row) is None
        for row in rows
    )
    assert kernels.plain_subjects(column, SUBJECT_PLAIN_BYTES) == usual


@built
@given(st.lists(st.text("ab", max_size=4), max_size=6), st.text("ab", max_size=3))
def test_rows_begin_with_a_prefix_or_not(rows: list[str], prefix: str) -> None:
    column = sliced(pa.array(rows, pa.string()))
    expected = all(row.startswith(prefix) for row in rows)
    assert kernels.begin_with(column, prefix.encode()) == expected


@built
@given(st.lists(st.binary(max_size=20), max_size=40), st.booleans())
def test_hashes_are_those_of_one_at_a_time(rows: list[bytes], mixed: bool) -> None:
    found = np.empty(len(rows), np.uint32)
    assert kernels.hash_into(sliced(pa.array(rows, pa.binary())), found, mixed)
    if mixed:
        assert found.tolist() == [key_hash(row) for row in rows]
    else:
        assert found.tolist() == [rows_hash(row) for row in rows]


def rows_hash(data: bytes) -> int:
    state = 0x811C9DC5
    for byte in data:
        state = (state ^ byte) * 0x01000193 % 2**32
    return state


@built
def test_hashes_need_room() -> None:
    with pytest.raises(ValueError, match="no room"):
        kernels.hash_into(pa.array(["a", "b"]), np.empty(1, np.uint32), True)


@built
def test_many_rows_are_hashed_beside_other_threads() -> None:
    column = pa.array([f"key-{row}" for row in range(70_000)])
    found = np.empty(len(column), np.uint32)
    assert kernels.hash_into(column, found, True)
    assert found[::7000].tolist() == [key_hash(f"key-{row}") for row in range(0, 70_000, 7000)]
    assert kernels.plain_subjects(column, SUBJECT_PLAIN_BYTES)


KEYS = st.none() | st.text("kµ", max_size=6) | st.just("k" * (limits.KEY_BYTES_MAX + 1))


@built
@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(SUBJECTS | PLAIN_SUBJECTS | st.none(), KEYS, st.binary(max_size=5) | st.none()),
        max_size=4,
    ),
    st.booleans(),
)
def test_plain_events_break_no_rule(
    rows: list[tuple[str | None, str | None, bytes | None]], keyed: bool
) -> None:
    """What the kernel lets pass, the rules let pass; and plain events it does let pass."""
    subjects, keys, values = ([row[at] for row in rows] for at in range(3))
    given_columns = {"subject": pa.array(subjects, pa.string())}
    if keyed:
        given_columns["key"] = pa.array(keys, pa.string())
    given_columns["value"] = pa.array(values, pa.binary())
    batch = pa.record_batch(given_columns)
    most = (SUBJECT_PLAIN_BYTES, limits.KEY_BYTES_MAX, limits.EVENT_BYTES_MAX)
    plain = kernels.plain_events(batch.columns, *most)
    try:
        stored = columns._stored(batch, 1)
        columns._check_columns(stored)
        fine = True
    except InvalidEventError:
        fine = False
    assert fine or not plain
    usual = all(
        subject is not None
        and subject.isascii()
        and len(subject) < SUBJECT_PLAIN_BYTES
        and not set(subject) & {"*", ">"}
        and (not keyed or (key is not None and key.isascii()))
        for subject, key, _ in rows
    )
    assert plain == (fine and usual)


# --- splitting -----------------------------------------------------------------------------


def route_of(bounds: list[int], **config: Any) -> Route:
    """A route over segments that begin at these hashes."""
    ends = [*bounds[1:], KEY_SPACE]
    segments = tuple(
        Segment(
            id=100 + at,
            number=at,
            range_lo=low,
            range_hi=high,
            head=0,
            tail=0,
            bytes=0,
            trimmed_bytes=0,
            max_ts_us=0,
            created_us=0,
            sealed_us=None,
        )
        for at, (low, high) in enumerate(zip(bounds, ends, strict=True))
    )
    found = StreamConfig(subjects=("s.>",), **config)
    return Route(Stream(id=1, name="s", created_us=0, config=found, segments=segments))


def shares_of(route: Route, batch: pa.RecordBatch) -> list[Share]:
    write = Write(SimpleNamespace(catalog=SimpleNamespace(turns=0)), None, "")  # type: ignore[arg-type]
    write.add("s", batch)
    return write._checked_shares(route, write.plain)


def plainly(share: Share) -> tuple[Any, ...]:
    """What a share says and holds; the sizes may differ, since Arrow does not cut off all bytes
    of a slice."""
    (batch,) = share.batches
    assert batch.data is not None
    assert batch.size_bytes == len(batch.data)
    assert batch.checksum == checksums.of_blob(batch.data, batch.layout)
    held = events.decode_blob(batch.data, batch.layout)
    held.validate(full=True)
    rows = list(range(share.count)) if share.rows is None else share.rows.tolist()
    told = (batch.segment_id, batch.rows, batch.max_ts_us, batch.layout, batch.path)
    return share.segment, share.segment_id, share.count, rows, told, held.to_pylist()


BOUNDS = st.lists(st.integers(1, KEY_SPACE - 1), min_size=1, max_size=30, unique=True).map(
    lambda found: [0, *sorted(found)]
)


@built
@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(
        st.tuples(PLAIN_SUBJECTS, st.text("kµ\0", max_size=9), st.binary(max_size=40)),
        min_size=2,
        max_size=60,
    ),
    stamps=st.data(),
    bounds=BOUNDS,
    keyed=st.booleans(),
    partitions=st.integers(0, 5),
)
def test_shares_are_the_same_either_way(
    rows: list[tuple[str, str, bytes]],
    stamps: st.DataObject,
    bounds: list[int],
    keyed: bool,
    partitions: int,
) -> None:
    if partitions:
        bounds = [KEY_SPACE // (partitions + 1) * at for at in range(partitions + 1)]
        route = route_of(bounds, partitions=partitions + 1)
    else:
        route = route_of(bounds)
    times = stamps.draw(
        st.lists(st.integers(0, 2**50), min_size=len(rows), max_size=len(rows)), "times"
    )
    columns = {
        "timestamp": pa.array(times, events.TIMESTAMP),
        "subject": pa.array([row[0] for row in rows]),
        "key": pa.array([row[1] for row in rows]),
        "value": pa.array([row[2] for row in rows]),
    }
    if not keyed:
        del columns["key"]
    batch = pa.record_batch(columns)
    if stamps.draw(st.booleans(), "sliced"):
        batch = pa.concat_batches([batch, batch]).slice(len(rows) // 2, len(rows))
    found = shares_of(route, batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "kernels", None)
        expected = shares_of(route, batch)
    assert list(map(plainly, found)) == list(map(plainly, expected))
    for share in found:
        # To the byte what Arrow writes of the rows when they are no slice.
        (new,) = share.batches
        assert new.data is not None
        copied = batch.take(pa.array(plainly(share)[3]))
        assert bytes(new.data) == bytes(events.encode_blob(copied))


def batch_of(subjects: list[str], keys: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "timestamp": pa.array(range(len(subjects)), events.TIMESTAMP),
            "subject": pa.array(subjects),
            "key": pa.array(keys, pa.string()),
            "value": pa.array([b"v"] * len(subjects)),
        }
    )


@pytest.mark.parametrize(
    ("batch", "config"),
    [
        pytest.param(batch_of(["s.a"] * 20, ["k", None] * 10), {}, id="a key is null"),
        pytest.param(batch_of(["s.a"] * 20, ["k"] * 20).drop_columns("key"), {}, id="no keys"),
        pytest.param(
            batch_of([f"s.{row}.x" for row in range(20)], ["k"] * 20).drop_columns("key"),
            {"key_tokens": (2,)},
            id="tokens of the subject",
        ),
    ],
)
def test_what_is_no_plain_batch_goes_to_the_same_places(
    batch: pa.RecordBatch, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    route = route_of([0, KEY_SPACE // 3, KEY_SPACE // 2], **config)
    found = shares_of(route, batch)
    monkeypatch.setattr(compiled, "kernels", None)
    expected = shares_of(route, batch)
    assert [share.segment for share in found] == [share.segment for share in expected]
    assert [share.count for share in found] == [share.count for share in expected]


def test_a_subject_that_the_stream_does_not_capture_is_named() -> None:
    batch = batch_of(["s.a", "s.b", "t.c"], ["k", "l", "m"])
    with pytest.raises(InvalidEventError, match=r"row 2: .* not 't.c'"):
        shares_of(route_of([0, KEY_SPACE // 2]), batch)


# --- columns that are not what they seem ---------------------------------------------------


class Broken:
    """A column as Arrow makes none: whoever trusts its offsets reads what is not its own."""

    offset = null_count = 0

    def __init__(self, offsets: list[int], data: bytes, rows: int = 2) -> None:
        self._buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def buffers(self) -> list[pa.Buffer | None]:
        return self._buffers


@built
@pytest.mark.parametrize(
    "column",
    [
        pytest.param(Broken([0, 2, 1_000_000_000], b"abcd"), id="beyond the end"),
        pytest.param(Broken([0, 3, 2], b"abcd"), id="backwards"),
        pytest.param(Broken([-5, 2, 4], b"abcd"), id="before the start"),
        pytest.param(Broken([0, 2**31 - 1, -(2**31)], b"abcd"), id="beyond all numbers"),
        pytest.param(Broken([0, 2], b"abcd"), id="too few"),
        pytest.param(Broken([0, 2, 4], b""), id="of nothing"),
    ],
)
def test_offsets_that_are_none_are_not_followed(column: Broken) -> None:
    sound = pa.array(["s.a", "s.b"])
    form = message.form_of(events.PLAIN)
    times = pa.array([1, 2], events.TIMESTAMP)
    assert not kernels.plain_subjects(column, SUBJECT_PLAIN_BYTES)
    assert not kernels.begin_with(column, b"")
    assert not kernels.hash_into(column, np.empty(2, np.uint32), True)
    assert not kernels.plain_events([sound, column], 100, 100, 100)
    assert kernels.split([times, column, sound], b"", 2, b"", 0, form) is None
    assert kernels.split([times, sound, column], b"", 1, b"", 0, form) is None


@built
def test_columns_of_other_lengths_are_not_split() -> None:
    form = message.form_of(events.PLAIN)
    two, three = pa.array(["a", "b"]), pa.array(["a", "b", "c"])
    times = pa.array([1, 2], events.TIMESTAMP)
    short = Broken([1, 2], b"")
    assert kernels.split([times, two, three], b"", 1, b"", 0, form) is None
    assert kernels.split([short, two, two], b"", 1, b"", 0, form) is None
    with pytest.raises(ValueError, match="decides"):
        kernels.split([times, two, two], b"", 3, b"", 0, form)


# --- messages ------------------------------------------------------------------------------


def test_only_plain_layouts_have_a_form() -> None:
    assert message.form_of(events.PLAIN) is not None
    assert message.form_of(events.PLAIN | events.HEADERS_BIT) is None


def test_there_is_no_form_if_arrow_writes_otherwise() -> None:
    """Another version of Arrow may pad, order or describe its buffers in another way."""
    encode = events.encode_blob

    def otherwise(batch: pa.RecordBatch) -> memoryview:
        return memoryview(bytes(encode(batch)) + bytes(8))

    message.form_of.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "encode_blob", otherwise)
        assert message.form_of(events.PLAIN) is None
        assert message.form_of(events.PLAIN | events.KEY_BIT) is None
        batch = batch_of(["s.a", "s.b", "s.c"], ["k", "l", "m"])
        shares = shares_of(route_of([0, KEY_SPACE // 2]), batch)
        assert sum(share.count for share in shares) == 3
    message.form_of.cache_clear()
    assert message.form_of(events.PLAIN) is not None
