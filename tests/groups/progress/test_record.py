"""Progress records: round trip, bounds, and joining."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProgressDecodeError
from headrace.groups.progress import Progress
from headrace.groups.progress.ranges import AckedRanges


@st.composite
def records(draw: st.DrawFn) -> Progress:
    acked = AckedRanges(draw(st.integers(0, 5)))
    acked.ack_many(draw(st.lists(st.integers(0, 30), max_size=12)))
    counts = draw(st.dictionaries(st.integers(0, 40), st.integers(1, 9), max_size=5))
    return Progress.of(acked, counts)


@given(records())
def test_a_record_survives_the_round_trip(record: Progress) -> None:
    assert Progress.decode(record.encode()) == record


@given(records(), records())
def test_joining_two_records_loses_nothing_and_has_no_order(a: Progress, b: Progress) -> None:
    joined = a.merge(b)
    assert joined == b.merge(a)
    assert joined.merge(a) == joined
    both = joined.acked()
    assert all((o in both) == (o in a.acked() or o in b.acked()) for o in range(50))
    assert joined.floor >= max(a.floor, b.floor)
    for offset, n in (*a.attempts, *b.attempts):
        assert offset in both or dict(joined.attempts)[offset] >= n


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_a_record_or_are_refused(data: bytes) -> None:
    try:
        record = Progress.decode(data)
    except ProgressDecodeError:
        return
    assert Progress.decode(record.encode()) == record


@pytest.mark.parametrize(
    "content",
    [
        (9, AckedRanges().encode(), []),
        (1, AckedRanges().encode(), [1]),
        (1, AckedRanges(5).encode(), [4, 1]),
        (1, AckedRanges().encode(), [4, 0]),
        (1, AckedRanges().encode(), [4, 1, 4, 1]),
        (1, AckedRanges().encode(), [4, 2**40]),
        (1, AckedRanges().encode(), [2**64 - 1, 1]),
        (1, b"", []),
    ],
)
def test_records_that_break_their_rules_are_refused(content: object) -> None:
    with pytest.raises(ProgressDecodeError):
        Progress.decode(msgspec.msgpack.encode(content))
