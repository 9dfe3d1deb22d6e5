"""A subscriber: holding back, filter, modes, resuming, ends, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.epochs import (
    PAIRS,
    Aborted,
    Advanced,
    Data,
    Deliver,
    Drop,
    Dropped,
    End,
    Ended,
    Epoch,
    FrontierUpdate,
    Heartbeat,
    Joined,
    Message,
    Mode,
    Ready,
    Skip,
    Skipped,
    Snapshot,
    Subscriber,
    Time,
)
from headrace.epochs.core.effects import Effect
from headrace.epochs.core.lifecycle import Standing
from headrace.errors import (
    EpochBufferFullError,
    EpochCountError,
    EpochError,
    EpochMessageError,
    FrontierError,
    HistoryGoneError,
    IllegalTimeError,
    InvalidConfigError,
    TimeShapeError,
    UnknownPartitionError,
)


def update(old: Time, new: Time, *counts: tuple[Time, int]) -> FrontierUpdate:
    return FrontierUpdate(((old, -1), (new, 1)), counts)


def closing(old: Time, *counts: tuple[Time, int]) -> FrontierUpdate:
    return FrontierUpdate(((old, -1),), counts)


def state_of(subscriber: Subscriber) -> tuple[object, ...]:
    return (
        subscriber.frontier,
        subscriber.filter,
        subscriber.standing,
        subscriber.ready,
        subscriber.held_back,
        subscriber.pending_batches,
        subscriber.delivered,
        subscriber.dropped,
        [subscriber.lower_of(name) for name in subscriber.partitions],
    )


def live(mode: Mode = Mode.STREAMING, upper: tuple[Time, ...] = ()) -> Subscriber:
    subscriber = Subscriber(["p"], mode=mode)
    subscriber.receive("p", Snapshot((0,), upper))
    return subscriber


def test_nothing_is_judged_before_all_snapshots_are_there() -> None:
    subscriber = Subscriber(["a", "b"])
    assert subscriber.receive("a", Snapshot((0,), (2,))) == []
    assert subscriber.receive("a", Data(3, "a3")) == []
    assert subscriber.receive("a", update(0, 3)) == []
    assert (subscriber.held_back, subscriber.waiting_for()) == (2, ("b",))
    assert not subscriber.completed(0)
    effects = subscriber.receive("b", Snapshot((1,), (4,)))
    assert effects == [
        Ready((0,), (4,)),
        Dropped("a", Data(3, "a3"), Drop.FILTERED),
        Advanced((1,)),
    ]
    assert subscriber.completed(0)


def test_one_partition_alone_moves_neither_frontier_nor_filter() -> None:
    subscriber = Subscriber(["a", "b"])
    subscriber.receive("a", Snapshot((0,), (4,)))
    subscriber.receive("b", Snapshot((0,), ()))
    assert subscriber.receive("a", update(0, 9)) == []
    assert (subscriber.frontier, subscriber.filter) == ((0,), (4,))
    assert subscriber.receive("b", update(0, 4)) == [Advanced((4,))]
    assert subscriber.filter == (4,)
    subscriber.receive("b", update(4, 5))
    assert not subscriber.filter


def test_a_snapshot_may_tell_more_times_than_show() -> None:
    subscriber = Subscriber(["p"])
    assert subscriber.receive("p", Snapshot((3, 5, 3), ())) == [Ready((3,), ()), Advanced((3,))]
    assert subscriber.receive("p", FrontierUpdate(((3, -2),))) == [Advanced((5,))]
    assert subscriber.receive("p", closing(5))[0] == Advanced(())


def test_unfiltered_takes_everything() -> None:
    subscriber = live(Mode.UNFILTERED, (5,))
    assert subscriber.receive("p", Data(5, "x")) == [Deliver("p", Data(5, "x"))]
    assert subscriber.filter == (5,)


def test_whole_epochs_come_when_complete_each_with_its_own_place_to_resume() -> None:
    subscriber = live(Mode.WHOLE)
    for time in (2, 1, 2, 7):
        assert subscriber.receive("p", Data(time, f"x{time}")) == []
    assert subscriber.pending_batches == 4
    effects = subscriber.receive("p", update(0, 5, (1, 1), (2, 2)))
    one, two = Deliver("p", Data(1, "x1")), Deliver("p", Data(2, "x2"))
    assert effects == [Epoch(1, (one,), (2,)), Epoch(2, (two, two), (5,)), Advanced((5,))]
    assert subscriber.pending_batches == 1


def test_places_to_resume_are_exact_in_product_order() -> None:
    subscriber = Subscriber(["p"], PAIRS, mode=Mode.WHOLE)
    subscriber.receive("p", Snapshot(((0, 0),), ()))
    for time in ((2, 0), (0, 2), (1, 1)):
        subscriber.receive("p", Data(time, ""))
    counts = (((0, 2), 1), ((1, 1), 1), ((2, 0), 1))
    effects = subscriber.receive("p", update((0, 0), (3, 3), *counts))
    resumes = [effect.resume for effect in effects if isinstance(effect, Epoch)]
    assert resumes == [((1, 1), (2, 0), (3, 3))[:2], ((2, 0), (3, 3))[:1], ((3, 3),)]


def test_a_closed_stream_ends_and_an_end_of_the_link_changes_nothing_then() -> None:
    subscriber = live()
    subscriber.receive("p", Data(9, "z"))
    effects = subscriber.receive("p", closing(0, (9, 1)))
    assert effects == [Advanced(()), Ended(End.CLOSED, "every partition is complete")]
    assert subscriber.completed(10**9)
    assert subscriber.lost("p", "gone") == []
    assert subscriber.end is End.CLOSED
    assert subscriber.receive("p", Data(10, "late")) == []


def test_a_late_subscriber_of_a_closed_stream_ends_at_once() -> None:
    subscriber = Subscriber(["p"])
    effects = subscriber.receive("p", Snapshot((), (9,)))
    assert effects[0] == Ready((), (9,))
    assert subscriber.end is End.CLOSED
    assert subscriber.filter == ()


@pytest.mark.parametrize("told", [True, False])
def test_an_end_with_times_held_is_an_abort(told: bool) -> None:
    subscriber = live()
    subscriber.receive("p", update(0, 4))
    if told:
        effects = subscriber.receive("p", Aborted("crash"))
    else:
        effects = subscriber.lost("p", "crash")
    assert effects == [Ended(End.ABORTED, "partition p: crash")]
    assert (subscriber.frontier, subscriber.completed(3), subscriber.completed(4)) == (
        (4,),
        True,
        False,
    )
    with pytest.raises(EpochMessageError, match="the link is not live"):
        subscriber.receive("p", Data(5, "x"))
    assert subscriber.lost("p", "again") == []


def test_other_partitions_go_on_after_an_abort() -> None:
    subscriber = Subscriber(["a", "b"])
    assert subscriber.lost("a", "refused") == [Ended(End.ABORTED, "partition a: refused")]
    subscriber = Subscriber(["a", "b"])
    subscriber.receive("a", Snapshot((0,), ()))
    subscriber.receive("a", Aborted("crash"))
    assert subscriber.receive("b", Snapshot((0,), ()))[0] == Ready((0,), ())
    assert subscriber.receive("b", Data(1, "x")) == [Deliver("b", Data(1, "x"))]
    assert subscriber.standing is Standing.ABORTED


def test_resumed_it_drops_what_lies_before_and_never_shows_less_than_its_start() -> None:
    subscriber = Subscriber(["p"], start=[5], stored=True)
    assert subscriber.receive("p", Snapshot((2,), ())) == [Ready((2,), ())]
    assert subscriber.frontier == (5,)
    assert subscriber.completed(4)
    dropped = subscriber.receive("p", Data(4, "old"))
    assert dropped == [Dropped("p", Data(4, "old"), Drop.BEFORE_START)]
    assert subscriber.receive("p", Data(5, "new")) == [Deliver("p", Data(5, "new"))]
    assert subscriber.receive("p", update(2, 4)) == []
    assert subscriber.receive("p", update(4, 6, (5, 1))) == [Advanced((6,))]


def test_resuming_is_refused_when_data_was_missed() -> None:
    subscriber = Subscriber(["p"], start=[5], stored=True)
    before = state_of(subscriber)
    with pytest.raises(HistoryGoneError) as gone:
        subscriber.receive("p", Snapshot((2,), (7,)))
    assert (gone.value.frontier, gone.value.since) == ((5,), (8,))
    assert state_of(subscriber) == before
    assert subscriber.receive("p", Snapshot((2,), (4,))) == [Ready((2,), (4,))]


def test_a_token_carries_the_frontier() -> None:
    subscriber = Subscriber(["p"], stored=True)
    subscriber.receive("p", Snapshot((0,), ()))
    subscriber.receive("p", update(0, 4))
    assert subscriber.token("c", [("orders", "1")]).frontier == (4,)


def test_until_stops_when_all_before_it_is_complete() -> None:
    subscriber = Subscriber(["p"], until=[3])
    subscriber.receive("p", Snapshot((0,), ()))
    subscriber.receive("p", Data(2, "x"))
    beyond = subscriber.receive("p", Data(3, "y"))
    assert beyond == [Dropped("p", Data(3, "y"), Drop.AFTER_END)]
    assert subscriber.receive("p", update(0, 2)) == [Advanced((2,))]
    ended = subscriber.receive("p", update(2, 8, (2, 1), (3, 1)))
    assert ended[-1] == Ended(End.REACHED, "everything before {3} is complete")


def test_rows_that_are_missing_are_noticed_and_nothing_is_given_out() -> None:
    subscriber = live(Mode.WHOLE)
    subscriber.receive("p", Data(2, "x", rows=3))
    for wrong in (update(0, 5, (2, 4)), update(0, 5, (2, 2)), update(0, 5), update(0, 5, (1, 1))):
        before = state_of(subscriber)
        with pytest.raises(EpochCountError, match="have arrived"):
            subscriber.receive("p", wrong)
        assert state_of(subscriber) == before
    with pytest.raises(EpochCountError, match="6 is not complete"):
        subscriber.receive("p", update(0, 5, (6, 1)))
    assert isinstance(subscriber.receive("p", update(0, 5, (2, 3)))[0], Epoch)


def test_rows_of_epochs_that_had_begun_are_not_counted() -> None:
    subscriber = live(upper=(4,))
    subscriber.receive("p", Data(4, "x"))
    assert subscriber.receive("p", update(0, 6, (4, 17))) == [Advanced((6,))]
    rows = subscriber._links["p"]._rows
    assert rows is not None
    assert len(rows.partial) == 0


def test_a_skip_voids_what_is_incomplete_and_is_told() -> None:
    subscriber = live(Mode.WHOLE)
    for time in (2, 4, 9):
        subscriber.receive("p", Data(time, f"x{time}"))
    effects = subscriber.receive("p", Skip((3,), (4,), ()))
    assert effects == [Skipped("p", (4,)), Advanced((3,))]
    assert (subscriber.filter, subscriber.pending_batches) == ((4,), 1)
    assert subscriber.receive("p", Data(4, "rest"))[0] == Dropped(
        "p", Data(4, "rest"), Drop.FILTERED
    )
    effects = subscriber.receive("p", update(3, 10, (4, 9), (9, 1)))
    assert isinstance(effects[0], Epoch)
    assert effects[0].time == 9


def test_a_skip_that_goes_back_or_miscounts_is_refused() -> None:
    subscriber = live()
    subscriber.receive("p", update(0, 3))
    subscriber.receive("p", Data(5, "x"))
    before = state_of(subscriber)
    for bad in (Skip((2,), (4,)), Skip((6,), (4,), ((5, 2),)), Skip((6,), (4,))):
        with pytest.raises((FrontierError, EpochCountError)):
            subscriber.receive("p", bad)
        assert state_of(subscriber) == before
    subscriber.receive("p", Skip((6,), (4,), ((5, 1),)))


def test_a_heartbeat_that_does_not_fit_shows_that_something_is_missing() -> None:
    subscriber = live()
    assert subscriber.receive("p", Heartbeat((0,))) == []
    with pytest.raises(FrontierError, match="a message is missing"):
        subscriber.receive("p", Heartbeat((1,)))


def test_a_new_partition_is_awaited_where_it_begins() -> None:
    subscriber = live()
    subscriber.receive("p", Data(3, "early"))
    subscriber.add_partition("q", [5])
    assert subscriber.receive("p", Data(6, "p6")) == []  # q may have begun 6
    assert subscriber.receive("p", Data(4, "p4")) == [Deliver("p", Data(4, "p4"))]
    assert subscriber.receive("p", update(0, 9, (3, 1), (4, 1), (6, 1))) == [Advanced((5,))]
    effects = subscriber.receive("q", Snapshot((5,), (6,)))
    assert effects == [Joined("q", (5,), (6,)), Dropped("p", Data(6, "p6"), Drop.FILTERED)]
    assert subscriber.receive("q", Data(6, "q6"))[0] == Dropped("q", Data(6, "q6"), Drop.FILTERED)
    assert subscriber.receive("q", Data(7, "q7")) == [Deliver("q", Data(7, "q7"))]
    assert subscriber.receive("q", update(5, 8, (6, 9), (7, 1))) == [Advanced((8,))]
    assert subscriber._gate.late == []  # what had begun there is over


def test_a_new_partition_that_is_farther_than_announced_moves_the_frontier() -> None:
    subscriber = live(Mode.WHOLE)
    subscriber.add_partition("q", [5])
    subscriber.receive("p", Data(6, "x"))
    subscriber.receive("p", update(0, 9, (6, 1)))
    effects = subscriber.receive("q", Snapshot((8,), ()))
    assert effects == [
        Joined("q", (5,), ()),
        Epoch(6, (Deliver("p", Data(6, "x")),), (8,)),
        Advanced((8,)),
    ]


def test_a_new_partition_does_not_filter_what_lies_before_it() -> None:
    subscriber = live()
    subscriber.add_partition("q", [5])
    subscriber.receive("p", Data(4, "half"))
    subscriber.receive("q", Snapshot((5,), (9,)))
    assert subscriber.receive("p", Data(4, "other half")) == [Deliver("p", Data(4, "other half"))]
    assert subscriber.receive("p", Data(5, "x"))[0] == Dropped("p", Data(5, "x"), Drop.FILTERED)


def test_a_new_partition_must_lie_in_the_future() -> None:
    subscriber = live()
    subscriber.receive("p", update(0, 4))
    subscriber.receive("p", Data(6, "seen"))
    before = state_of(subscriber)
    for at, error in (([3], FrontierError), ([5], FrontierError), ([(5,)], TimeShapeError)):
        with pytest.raises(error):
            subscriber.add_partition("q", at)
    with pytest.raises(EpochMessageError):
        subscriber.add_partition("p", [9])
    assert state_of(subscriber) == before
    with pytest.raises(EpochMessageError):
        Subscriber(["p"]).add_partition("q", [9])
    subscriber.add_partition("q", [7])
    with pytest.raises(FrontierError, match="it is before"):
        subscriber.receive("q", Snapshot((6,), ()))


def test_what_is_held_is_bounded() -> None:
    subscriber = Subscriber(["a", "b"], mode=Mode.WHOLE, batches_max=2)
    subscriber.receive("a", Snapshot((0,), ()))
    subscriber.receive("a", Data(1, "x"))
    subscriber.receive("a", Data(1, "y"))
    with pytest.raises(EpochBufferFullError, match="2 batches are held already"):
        subscriber.receive("a", Data(1, "z"))
    subscriber.receive("a", update(0, 2, (1, 2)))  # there is room for what is no data
    subscriber.receive("b", Snapshot((0,), ()))
    assert (subscriber.held_back, subscriber.pending_batches) == (0, 2)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Snapshot((0,), ()), EpochMessageError),
        (Data(2, "x"), IllegalTimeError),
        (Data(7, "x", rows=-1), IllegalTimeError),
        (Data((1, 2), "x"), TimeShapeError),
        (update(3, 2), FrontierError),
        (update(2, 5), FrontierError),
        (update(3, (4, 4)), TimeShapeError),
        (update(3, 5, ((1, 1), 1)), TimeShapeError),
        (Skip((1,), ()), FrontierError),
        (Skip(((1, 1),), ()), TimeShapeError),
        (Heartbeat(()), FrontierError),
    ],
)
def test_an_illegal_message_is_named_and_changes_nothing(
    message: Message, error: type[EpochError]
) -> None:
    subscriber = live()
    subscriber.receive("p", update(0, 3))
    before = state_of(subscriber)
    with pytest.raises(error) as refused:
        subscriber.receive("p", message)
    assert state_of(subscriber) == before
    if isinstance(refused.value, EpochError):
        assert type(message).__name__ in refused.value.update
        assert "lower frontier {3}" in refused.value.state


def test_a_message_before_the_snapshot_or_of_a_stranger_is_refused() -> None:
    subscriber = Subscriber(["p"])
    for message in (Data(1, "x"), update(0, 1), Heartbeat((0,)), Aborted("?")):
        with pytest.raises(EpochMessageError, match="a snapshot comes first"):
            subscriber.receive("p", message)
    for call in (
        lambda: subscriber.receive("q", Snapshot((0,), ())),
        lambda: subscriber.lost("q", "?"),
        lambda: subscriber.lower_of("q"),
        lambda: subscriber.judge_many("q", np.zeros(1, dtype=np.int64)),
    ):
        with pytest.raises(UnknownPartitionError, match="'q' is not one of"):
            call()
    with pytest.raises(InvalidConfigError):
        Subscriber([])


def test_arrays_are_refused_whole() -> None:
    subscriber = live()
    subscriber.receive("p", update(0, 3))
    before = state_of(subscriber)
    for times, rows in (
        (np.array([5, 2, 6]), None),
        (np.array([[5, 5]]), None),
        (np.array([5.0]), None),
        (np.array([5]), np.array([1, 2])),
        (np.array([5]), np.array([-1])),
    ):
        with pytest.raises((EpochError, TimeShapeError)):
            subscriber.judge_many("p", times, rows)
        assert state_of(subscriber) == before
    with pytest.raises(EpochMessageError, match="only a streaming"):
        live(Mode.WHOLE).judge_many("p", np.array([5]))
    assert subscriber.judge_many("p", np.zeros(0, dtype=np.int64)).tolist() == []


def test_arrays_are_counted_like_single_batches() -> None:
    subscriber = live(upper=(4,))
    far = np.array([3, 5, 5, 10**15, 6])
    rows = np.array([1, 2, 3, 4, 0])
    assert subscriber.judge_many("p", far, rows).tolist() == [False, True, True, True, True]
    assert (subscriber.delivered, subscriber.dropped) == (4, 1)
    counts = ((3, 1), (5, 5), (6, 0))
    assert subscriber.receive("p", update(0, 7, *counts)) == [Advanced((7,))]
    ended = subscriber.receive("p", closing(7, (10**15, 4)))
    assert ended[-1] == Ended(End.CLOSED, "every partition is complete")
    assert subscriber.judge_many("p", far).tolist() == [False] * 5


def only(effects: list[Effect]) -> Effect:
    (effect,) = effects
    return effect


def test_incomparable_times_pass_the_filter() -> None:
    subscriber = Subscriber(["p"], PAIRS)
    subscriber.receive("p", Snapshot(((0, 0),), ((1, 2),)))
    verdicts = {
        time: isinstance(only(subscriber.receive("p", Data(time, ""))), Deliver)
        for time in ((0, 3), (2, 0), (1, 3), (0, 2), (1, 2))
    }
    assert verdicts == {(0, 3): True, (2, 0): True, (1, 3): True, (0, 2): False, (1, 2): False}


@given(st.data())
def test_batches_that_just_wait_are_judged_as_all_others(data: st.DataObject) -> None:
    """A subscriber whose room is bounded, however large, looks at each of them by itself."""
    start = data.draw(st.none() | st.integers(0, 6))
    until = data.draw(st.none() | st.integers(3, 9))
    both = [
        Subscriber(
            ["p", "q"],
            mode=Mode.WHOLE,
            start=None if start is None else (start,),
            until=None if until is None else (until,),
            stored=True,
            counts=False,
            batches_max=room,
        )
        for room in (None, 10**9)
    ]
    lower = {"p": 0, "q": 0}
    upper = data.draw(st.sampled_from([(), (2,)])) if start is None else ()
    for name in lower:
        found = [one.receive(name, Snapshot((0,), upper)) for one in both]
        assert found[0] == found[1]
    for _ in range(data.draw(st.integers(0, 12))):
        name = data.draw(st.sampled_from(["p", "q"]))
        messages: list[Message] = []
        for time in data.draw(st.lists(st.integers(0, 10), max_size=5)):
            messages.append(Data(time, b"", 1, data.draw(st.sampled_from("ab"))))
        if data.draw(st.booleans()):
            after = lower[name] + data.draw(st.integers(1, 3))
            messages.append(FrontierUpdate(((lower[name], -1), (after, 1))))
            lower[name] = after
        answers: list[tuple[list[Effect], type[EpochError] | None]] = []
        for one in both:
            effects: list[Effect] = []
            try:
                one.receive_all(name, messages, effects)
            except EpochError as error:
                answers.append((effects, type(error)))
            else:
                answers.append((effects, None))
        assert answers[0] == answers[1]
        if answers[0][1] is not None:
            lower[name] = int(str(both[0].lower_of(name)[0]))
        assert both[0].frontier == both[1].frontier
        assert both[0].pending_batches == both[1].pending_batches
        assert (both[0].delivered, both[0].dropped) == (both[1].delivered, both[1].dropped)
