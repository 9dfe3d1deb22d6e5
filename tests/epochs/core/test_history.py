"""Durable partitions: where to begin, what is gone, and that resuming loses and repeats nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.epochs import (
    PAIRS,
    Data,
    Epoch,
    EpochHistory,
    FrontierUpdate,
    Mode,
    Publisher,
    ResumeToken,
    Snapshot,
    Subscriber,
    Time,
)
from headrace.errors import (
    EpochError,
    EpochMessageError,
    FrontierError,
    HistoryGoneError,
    IllegalTimeError,
)
from tests.epochs.core.support import SHAPES, grid, leq, times


def filled() -> EpochHistory:
    history = EpochHistory()
    records: list[Data | FrontierUpdate] = [
        Data(1, ""),
        Data(5, ""),
        FrontierUpdate(((0, -1), (2, 1))),
        Data(2, ""),
        FrontierUpdate(((2, -1), (5, 1))),
        Data(6, ""),
    ]
    for offset, record in enumerate(records):
        history.append(offset, record)
    return history


def test_reading_begins_at_the_first_data_that_is_wanted() -> None:
    history = filled()
    # 5 came early, before the frontier reached it.
    assert history.start([5]).offset == 1
    assert history.start([5]).snapshot == Snapshot((0,), ())
    assert history.start([6]).offset == 5
    assert history.start([6]).snapshot == Snapshot((5,), ())
    assert history.start([7]).offset == history.end == 6
    assert history.start([]).offset == 6
    assert (history.lower, history.upper, history.active_rows) == ((5,), (6,), {5: 1, 6: 1})


def test_an_epoch_that_lost_a_batch_is_gone_with_all_before_it() -> None:
    history = filled()
    assert history.trim(2) == (6,)
    with pytest.raises(HistoryGoneError) as gone:
        history.start([5])
    assert gone.value.since == (6,)
    assert history.start([6]).offset == 5
    assert history.trim(2) == (6,)
    assert list(history._first) == [6]  # 2 lost nothing, and cannot be asked for any more
    assert history.trim(5) == (6,)
    assert history.start([7]).snapshot == Snapshot((5,), ())


def test_trimming_keeps_what_is_incomparable() -> None:
    history = EpochHistory(PAIRS)
    history.append(0, Data((2, 0), ""))
    history.append(1, Data((0, 2), ""))
    assert history.trim(1) == ((0, 1), (3, 0))
    assert history.start([(0, 1)]).offset == 1
    with pytest.raises(HistoryGoneError):
        history.start([(1, 0)])


def test_records_must_follow_and_be_legal() -> None:
    history = filled()
    before = repr(history)
    with pytest.raises(EpochMessageError, match="order of offsets"):
        history.append(5, Data(7, ""))
    with pytest.raises(IllegalTimeError):
        history.append(6, Data(4, ""))
    with pytest.raises(FrontierError, match="it goes back"):
        history.append(6, FrontierUpdate(((5, -1), (4, 1))))
    with pytest.raises(FrontierError):
        history.append(6, FrontierUpdate(((4, -1), (6, 1))))
    assert repr(history) == before


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_consumer_that_stops_anywhere_and_resumes_sees_every_epoch_once(
    data: st.DataObject,
) -> None:
    shape = data.draw(SHAPES)
    publisher, history = Publisher(shape), EpochHistory(shape)
    log: list[Data | FrontierUpdate] = []
    truth: dict[Time, list[str]] = {}
    for number in range(data.draw(st.integers(1, 20))):
        time = data.draw(times(shape, 4))
        item = f"i{number}"
        try:
            if data.draw(st.integers(0, 2)) and publisher.lower:
                message = publisher.data(time, item).message
                truth.setdefault(time, []).append(item)
            else:
                message = publisher.progress([(publisher.lower[0], -1), (time, 1)]).message
        except EpochError:
            continue
        if isinstance(message, Data | FrontierUpdate):
            history.append(len(log), message)
            log.append(message)
    closing = publisher.close().message
    assert isinstance(closing, FrontierUpdate)
    history.append(len(log), closing)
    log.append(closing)

    seen: dict[Time, list[str]] = {}
    of = ("c", (("s", "1"),))
    token = ResumeToken(*of, shape, (shape.bottom,))
    for _ in range(60):
        token = ResumeToken.decode(token.encode(), *of, shape)
        start = history.start(token.frontier)
        subscriber = Subscriber(["p"], shape, mode=Mode.WHOLE, start=token.frontier, stored=True)
        effects = subscriber.receive("p", start.snapshot)
        for record in log[start.offset :]:
            effects = effects + subscriber.receive("p", record)
        epochs = [effect for effect in effects if isinstance(effect, Epoch)]
        if not epochs:
            break
        for epoch in epochs[: data.draw(st.integers(1, len(epochs)))]:
            assert epoch.time not in seen
            seen[epoch.time] = [batch.data.payload for batch in epoch.batches]
            token = ResumeToken(*of, shape, epoch.resume)
    assert seen == truth


@settings(deadline=None)
@given(st.data())
def test_since_covers_exactly_what_lost_nothing(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    history = EpochHistory(shape)
    records = data.draw(st.lists(times(shape, 4), max_size=6))
    for offset, time in enumerate(records):
        history.append(offset, Data(time, ""))
    cut = data.draw(st.integers(0, len(records)))
    history.trim(cut)
    for time in grid(shape, 4):
        kept = any(leq(low, time) for low in history.since)
        assert kept == (not any(leq(time, lost) for lost in records[:cut]))
