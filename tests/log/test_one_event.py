"""A lone event is the same blob, byte for byte, whoever writes it."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log import events, message
from headrace.log.events import Event
from headrace.log.message import single

TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda t: t.replace(tzinfo=UTC))


@settings(deadline=None)
@given(
    subject=st.text("abc.µ", min_size=1, max_size=300),
    key=st.none() | st.text(max_size=100),
    value=st.binary(max_size=3000),
    timestamp=st.none() | TIMES,
)
def test_a_lone_event_is_written_as_arrow_writes_it(
    subject: str, key: str | None, value: bytes, timestamp: datetime | None
) -> None:
    event = Event(subject=subject, key=key, value=value, timestamp=timestamp)
    found = single(event, 12345)
    assert found is not None
    batch = events.batch_of([event], 12345)
    assert found.blob == bytes(events.encode_blob(batch))
    assert found.layout == events.layout_of(batch.schema)
    assert [found.ts_us] == events.stamps_of(batch).tolist()
    assert events.decode_blob(found.blob, found.layout) == batch


def test_what_is_not_plain_is_left_to_arrow() -> None:
    assert single(Event(subject="a", value=b"", headers={"h": b"1"}), 1) is None
    assert single(Event(subject="a", value=b"", epoch=(1, 2)), 1) is None


def test_a_sample_that_is_not_what_arrow_writes_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another version of Arrow may pad, order or describe its buffers in another way."""
    encode = events.encode_blob

    def otherwise(batch: pa.RecordBatch) -> memoryview:
        return memoryview(bytes(encode(batch)) + bytes(8))

    monkeypatch.setattr(events, "encode_blob", otherwise)
    message.form_of.cache_clear()
    try:
        assert single(Event(subject="a", value=b"x"), 1) is None
    finally:
        message.form_of.cache_clear()
