"""What retention has left: ``since`` after trims, against what a grid of times says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.epochs import INTEGERS, PAIRS, Data, FrontierUpdate, TakeBack
from headrace.errors import HistoryGoneError
from headrace.sim.scenarios.epochs_log import LogStart, PartitionLog
from tests.epochs.core.support import SHAPES, grid, leq, times


@settings(deadline=None)
@given(st.data())
def test_since_covers_exactly_what_lost_nothing(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    log = PartitionLog("p", shape, None)
    published = data.draw(st.lists(times(shape, 4), max_size=6))
    for time in published:
        log.append(Data(time, ""))
        if data.draw(st.booleans()):
            log.append(TakeBack(log.state.lower))
    gone = 0
    for _ in range(data.draw(st.integers(0, 3))):
        gone = data.draw(st.integers(gone, len(published)))
        log.trim(gone)
        for time in grid(shape, 4):
            kept = any(leq(low, time) for low in log.kept.since)
            assert kept == (not any(leq(time, lost) for lost in published[:gone]))


def test_reading_begins_at_the_first_row_that_is_wanted() -> None:
    log = PartitionLog("p", PAIRS, None)
    log.append(Data((2, 0), "a"))
    log.append(Data((0, 2), "b"))
    log.trim(1)
    assert log.kept.since == ((0, 1), (3, 0))
    assert log.start(((0, 1),)).line <= 2
    with pytest.raises(HistoryGoneError) as error:
        log.start(((1, 0),))
    assert error.value.since == log.kept.since


def test_lines_go_behind_the_rows_but_not_those_of_open_epochs() -> None:
    log = PartitionLog("p", INTEGERS, None)
    for time in (0, 9, 1):  # 9 comes early
        log.append(Data(time, ""))
    log.append(FrontierUpdate(((0, -1), (2, 1))))
    log.trim(1)
    assert (log.kept.since, log.first_line) == ((1,), 2)
    log.trim(3)
    assert (log.kept.since, log.first_line) == ((10,), 2)
    log.append(FrontierUpdate(((2, -1), (10, 1))))
    log.trim(3)
    assert log.first_line == 5  # the last one tells where all stands
    assert log.start((10,)) == LogStart(6, (10,))
