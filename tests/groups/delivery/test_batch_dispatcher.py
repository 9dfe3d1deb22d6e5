"""The batch dispatcher: pieces in order, exact ranges, and poison found by halving."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    FeedError,
    Fenced,
    InvalidDelayError,
    StaleBatchError,
    UnknownDeliveryError,
    UnknownTicketError,
)
from headrace.groups.delivery import (
    BatchDispatcher,
    BatchHandout,
    BatchRetry,
    DeliveryConfig,
    DyingPiece,
    Reason,
    Stalled,
)
from headrace.groups.progress import AckedRanges, Progress


def offsets(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def fed(config: DeliveryConfig | None = None, progress: Progress | None = None) -> BatchDispatcher:
    made = BatchDispatcher(config or DeliveryConfig(), progress)
    made.feed(offsets(0, 1, 2, 3), 4)
    made.feed(offsets(5, 6), 8)
    return made


def take(dispatcher: BatchDispatcher, now_ms: int = 0) -> BatchHandout:
    found = dispatcher.take(now_ms)
    assert found is not None
    return found


def test_one_piece_is_out_at_a_time_and_acks_are_ranges() -> None:
    dispatcher = fed()
    first = take(dispatcher)
    assert first.piece.offsets.tolist() == [0, 1, 2, 3]
    assert dispatcher.take(0) is None
    assert not dispatcher.idle
    dispatcher.ack(first.ticket, 1)
    assert dispatcher.progress() == Progress(4)
    second = take(dispatcher)
    dispatcher.ack(second.ticket, 2)
    assert dispatcher.progress() == Progress(8)  # 4 and 7 hold nothing for the group
    assert dispatcher.idle
    assert dispatcher.caught_up
    assert dispatcher.take(3) is None


def test_what_holds_nothing_is_acked_when_fed() -> None:
    dispatcher = BatchDispatcher(DeliveryConfig())
    dispatcher.feed(offsets(), 10)
    assert dispatcher.progress() == Progress(10)


def test_a_refused_piece_comes_again_first() -> None:
    dispatcher = fed(DeliveryConfig(backoff_min_ms=50))
    outcome = dispatcher.nack(take(dispatcher).ticket, 10)
    assert outcome == BatchRetry(0, 1, 60, Reason.NACKED, halved=False)
    assert dispatcher.wake_at_ms == 60
    assert dispatcher.take(59) is None
    again = take(dispatcher, 60)
    assert (again.piece.start, again.attempt) == (0, 2)
    dispatcher.nack(again.ticket, 61, delay_ms=7)
    assert dispatcher.take(67) is None
    assert take(dispatcher, 68).attempt == 3


def test_a_piece_that_is_not_answered_in_time_comes_again() -> None:
    dispatcher = fed(DeliveryConfig(ack_wait_ms=100, backoff_min_ms=0))
    late = take(dispatcher)
    assert dispatcher.wake_at_ms == 100
    assert dispatcher.tick(99) == []
    dispatcher.extend(late.ticket, 99)
    assert dispatcher.tick(198) == []
    (outcome,) = dispatcher.tick(199)
    assert isinstance(outcome, BatchRetry)
    assert outcome.reason is Reason.TIMED_OUT
    with pytest.raises(StaleBatchError):
        dispatcher.ack(late.ticket, 200)
    again = take(dispatcher, 200)
    with pytest.raises(StaleBatchError):
        dispatcher.ack(late.ticket, 200)
    dispatcher.ack(again.ticket, 201)


def test_a_piece_that_used_up_its_deliveries_is_halved_and_one_event_dies() -> None:
    dispatcher = fed(DeliveryConfig(max_deliveries=1, backoff_min_ms=0))
    seen = []
    dead = []
    while not dispatcher.caught_up:
        handout = take(dispatcher)
        rows = handout.piece.offsets.tolist()
        seen.append(rows)
        if 2 not in rows:
            dispatcher.ack(handout.ticket, 0)
            continue
        outcome = dispatcher.nack(handout.ticket, 0, detail="two")
        if isinstance(outcome, DyingPiece):
            dead.append((outcome.piece.offsets.tolist(), outcome.attempts, outcome.detail))
            assert dispatcher.progress().attempts == ((2, 1),)
            assert not dispatcher.idle
            assert dispatcher.take(0) is None
            dispatcher.dead_lettered(outcome.piece.start, 0)
        else:
            assert outcome.halved
    assert seen == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3], [5, 6]]
    assert dead == [([2], 1, "two")]
    assert dispatcher.progress() == Progress(8)


def test_a_holder_of_the_whole_cannot_answer_for_its_half() -> None:
    dispatcher = fed(DeliveryConfig(max_deliveries=1, backoff_min_ms=0, ack_wait_ms=10))
    whole = take(dispatcher)
    dispatcher.tick(10)
    half = take(dispatcher, 10)
    assert half.piece.start == whole.piece.start
    with pytest.raises(StaleBatchError):
        dispatcher.nack(whole.ticket, 10)
    dispatcher.ack(half.ticket, 10)
    assert dispatcher.progress() == Progress(2)


def test_a_rejected_piece_dies_whole() -> None:
    dispatcher = fed()
    dying = dispatcher.reject(take(dispatcher).ticket, 0, "never")
    assert dying.piece.offsets.tolist() == [0, 1, 2, 3]
    assert dispatcher.dying is dying
    with pytest.raises(UnknownDeliveryError):
        dispatcher.dead_lettered(5, 0)
    dispatcher.dead_lettered(0, 0)
    assert dispatcher.dying is None
    assert take(dispatcher).piece.start == 4


def test_what_an_earlier_owner_acked_is_left_out_and_what_it_refused_stands_alone() -> None:
    progress = Progress(1, ((3, 4),), ((2, 2), (6, 1)))
    dispatcher = BatchDispatcher(DeliveryConfig(max_deliveries=2), progress)
    keep = dispatcher.feed(offsets(1, 2, 3, 4, 5, 6, 7), 8)
    assert keep is not None
    assert keep.tolist() == [True, True, False, True, True, True, True]
    first = take(dispatcher)
    assert (first.piece.offsets.tolist(), first.attempt) == ([1], 1)
    dispatcher.ack(first.ticket, 0)
    assert dispatcher.take(0) is None  # 2 had its deliveries
    assert dispatcher.dying is not None
    assert dispatcher.dying.reason is Reason.EXHAUSTED
    dispatcher.dead_lettered(2, 0)
    seen = []
    while not dispatcher.caught_up:
        handout = take(dispatcher)
        seen.append((handout.piece.offsets.tolist(), handout.attempt))
        dispatcher.ack(handout.ticket, 0)
    assert seen == [([4, 5], 1), ([6], 2), ([7], 1)]
    assert dispatcher.progress() == Progress(8)


def test_a_stall_is_told_once() -> None:
    dispatcher = fed(DeliveryConfig(stall_after_ms=50))
    handout = take(dispatcher, 10)
    assert dispatcher.wake_at_ms == 60
    assert dispatcher.tick(60) == [Stalled(10, 4, 0)]
    assert dispatcher.tick(70) == []
    dispatcher.ack(handout.ticket, 80)
    take(dispatcher, 90)
    assert dispatcher.tick(139) == []
    assert dispatcher.tick(140) == [Stalled(90, 2, 5)]


def test_draining_hands_out_nothing_and_takes_back_what_was_not_seen() -> None:
    dispatcher = fed()
    with pytest.raises(FeedError):
        dispatcher.recall()
    take(dispatcher)
    dispatcher.pause()
    assert not dispatcher.idle
    dispatcher.recall()
    assert dispatcher.idle
    assert dispatcher.take(0) is None
    assert dispatcher.progress() == Progress(0)


def test_a_fenced_dispatcher_refuses_everything() -> None:
    dispatcher = fed()
    handout = take(dispatcher)
    dispatcher.fence(Fenced("g", "u", 1, 2))
    for act in (
        lambda: dispatcher.ack(handout.ticket, 0),
        lambda: dispatcher.take(0),
        lambda: dispatcher.tick(0),
        lambda: dispatcher.feed(offsets(8), 9),
    ):
        with pytest.raises(Fenced):
            act()
    assert dispatcher.progress() == Progress(0)


def test_illegal_calls_change_nothing() -> None:
    dispatcher = fed()
    with pytest.raises(UnknownTicketError):
        dispatcher.ack(1, 0)
    handout = take(dispatcher)
    with pytest.raises(UnknownTicketError):
        dispatcher.ack(2, 0)
    with pytest.raises(InvalidDelayError):
        dispatcher.nack(handout.ticket, 0, delay_ms=-1)
    for bad, end in ((offsets(9, 8), 10), (offsets(7), 10), (offsets(10), 10), (offsets(), 7)):
        with pytest.raises(FeedError):
            dispatcher.feed(bad, end)
    dispatcher.ack(handout.ticket, 0)
    assert dispatcher.progress() == Progress(4)


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    poison=st.sets(st.integers(0, 20), max_size=4),
    max_deliveries=st.integers(1, 3),
    data=st.data(),
)
def test_every_event_is_acked_in_order_or_a_dead_letter(
    sizes: list[int], poison: set[int], max_deliveries: int, data: st.DataObject
) -> None:
    """Whatever is refused and whoever takes over: nothing is lost, nothing acked comes again."""
    config = DeliveryConfig(max_deliveries=max_deliveries, backoff_min_ms=0)
    dispatcher = BatchDispatcher(config)
    ends = np.cumsum(sizes).tolist()
    done: list[int] = []
    dead: list[int] = []
    for _ in range(500):
        if dispatcher.empty and dispatcher.next_offset < ends[-1]:
            start = dispatcher.next_offset
            end = next(one for one in ends if one > start)
            dispatcher.feed(np.arange(start, end, dtype=np.int64), end)
        handout = dispatcher.take(0)
        if dispatcher.dying is not None:
            dead += dispatcher.dying.piece.offsets.tolist()
            dispatcher.dead_lettered(dispatcher.dying.piece.start, 0)
        elif handout is not None:
            rows = handout.piece.offsets.tolist()
            if poison & set(rows):
                outcome = dispatcher.nack(handout.ticket, 0)
                if isinstance(outcome, DyingPiece):
                    dead += outcome.piece.offsets.tolist()
                    dispatcher.dead_lettered(outcome.piece.start, 0)
            else:
                done += rows
                dispatcher.ack(handout.ticket, 0)
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            dispatcher = BatchDispatcher(config, Progress.decode(dispatcher.progress().encode()))
        if dispatcher.progress().floor == ends[-1]:
            break
    assert dispatcher.progress() == Progress(ends[-1])
    assert sorted(done + dead) == list(range(ends[-1]))
    assert done == sorted(done)
    assert set(dead) == poison & set(range(ends[-1]))


def acked(*numbers: int) -> AckedRanges:
    found = AckedRanges()
    found.ack_many(sorted(numbers))
    return found


def test_what_others_acked_leaves_the_pieces_that_are_not_out() -> None:
    dispatcher = fed()
    first = take(dispatcher)
    assert dispatcher.pass_over(acked(1, 5))
    assert not dispatcher.pass_over(acked(1, 5))
    assert dispatcher.progress() == Progress(0, ((5, 6),))  # 1 is in hand
    dispatcher.nack(first.ticket, 0, delay_ms=0)
    assert dispatcher.pass_over(acked(1, 5))
    again = take(dispatcher)
    assert (again.piece.offsets.tolist(), again.attempt) == ([0, 2, 3], 2)
    dispatcher.ack(again.ticket, 1)
    last = take(dispatcher)
    assert last.piece.offsets.tolist() == [6]
    dispatcher.ack(last.ticket, 1)
    assert dispatcher.progress() == Progress(8)


def test_a_piece_that_nobody_has_seen_goes_back_when_others_acked_of_it() -> None:
    dispatcher = fed()
    take(dispatcher)
    assert dispatcher.pass_over(acked(9), unseen=True)
    assert not dispatcher.idle
    assert dispatcher.pass_over(acked(0, 1, 2, 3), unseen=True)
    assert take(dispatcher).piece.offsets.tolist() == [5, 6]


@given(data=st.data())
def test_batches_hold_exactly_what_nobody_has_acked(data: st.DataObject) -> None:
    """Acks from elsewhere at any time: all is acked in the end, and nothing known is handed out."""
    dispatcher = BatchDispatcher(DeliveryConfig(max_deliveries=2, backoff_min_ms=0))
    known: set[int] = set()
    for turn in range(4):
        start = turn * 5
        dispatcher.feed(np.arange(start, start + 5, dtype=np.int64), start + 5)
    out: BatchHandout | None = None
    for _ in range(200):
        if dispatcher.caught_up:
            break
        step = data.draw(st.sampled_from(["take", "ack", "nack", "others", "bury"]))
        if step == "take" and out is None:
            out = dispatcher.take(0)
            assert out is None or not known & set(out.piece.offsets.tolist())
        elif step == "ack" and out is not None:
            dispatcher.ack(out.ticket, 0)
            known |= set(out.piece.offsets.tolist())
            out = None
        elif step == "nack" and out is not None:
            dispatcher.nack(out.ticket, 0)
            out = None
            dispatcher.pass_over(acked(*known))  # as the runtime does: it was in hand before
        elif step == "others":
            known |= data.draw(st.sets(st.integers(0, 19), max_size=6))
            dispatcher.pass_over(acked(*known))
        elif dispatcher.dying is not None:
            known |= set(dispatcher.dying.piece.offsets.tolist())
            dispatcher.dead_lettered(dispatcher.dying.piece.start, 0)
        seen = dispatcher.progress().acked()
        assert {o for o in range(20) if o in seen} <= known
