"""The publisher of a partition: what is legal, what is told, what is counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.epochs import (
    PAIRS,
    Aborted,
    Data,
    FrontierUpdate,
    Heartbeat,
    Publisher,
    QueuePolicy,
    QueueSettings,
    Snapshot,
    Time,
)
from headrace.epochs.core.lifecycle import EPOCH_TRANSITIONS, EpochState
from headrace.errors import (
    EpochError,
    EpochMessageError,
    FrontierError,
    IllegalTimeError,
    InvalidInputError,
    PublisherBlockedError,
    SubscriberExistsError,
    TimeShapeError,
    UnknownSubscriberError,
)
from tests.epochs.core.support import SHAPES, leq, maximal, minimal, times


def state_of(publisher: Publisher) -> tuple[Any, ...]:
    return (
        publisher.capabilities,
        publisher.lower,
        publisher.upper,
        publisher.active_rows,
        publisher.aborted,
        [(name, len(publisher.queue(name))) for name in publisher.subscribers],
    )


def test_it_begins_with_the_first_of_all_times_held_and_nothing_seen() -> None:
    assert (Publisher().lower, Publisher().upper) == ((0,), ())
    assert Publisher(PAIRS).lower == ((0, 0),)


def test_a_subscriber_is_sent_a_snapshot_then_what_happens() -> None:
    publisher = Publisher()
    publisher.data(4, "before")
    publisher.connect("s")
    publisher.data(5, "a", rows=3)
    publisher.progress([(0, -1), (6, 1)])
    assert publisher.take("s") == [
        Snapshot((0,), (4,)),
        Data(5, "a", 3),
        FrontierUpdate(((0, -1), (6, 1)), ((4, 1), (5, 3))),
    ]
    assert publisher.take("s") == []


def test_the_upper_frontier_is_not_cut_by_progress() -> None:
    publisher = Publisher(PAIRS)
    publisher.data((1, 2), "a")
    publisher.data((2, 0), "b")
    publisher.data((0, 1), "c")
    publisher.progress([((0, 0), -1), ((5, 5), 1)])
    assert publisher.upper == ((1, 2), (2, 0))


@pytest.mark.parametrize("time", [(0, 1), (0, 0)])
def test_a_completed_time_takes_no_data_and_no_capability(time: Time) -> None:
    publisher = Publisher(PAIRS)
    publisher.connect("s")
    publisher.progress([((0, 0), -1), ((1, 0), 1), ((0, 2), 1)])
    before = state_of(publisher)
    with pytest.raises(IllegalTimeError, match="data at") as refused:
        publisher.data(time, "bad")
    assert "lower {(0, 2), (1, 0)}" in refused.value.state
    with pytest.raises(IllegalTimeError, match="progress"):
        publisher.progress([((1, 0), -1), (time, 1)])
    assert state_of(publisher) == before


def test_what_is_not_held_cannot_be_let_go() -> None:
    publisher = Publisher()
    before = state_of(publisher)
    for update in ([(3, -1)], [(0, -2)], [(5, 1), (3, -1)]):
        with pytest.raises(FrontierError):
            publisher.progress(update)
    assert state_of(publisher) == before


def test_times_of_the_wrong_shape_and_negative_rows_change_nothing() -> None:
    publisher = Publisher()
    before = state_of(publisher)
    with pytest.raises(TimeShapeError):
        publisher.data((1, 2), "bad")
    with pytest.raises(TimeShapeError):
        publisher.progress([(0, -1), ((1, 2), 1)])
    with pytest.raises(InvalidInputError, match="-1 rows"):
        publisher.data(1, "bad", rows=-1)
    assert state_of(publisher) == before


def test_invisible_progress_is_not_told() -> None:
    publisher = Publisher()
    publisher.connect("s")
    publisher.take("s")
    assert publisher.progress([(0, 1)]).message is None
    assert publisher.progress([(0, -1)]).message is None
    assert publisher.take("s") == []


def test_closed_is_complete_and_takes_nothing_more() -> None:
    publisher = Publisher()
    publisher.connect("s")
    publisher.progress([(0, 1), (7, 1)])
    publisher.data(9, "z")
    publisher.close()
    assert publisher.closed
    assert publisher.take("s")[-1] == FrontierUpdate(((0, -1),), ((9, 1),))
    assert publisher.abort("too late").message is None
    with pytest.raises(IllegalTimeError):
        publisher.data(10, "bad")


def test_an_abort_is_told_to_all_and_to_those_who_come_later() -> None:
    publisher = Publisher()
    publisher.connect("early")
    assert publisher.abort("disk on fire").message == Aborted("disk on fire")
    publisher.connect("late")
    assert publisher.take("early") == publisher.take("late")
    with pytest.raises(EpochMessageError, match="has aborted"):
        publisher.data(1, "")
    with pytest.raises(EpochMessageError, match="has aborted"):
        publisher.progress([])
    with pytest.raises(EpochMessageError):
        publisher.abort("again")


def test_names_of_subscribers_are_taken_once_and_must_be_known() -> None:
    publisher = Publisher()
    publisher.connect("s")
    with pytest.raises(SubscriberExistsError):
        publisher.connect("s")
    for refused in (publisher.take, publisher.disconnect, publisher.heartbeat, publisher.queue):
        with pytest.raises(UnknownSubscriberError):
            refused("t")
    assert publisher.subscribers == ("s",)


def test_those_who_stay_are_served_when_an_early_one_leaves() -> None:
    publisher = Publisher()
    for name in ("a", "b", "c"):
        publisher.connect(name)
    publisher.disconnect("a")
    publisher.data(1, "x")
    publisher.connect("d")
    publisher.data(2, "y")
    assert [len(publisher.take(name)) for name in ("b", "c", "d")] == [3, 3, 2]


def test_a_heartbeat_is_due_only_when_nothing_waits() -> None:
    publisher = Publisher()
    publisher.connect("s")
    assert publisher.heartbeat("s") is None
    publisher.take("s")
    assert publisher.heartbeat("s") == Heartbeat((0,))
    publisher.abort("crash")
    publisher.take("s")
    assert publisher.heartbeat("s") is None


def test_a_blocked_publisher_says_for_whom_and_changes_nothing() -> None:
    publisher = Publisher()
    publisher.connect("slow", QueueSettings(QueuePolicy.BLOCK, batches_max=1))
    publisher.data(1, "a")
    before = state_of(publisher)
    with pytest.raises(PublisherBlockedError) as blocked:
        publisher.data(2, "b")
    assert blocked.value.subscribers == ("slow",)
    assert state_of(publisher) == before
    publisher.progress([(0, -1), (1, 1)])  # progress never waits
    publisher.take("slow")
    publisher.data(2, "b")


@settings(deadline=None)
@given(st.data())
def test_frontiers_and_counts_follow_the_definition(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    publisher = Publisher(shape)
    held: list[Time] = [shape.bottom]
    seen: dict[Time, int] = {}
    states: dict[Time, EpochState] = {}
    steps = {(source, target) for (source, _), target in EPOCH_TRANSITIONS.items()}
    told: dict[Time, int] = {}
    for _ in range(data.draw(st.integers(1, 15))):
        time = data.draw(times(shape))
        legal = any(leq(low, time) for low in held)
        rows = data.draw(st.integers(0, 3))
        before = state_of(publisher)
        exchange = bool(held) and data.draw(st.booleans())
        try:
            if exchange:
                old = data.draw(st.sampled_from(held))
                message = publisher.progress([(old, -1), (time, 1)]).message
                held.remove(old)
                held.append(time)
            elif held and data.draw(st.integers(0, 5)) == 0:
                old = held.pop()
                message = publisher.progress([(old, -1)]).message
                legal = True
            else:
                message = publisher.data(time, "", rows).message
                seen[time] = seen.get(time, 0) + rows
            assert legal
        except EpochError:
            assert not legal
            assert state_of(publisher) == before
            continue
        if isinstance(message, FrontierUpdate):
            for epoch, count in message.counts:
                assert epoch not in told
                told[epoch] = count
        assert set(publisher.lower) == minimal(held)
        assert set(publisher.upper) == maximal(seen)
        completed = {t for t in seen if not any(leq(low, t) for low in held)}
        assert told == {t: seen[t] for t in completed}
        for epoch in {*seen, time}:
            state = publisher.state(epoch)
            was = states.get(epoch, EpochState.LATENT)
            assert state == was or (was, state) in steps
            states[epoch] = state
