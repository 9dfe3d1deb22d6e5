"""A cursor finds the newest snapshot that it has passed, however far back it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import SnapshotOrderError
from headrace.regions.core.index import SnapshotIndex
from headrace.regions.core.markers import SnapshotMarker


class Log:
    """Snapshots by position, counting what is read."""

    def __init__(self) -> None:
        self.taken: dict[int, SnapshotMarker] = {}
        self.first = 0
        self.read = 0

    def between(self, lo: int, hi: int) -> list[SnapshotMarker]:
        assert lo >= self.first, "read below what is retained"
        found = [self.taken[at] for at in range(lo, hi) if at in self.taken]
        self.read += len(found)
        return found


def filled(count: int, *, entries_max: int = 65_536) -> tuple[SnapshotIndex, Log]:
    log = Log()
    index = SnapshotIndex(log.between, entries_max=entries_max)
    for number in range(count):
        snapshot = SnapshotMarker(f"S{number}", number * 10 + 5, ())
        log.taken[number * 10 + 6] = snapshot
        index.add(snapshot, number * 10 + 6)
    return index, log


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 60),
    st.integers(4, 20),
    st.integers(-1, 650),
    st.integers(-1, 650),
    st.integers(0, 650),
    st.integers(-1, 650),
)
def test_answer_is_exact_whatever_was_thinned_out(
    count: int, entries_max: int, mark: int, after: int, first: int, forgotten: int
) -> None:
    index, log = filled(count, entries_max=entries_max)
    index.forget_below(min(forgotten, mark))
    log.first = first
    index.trim(first)
    assert len(index) <= entries_max
    usable = [
        snapshot
        for position, snapshot in log.taken.items()
        if snapshot.local <= mark and snapshot.local > after and position >= first
    ]
    assert index.newest_at(mark, after=after) == (usable[-1] if usable else None)
    assert log.read <= index.stride


def test_memory_is_bounded_and_a_lagging_cursor_still_finds_its_own() -> None:
    index, log = filled(5000, entries_max=64)
    assert len(index) <= 64
    for number in (0, 1, 2, 777, 4998, 4999):
        log.read = 0
        found = index.newest_at(number * 10 + 9)
        assert found is not None
        assert found.snapshot_id == f"S{number}"
        assert log.read <= index.stride


def test_nothing_is_read_when_nothing_is_newer() -> None:
    index, log = filled(100)
    assert index.newest_at(507, after=505) is None
    assert index.newest_at(4) is None
    assert index.newest == 995
    assert log.read == 0


def test_forgetting_keeps_what_the_slowest_group_needs() -> None:
    index, _ = filled(100)
    index.forget_below(507)
    assert len(index) == 50
    found = index.newest_at(507)
    assert found is not None
    assert found.local == 505


@pytest.mark.parametrize(("local", "position"), [(15, 30), (14, 30), (20, 16), (20, 20), (30, 25)])
def test_snapshot_out_of_order_is_refused_and_changes_nothing(local: int, position: int) -> None:
    index, _ = filled(2)
    with pytest.raises(SnapshotOrderError, match="the newest is of 15 at 16"):
        index.add(SnapshotMarker("X", local, ()), position)
    assert (len(index), index.newest) == (2, 15)
