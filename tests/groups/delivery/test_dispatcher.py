"""The dispatcher, behaviour by behaviour."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import numpy as np
import pytest

from headrace.errors import (
    DeliveryError,
    FeedError,
    Fenced,
    InvalidDelayError,
    InvalidDeliveryConfigError,
    ProgressDecodeError,
    StaleDeliveryError,
    UnknownDeliveryError,
)
from headrace.groups.delivery import DeadLetter, DeliveryConfig, Dispatcher, Reason, Retry, Stalled
from headrace.groups.delivery import dispatcher as dispatcher_module
from headrace.groups.progress import Progress

A, B, C = 1, 2, 3


def dispatcher_of(
    *keys: int, progress: Progress | None = None, config: DeliveryConfig | None = None
) -> Dispatcher:
    made = Dispatcher(config or DeliveryConfig(), progress)
    start = made.next_offset
    made.feed(range(start, start + len(keys)), keys, start + len(keys))
    return made


def test_docstring_example_holds() -> None:
    assert doctest.testmod(dispatcher_module).failed == 0


# --- order and limits ----------------------------------------------------------------------


def test_events_of_one_key_come_one_at_a_time_while_others_are_in_flight() -> None:
    dispatcher = dispatcher_of(A, A, B, A, C)
    assert dispatcher.take(10, 0).offsets == [0, 2, 4]
    assert dispatcher.take(10, 0).offsets == []
    dispatcher.ack(0, 1, 1)
    assert dispatcher.take(10, 1).offsets == [1]
    dispatcher.ack(1, 1, 2)
    assert dispatcher.take(10, 2).offsets == [3]


def test_max_pending_bounds_what_is_in_flight() -> None:
    dispatcher = dispatcher_of(*range(10), config=DeliveryConfig(max_pending=3))
    assert dispatcher.take(10, 0).offsets == [0, 1, 2]
    dispatcher.ack(1, 1, 0)
    assert dispatcher.take(10, 0).offsets == [3]


def test_max_pending_of_one_is_strictly_one_at_a_time_even_after_a_nack() -> None:
    config = DeliveryConfig(max_pending=1)
    dispatcher = dispatcher_of(A, B, config=config)
    assert dispatcher.take(10, 0).offsets == [0]
    dispatcher.nack(0, 1, 0, delay_ms=50)
    assert dispatcher.take(10, 49).offsets == []
    assert dispatcher.take(10, 50).offsets == [0]
    dispatcher.ack(0, 2, 50)
    assert dispatcher.take(10, 50).offsets == [1]


def test_more_than_one_of_a_key_may_be_in_flight_when_asked_for() -> None:
    dispatcher = dispatcher_of(A, A, A, B, config=DeliveryConfig(max_pending_per_key=2))
    assert dispatcher.take(10, 0).offsets == [0, 1, 3]
    dispatcher.ack(1, 1, 0)
    assert dispatcher.take(10, 0).offsets == [2]


def test_a_refused_event_comes_before_the_next_of_its_key_even_with_several_in_flight() -> None:
    dispatcher = dispatcher_of(A, A, A, A, config=DeliveryConfig(max_pending_per_key=2))
    assert dispatcher.take(10, 0).offsets == [0, 1]
    dispatcher.ack(0, 1, 0)  # frees 2, which has not been taken yet
    dispatcher.nack(1, 1, 0, delay_ms=10)
    assert dispatcher.take(10, 5).offsets == []
    assert dispatcher.take(10, 10).offsets == [1, 2]


def test_two_refused_events_of_a_key_come_again_in_their_order() -> None:
    dispatcher = dispatcher_of(A, A, A, config=DeliveryConfig(max_pending_per_key=3))
    dispatcher.take(10, 0)
    dispatcher.nack(1, 1, 0, delay_ms=5)
    dispatcher.nack(0, 1, 0, delay_ms=20)
    dispatcher.nack(2, 1, 0, delay_ms=1)
    assert dispatcher.take(10, 19).offsets == []
    assert dispatcher.take(10, 20).offsets == [0, 1, 2]


def test_take_gives_no_more_than_asked_for() -> None:
    dispatcher = dispatcher_of(*range(10))
    assert dispatcher.take(0, 0).offsets == []
    assert dispatcher.take(4, 0).offsets == [0, 1, 2, 3]


# --- refusals ------------------------------------------------------------------------------


def test_a_nacked_event_comes_again_before_the_next_of_its_key() -> None:
    dispatcher = dispatcher_of(A, A, B)
    dispatcher.take(10, 0)
    assert dispatcher.nack(0, 1, 0, delay_ms=30) == Retry(0, 1, 30, Reason.NACKED)
    assert dispatcher.take(10, 29).offsets == []
    again = dispatcher.take(10, 30)
    assert (again.offsets, again.attempts) == ([0], [2])


def test_back_off_grows_with_every_attempt_up_to_its_maximum() -> None:
    config = DeliveryConfig(backoff_min_ms=10, backoff_max_ms=65)
    dispatcher = dispatcher_of(A, config=config)
    now, waits = 0, []
    for attempt in range(1, 7):
        assert dispatcher.take(1, now).attempts == [attempt]
        outcome = dispatcher.nack(0, attempt, now)
        assert isinstance(outcome, Retry)
        waits.append(outcome.due_ms - now)
        now = outcome.due_ms
    assert waits == [10, 20, 40, 65, 65, 65]


def test_an_unanswered_event_times_out_and_comes_again_before_the_next_of_its_key() -> None:
    config = DeliveryConfig(ack_wait_ms=100, backoff_min_ms=5)
    dispatcher = dispatcher_of(A, A, B, config=config)
    dispatcher.take(1, 0)
    dispatcher.take(1, 50)
    assert dispatcher.tick(99) == []
    assert dispatcher.wake_at_ms == 100
    assert dispatcher.tick(100) == [Retry(0, 1, 105, Reason.TIMED_OUT)]
    assert dispatcher.take(10, 105).offsets == [0]
    assert dispatcher.tick(150) == [Retry(2, 1, 155, Reason.TIMED_OUT)]


def test_extend_gives_the_whole_time_again() -> None:
    dispatcher = dispatcher_of(A, B, config=DeliveryConfig(ack_wait_ms=100))
    dispatcher.take(2, 0)
    assert dispatcher.extend(0, 1, 90) == 190
    assert [r.offset for r in dispatcher.tick(150) if isinstance(r, Retry)] == [1]
    dispatcher.ack(0, 1, 189)


def test_time_that_runs_backwards_stands_still() -> None:
    dispatcher = dispatcher_of(A, B, config=DeliveryConfig(ack_wait_ms=100))
    dispatcher.take(1, 1000)
    assert dispatcher.take(1, 500).deadline_ms == 1100
    assert dispatcher.tick(0) == []


def test_used_up_deliveries_make_a_dead_letter_and_then_the_key_continues() -> None:
    config = DeliveryConfig(max_deliveries=2, backoff_min_ms=0)
    dispatcher = dispatcher_of(A, A, config=config)
    dispatcher.take(10, 0)
    dispatcher.nack(0, 1, 0)
    dispatcher.take(10, 1)
    letter = DeadLetter(0, 2, Reason.NACKED, "bad total")
    assert dispatcher.nack(0, 2, 1, detail="bad total") == letter
    assert dispatcher.dying == {0: letter}
    assert dispatcher.take(10, 2).offsets == []  # not before the dead letter is stored
    assert dispatcher.progress().floor == 0
    dispatcher.dead_lettered(0, 3)
    assert dispatcher.take(10, 3).offsets == [1]
    assert dispatcher.progress() == Progress(floor=1)


def test_reject_makes_a_dead_letter_at_once() -> None:
    dispatcher = dispatcher_of(A, A)
    dispatcher.take(1, 0)
    assert dispatcher.reject(0, 1, 0, "unreadable") == DeadLetter(
        0, 1, Reason.REJECTED, "unreadable"
    )
    assert not dispatcher.idle
    dispatcher.dead_lettered(0, 1)
    assert dispatcher.idle
    assert dispatcher.take(1, 1).offsets == [1]


# --- progress and hand-over ----------------------------------------------------------------


def test_progress_keeps_exact_ranges_and_the_floor_never_passes_a_hole() -> None:
    dispatcher = dispatcher_of(*range(6))
    dispatcher.take(10, 0)
    dispatcher.ack_many([1, 2, 4], 0)
    assert dispatcher.progress() == Progress(floor=0, ranges=((1, 3), (4, 5)))
    dispatcher.ack(0, 1, 0)
    assert dispatcher.progress() == Progress(floor=3, ranges=((4, 5),))


def test_the_next_owner_is_not_given_what_is_acked_and_counts_attempts_on() -> None:
    first = dispatcher_of(A, B, C, A)
    first.take(10, 0)
    first.ack(1, 1, 0)
    first.nack(0, 1, 0)
    record = Progress.decode(first.progress().encode())
    second = dispatcher_of(A, B, C, A, progress=record)
    handed = second.take(10, 0)
    assert (handed.offsets, handed.attempts) == ([0, 2], [2, 1])


def test_a_dead_letter_that_was_not_stored_is_repeated_by_the_next_owner_without_delivery() -> None:
    config = DeliveryConfig(max_deliveries=1)
    first = dispatcher_of(A, A, config=config)
    first.take(10, 0)
    first.nack(0, 1, 0)
    second = dispatcher_of(A, A, config=config, progress=first.progress())
    assert second.take(10, 0).offsets == []
    assert second.dying == {0: DeadLetter(0, 1, Reason.EXHAUSTED)}
    second.dead_lettered(0, 0)
    assert second.take(10, 0).offsets == [1]


def test_offsets_that_are_not_fed_hold_nothing_for_the_group() -> None:
    dispatcher = Dispatcher(DeliveryConfig())
    dispatcher.feed([2, 5], [A, B], end=8)
    dispatcher.take(10, 0)
    assert dispatcher.progress() == Progress(floor=2, ranges=((3, 5), (6, 8)))
    dispatcher.ack_many([2, 5], 0)
    assert dispatcher.progress() == Progress(floor=8)
    assert dispatcher.caught_up
    dispatcher.feed([], [], end=12)
    assert dispatcher.progress() == Progress(floor=12)


def test_draining_hands_out_nothing_and_waits_for_what_is_in_flight() -> None:
    dispatcher = dispatcher_of(A, B)
    dispatcher.take(1, 0)
    dispatcher.pause()
    assert (dispatcher.take(10, 0).offsets, dispatcher.wanted, dispatcher.idle) == ([], 0, False)
    dispatcher.ack(0, 1, 0)
    assert dispatcher.idle
    assert dispatcher.progress() == Progress(floor=1)


def test_what_rests_wakes_nobody_once_the_unit_is_drained_or_lost() -> None:
    dispatcher = dispatcher_of(A, B)
    dispatcher.take(2, 0)
    dispatcher.nack(0, 1, 0, delay_ms=50)
    assert dispatcher.wake_at_ms == 50
    dispatcher.pause()
    assert dispatcher.wake_at_ms == dispatcher.config.ack_wait_ms  # of what is in flight
    dispatcher.ack(1, 1, 0)
    assert dispatcher.wake_at_ms is None
    assert dispatcher.progress() == Progress(floor=0, ranges=((1, 2),), attempts=((0, 1),))
    lost = dispatcher_of(A)
    lost.take(1, 0)
    lost.fence(Fenced("billing", "0", 1, 2))
    assert lost.wake_at_ms is None


# --- bounds --------------------------------------------------------------------------------


def test_the_buffer_says_how_much_it_wants_and_refuses_more() -> None:
    dispatcher = dispatcher_of(A, A, A, config=DeliveryConfig(buffer_events_max=4))
    assert dispatcher.wanted == 1
    with pytest.raises(FeedError, match="only 1 are wanted"):
        dispatcher.feed([3, 4], [A, B], 5)
    assert (dispatcher.next_offset, dispatcher.wanted) == (3, 1)
    assert dispatcher.take(10, 0).offsets == [0]
    assert dispatcher.wanted == 2
    dispatcher.feed([3, 4], [A, B], 5)
    dispatcher.ack(0, 1, 0)
    assert dispatcher.wanted == 0
    assert dispatcher.take(10, 0).offsets == [1, 4]
    assert dispatcher.wanted == 2


def test_memory_does_not_grow_with_what_has_passed() -> None:
    dispatcher = Dispatcher(DeliveryConfig(buffer_events_max=100, max_pending=50))
    for start in range(0, 20_000, 100):
        offsets = np.arange(start, start + 100)
        dispatcher.feed(offsets, offsets % 7, start + 100)
        while not dispatcher.caught_up:
            dispatcher.ack_many(dispatcher.take(50, start).offsets, start)
    order = dispatcher._order
    state = vars(dispatcher) | {name: getattr(order, name) for name in order.__slots__}
    sizes = {name: len(part) for name, part in state.items() if hasattr(part, "__len__")}
    assert len(sizes) >= 10
    assert max(sizes.values()) <= 100, sizes


@pytest.mark.parametrize(
    ("offsets", "keys", "end"),
    [
        ([1], [A], 3),  # before next_offset
        ([3], [A], 3),  # not below the end
        ([4, 3], [A, B], 5),
        ([3, 3], [A, B], 5),
        ([3], [A, B], 5),
        ([], [], 2),
        ([], [], 2**63),
    ],
)
def test_feeds_that_do_not_continue_are_refused(
    offsets: list[int], keys: list[int], end: int
) -> None:
    dispatcher = dispatcher_of(A, A, A)
    before = dispatcher.statistics()
    with pytest.raises(FeedError):
        dispatcher.feed(offsets, keys, end)
    assert (dispatcher.next_offset, dispatcher.statistics()) == (3, before)


# --- stalls --------------------------------------------------------------------------------


def test_a_consumer_that_answers_nothing_has_stalled_though_its_events_time_out() -> None:
    config = DeliveryConfig(ack_wait_ms=100, backoff_min_ms=1, stall_after_ms=350)
    dispatcher = dispatcher_of(A, B, config=config)
    seen: list[Stalled] = []
    for now in range(0, 1000, 10):
        dispatcher.take(10, now)
        seen += [o for o in dispatcher.tick(now) if isinstance(o, Stalled)]
    assert seen == [Stalled(silent_since_ms=0, unanswered=2, oldest_offset=0)]


def test_any_answer_ends_the_silence() -> None:
    config = DeliveryConfig(ack_wait_ms=10_000, stall_after_ms=100)
    dispatcher = dispatcher_of(A, B, C, config=config)
    dispatcher.take(10, 0)
    answers: list[Callable[[int], object]] = [
        lambda now: dispatcher.extend(0, 1, now),
        lambda now: dispatcher.ack(0, 1, now),
        lambda now: dispatcher.nack(1, 1, now),
    ]
    for number, answer in enumerate(answers, start=1):
        assert dispatcher.wake_at_ms == 90 * (number - 1) + 100
        answer(90 * number)
        assert dispatcher.tick(90 * number + 1) == []
    assert dispatcher.tick(369) == []
    assert [type(o) for o in dispatcher.tick(370)] == [Stalled]
    assert dispatcher.tick(500) == []


def test_an_idle_consumer_has_not_stalled() -> None:
    dispatcher = dispatcher_of(A, config=DeliveryConfig(stall_after_ms=100))
    dispatcher.take(1, 0)
    dispatcher.ack(0, 1, 50)
    assert dispatcher.tick(10_000) == []
    assert dispatcher.wake_at_ms is None


# --- illegal answers -----------------------------------------------------------------------


def stale_dispatcher() -> Dispatcher:
    """0 acked, 1 at attempt 2, 2 refused, 3 dying, 4 buffered behind 1; keys 0 to 3 and 1."""
    config = DeliveryConfig(max_deliveries=9)
    dispatcher = dispatcher_of(0, 1, 2, 3, 1, config=config)
    dispatcher.take(10, 0)
    dispatcher.ack(0, 1, 0)
    dispatcher.nack(1, 1, 0, delay_ms=0)
    dispatcher.take(10, 0)
    dispatcher.nack(2, 1, 0, delay_ms=1000)
    dispatcher.reject(3, 1, 0)
    return dispatcher


@pytest.mark.parametrize(
    ("offset", "attempt", "error", "says"),
    [
        (0, 1, StaleDeliveryError, "it is acked"),
        (1, 1, StaleDeliveryError, "attempt 2 is in flight"),
        (1, 3, UnknownDeliveryError, "attempt 3 was never handed out"),
        (1, 0, UnknownDeliveryError, "attempt 0 was never handed out"),
        (2, 1, StaleDeliveryError, "comes again"),
        (3, 1, StaleDeliveryError, "dead letter"),
        (4, 1, UnknownDeliveryError, "never handed out"),
        (99, 1, UnknownDeliveryError, "never handed out"),
    ],
)
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "extend"])
def test_answers_that_do_not_count_raise_and_change_nothing(
    verb: str, offset: int, attempt: int, error: type[DeliveryError], says: str
) -> None:
    dispatcher = stale_dispatcher()
    before = (dispatcher.statistics(), dispatcher.progress(), dispatcher.wake_at_ms)
    with pytest.raises(error, match=says) as caught:
        getattr(dispatcher, verb)(offset, attempt, 5)
    assert f"offset {offset}" in str(caught.value)
    assert verb in str(caught.value)
    with pytest.raises(error, match=says):
        dispatcher.ack_many([1, offset], 5, [2, attempt])
    assert (dispatcher.statistics(), dispatcher.progress(), dispatcher.wake_at_ms) == before
    dispatcher.ack(1, 2, 5)


def test_a_group_of_acks_counts_as_a_whole_or_not_at_all() -> None:
    dispatcher = dispatcher_of(*range(4))
    dispatcher.take(3, 0)
    for offsets, attempts in (([0, 1, 3], 1), ([0, 0], 1), ([0, 1], [1, 2]), ([0, 1], [1])):
        with pytest.raises(DeliveryError):
            dispatcher.ack_many(offsets, 0, attempts)
        assert dispatcher.progress() == Progress()
    dispatcher.ack_many([0, 1, 2], 0)
    assert dispatcher.progress() == Progress(floor=3)


def test_only_a_dying_event_can_be_confirmed_as_a_dead_letter() -> None:
    dispatcher = stale_dispatcher()
    with pytest.raises(UnknownDeliveryError, match="not dying"):
        dispatcher.dead_lettered(1, 0)
    dispatcher.dead_lettered(3, 0)
    with pytest.raises(UnknownDeliveryError):
        dispatcher.dead_lettered(3, 0)


def test_nothing_counts_after_the_unit_was_lost() -> None:
    dispatcher = stale_dispatcher()
    lost = Fenced("billing", "orders/3", token=4, current=5)
    dispatcher.fence(lost)
    calls: list[Callable[[], object]] = [
        lambda: dispatcher.ack(1, 2, 0),
        lambda: dispatcher.ack_many([1], 0, 2),
        lambda: dispatcher.nack(1, 2, 0),
        lambda: dispatcher.reject(1, 2, 0),
        lambda: dispatcher.extend(1, 2, 0),
        lambda: dispatcher.dead_lettered(3, 0),
        lambda: dispatcher.take(1, 0),
        lambda: dispatcher.tick(0),
        lambda: dispatcher.feed([], [], 9),
    ]
    for call in calls:
        with pytest.raises(Fenced) as caught:
            call()
        assert caught.value.current == 5
    assert dispatcher.wanted == 0
    assert dispatcher.progress().floor == 1


@pytest.mark.parametrize("delay_ms", [-1, 10**12])
def test_impossible_delays_are_refused(delay_ms: int) -> None:
    dispatcher = dispatcher_of(A)
    dispatcher.take(1, 0)
    with pytest.raises(InvalidDelayError):
        dispatcher.nack(0, 1, 0, delay_ms=delay_ms)
    dispatcher.ack(0, 1, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_pending": 0},
        {"max_pending_per_key": 0},
        {"ack_wait_ms": 0},
        {"max_deliveries": -1},
        {"backoff_min_ms": -1},
        {"backoff_min_ms": 10, "backoff_max_ms": 9},
        {"stall_after_ms": -5},
        {"buffer_events_max": 0},
    ],
)
def test_settings_out_of_bounds_are_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidDeliveryConfigError, match=list(wrong)[-1]):
        DeliveryConfig(**wrong)


def test_a_damaged_progress_record_is_refused() -> None:
    for record in (
        Progress(floor=5, ranges=((5, 6),)),
        Progress(floor=5, attempts=((4, 1),)),
        Progress(floor=5, attempts=((7, 0),)),
        Progress(floor=5, attempts=((7, 1), (7, 2))),
    ):
        with pytest.raises(ProgressDecodeError):
            Dispatcher(DeliveryConfig(), record)


# --- what waits to be seen ------------------------------------------------------------------


def test_what_was_not_seen_goes_back_when_a_unit_is_drained() -> None:
    dispatcher = Dispatcher(DeliveryConfig())
    dispatcher.feed([0, 1, 2], [1, 2, 3], 3)
    dispatcher.take(3, 0)
    with pytest.raises(FeedError):
        dispatcher.recall([1])
    dispatcher.pause()
    with pytest.raises(UnknownDeliveryError):
        dispatcher.recall([1, 7])
    dispatcher.recall([1, 2])
    assert dispatcher.in_flight == 1
    dispatcher.ack(0, 1, 1)
    assert dispatcher.idle
    assert dispatcher.progress() == Progress(1)


def test_renewed_events_have_their_time_again_and_are_no_sign_of_life() -> None:
    dispatcher = Dispatcher(DeliveryConfig(ack_wait_ms=100, stall_after_ms=250))
    dispatcher.feed([0, 1], [1, 2], 2)
    dispatcher.take(2, 0)
    dispatcher.renew([1, 9], 90)
    (late,) = dispatcher.tick(100)
    assert isinstance(late, Retry)
    assert late.offset == 0
    dispatcher.renew([1], 180)
    (stalled,) = dispatcher.tick(250)
    assert isinstance(stalled, Stalled)
    (late,) = dispatcher.tick(280)
    assert isinstance(late, Retry)
    assert late.offset == 1
