"""Lanes, and the map between offsets and origins against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import OriginOrderError
from headrace.regions.core.markers import LaneEnd
from headrace.regions.core.origins import OriginMap, lane_of, lane_reaches

LANES = ("a", "b", "b!")

Plain = list[tuple[str, int] | None]


def test_lanes_are_named_by_origin_and_audience() -> None:
    assert lane_of("b") == "b"
    assert lane_of("b", []) == "b!"
    assert lane_of("b", ["b"]) == "b!"
    assert lane_of("b", ["d", "c", "d"]) == "b!c!d"


@pytest.mark.parametrize(
    ("lane", "reached"),
    [("b", "abcd"), ("b!", "b"), ("b!c", "bc"), ("b!c!d", "bcd")],
)
def test_lane_reaches_its_origin_and_its_audience(lane: str, reached: str) -> None:
    assert "".join(region for region in "abcd" if lane_reaches(lane, region)) == reached


def built(records: list[tuple[str, int] | None]) -> tuple[OriginMap, Plain]:
    """A map, and the same as a list with one item per offset."""
    log, plain = OriginMap(), Plain()
    for record in records:
        if record is None:
            log.marker(len(plain))
            plain.append(None)
            continue
        lane, count = record
        sequence = log.next_sequence(lane)
        log.events(len(plain), lane, sequence, count)
        plain.extend((lane, sequence + step) for step in range(count))
    return log, plain


records = st.lists(
    st.one_of(st.none(), st.tuples(st.sampled_from(LANES), st.integers(1, 5))), max_size=25
)


def flat(pieces: object) -> list[int]:
    return [n for lo, hi in pieces for n in range(lo, hi)]  # type: ignore[attr-defined]


@settings(max_examples=150, deadline=None)
@given(records, st.integers(0, 80), st.integers(0, 80), st.integers(0, 60))
def test_map_agrees_with_a_list(
    given_records: list[tuple[str, int] | None], lo: int, hi: int, first: int
) -> None:
    log, plain = built(given_records)
    ends = {lane: log.next_sequence(lane) for lane in LANES}
    log.trim(first)
    kept = min(first, len(plain))
    assert (log.first, log.end) == (kept, len(plain))
    where = {record: offset for offset, record in enumerate(plain) if record is not None}
    found = [
        (lane, sequence)
        for lane, low, high in log.origins(max(lo, kept), hi)
        for sequence in range(low, high)
    ]
    assert found == [r for r in plain[max(lo, kept) : hi] if r is not None]
    expected = [i for i in range(max(lo, kept), min(hi, len(plain))) if plain[i] is None]
    assert flat(log.markers(lo, hi)) == expected
    for lane in LANES:
        here = [where[lane, s] for s in range(lo, hi) if where.get((lane, s), -1) >= kept]
        assert [o for o in flat(log.offsets(lane, lo, hi)) if o >= kept] == here
        ranges = [(s, s + 1) for s in range(lo, hi)]
        assert [o for o in sorted(flat(log.many_offsets(lane, ranges))) if o >= kept] == here
        wide = [(lo, hi)] if lo < hi else []
        assert [o for o in sorted(flat(log.many_offsets(lane, wide))) if o >= kept] == here
        assert log.next_sequence(lane) == ends[lane]
    for lane, sequence in log.cut(max(hi, kept)).items():
        above = [s for (known, s), offset in where.items() if known == lane and offset >= hi]
        if hi >= kept:
            assert sequence == min(above, default=ends[lane])


def test_batches_of_one_origin_are_one_run() -> None:
    log = OriginMap()
    for batch in range(1000):
        log.events(batch * 10, "a", batch * 10, 10)
    assert len(log) == 1
    assert log.seen() == (LaneEnd("a", 10_000),)


def test_lane_met_in_the_middle_begins_there() -> None:
    log = OriginMap(first=7)
    log.skip_to("a", 100)
    log.events(7, "a", 100, 2)
    assert list(log.offsets("a", 0, 200)) == [(7, 9)]
    assert log.absent == {"a": [(0, 100)]}
    with pytest.raises(OriginOrderError, match="nothing to pass over"):
        log.skip_to("a", 102)
    with pytest.raises(OriginOrderError, match="nothing to pass over"):
        log.skip_to("c", 0)
    assert log.absent == {"a": [(0, 100)]}


@pytest.mark.parametrize(
    ("offset", "sequence", "count", "why"),
    [
        (3, 1, 1, "came already"),
        (3, 3, 1, "came before what precedes"),
        (4, 2, 1, "not the end of the log"),
        (2, 2, 1, "not the end of the log"),
        (3, 2, 0, "at least one"),
    ],
)
def test_events_out_of_order_are_refused_and_change_nothing(
    offset: int, sequence: int, count: int, why: str
) -> None:
    log = OriginMap()
    log.events(0, "a", 0, 2)
    log.marker(2)
    with pytest.raises(OriginOrderError, match=why) as refused:
        log.events(offset, "a", sequence, count)
    assert "the log ends at 3 and its lane at 2" in str(refused.value)
    assert (log.end, log.next_sequence("a")) == (3, 2)
    with pytest.raises(OriginOrderError):
        log.marker(5)
    log.events(3, "a", 2)
    assert log.end == 4
