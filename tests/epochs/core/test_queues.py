"""Queues of subscribers: bounded whatever happens, and honest about what was left out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.epochs import (
    PAIRS,
    CutOff,
    Data,
    FrontierUpdate,
    Publisher,
    QueuePolicy,
    QueueSettings,
    Skip,
    Snapshot,
)
from headrace.epochs.core.queues import joined
from headrace.errors import EpochError, InvalidConfigError
from tests.epochs.core.support import SHAPES, times

SKIP = QueueSettings(QueuePolicy.SKIP, batches_max=2)


def test_a_queue_needs_room_for_one() -> None:
    with pytest.raises(InvalidConfigError):
        QueueSettings(batches_max=0)


def test_updates_in_a_row_become_one() -> None:
    publisher = Publisher()
    publisher.connect("s")
    publisher.take("s")
    publisher.data(1, "a")
    for time in range(100):
        publisher.progress([(time, -1), (time + 1, 1)])
    assert publisher.take("s") == [
        Data(1, "a"),
        FrontierUpdate(((0, -1), (100, 1)), ((1, 1),)),
    ]


def test_joined_updates_cancel_out() -> None:
    first = FrontierUpdate((((0, 0), -1), ((1, 0), 1), ((0, 1), 1)))
    second = FrontierUpdate((((1, 0), -1), ((2, 0), 1)), (((1, 0), 4),))
    assert joined(first, second) == FrontierUpdate(
        (((0, 0), -1), ((0, 1), 1), ((2, 0), 1)), (((1, 0), 4),)
    )


def test_skip_gives_up_what_waits_and_says_up_to_where() -> None:
    publisher = Publisher()
    publisher.connect("s", SKIP)
    publisher.data(9, "sent")
    publisher.take("s")
    publisher.data(3, "a")
    publisher.progress([(0, -1), (3, 1)])
    publisher.data(4, "b")
    publisher.progress([(3, -1), (10, 1)])
    publisher.data(11, "c")
    # 9 was sent whole and is complete; 3, 4 and 11 are lost, and with 11 all before it.
    assert publisher.take("s") == [Skip((10,), (11,), ())]
    publisher.data(11, "d")
    publisher.data(12, "e")
    assert publisher.take("s") == [Data(12, "e")]
    assert publisher.queue("s").skips == 1


def test_skip_tells_the_counts_of_what_it_did_not_touch() -> None:
    publisher = Publisher(PAIRS)
    publisher.connect("s", SKIP)
    publisher.data((0, 9), "sent", rows=5)
    publisher.take("s")
    publisher.data((3, 0), "a")
    publisher.data((4, 0), "b")
    publisher.progress([((0, 0), -1), ((5, 0), 1)])
    publisher.data((5, 0), "c")
    assert publisher.take("s") == [Skip(((5, 0),), ((5, 0),), (((0, 9), 5),))]


def test_one_that_was_sent_nothing_yet_just_begins_later() -> None:
    publisher = Publisher()
    publisher.connect("s", SKIP)
    for time in range(1, 6):
        publisher.data(time, "x")
    assert publisher.take("s") == [Snapshot((0,), (3,)), Data(4, "x"), Data(5, "x")]


def test_two_skips_in_a_row_are_one() -> None:
    publisher = Publisher()
    publisher.connect("s", SKIP)
    publisher.take("s")
    for time in (1, 2, 3, 4, 5, 6):
        publisher.data(time, "x")
    assert publisher.take("s") == [Skip((0,), (6,), ())]


def test_a_second_skip_remembers_what_the_first_left_out() -> None:
    publisher = Publisher(PAIRS)
    publisher.connect("s", SKIP)
    publisher.take("s")
    for time in ((0, 7), (0, 8), (0, 9), (4, 0), (5, 0), (6, 0)):
        publisher.data(time, "x")
    assert publisher.take("s") == [Skip(((0, 0),), ((0, 9), (6, 0)), ())]


def test_what_was_left_out_is_forgotten_when_it_can_no_longer_come() -> None:
    publisher = Publisher(PAIRS)
    publisher.connect("s", SKIP)
    publisher.take("s")
    for step in range(20):
        for place in range(3):
            publisher.data((step, 100 - step), f"x{place}")
        publisher.take("s")
    queue = publisher.queue("s")
    assert len(queue._pointless) == 20
    publisher.progress([((0, 0), -1), ((18, 0), 1)])
    assert len(queue._pointless) == 2


def test_disconnect_cuts_off_the_slow_one_only() -> None:
    publisher = Publisher()
    publisher.connect("slow", QueueSettings(QueuePolicy.DISCONNECT, batches_max=1))
    publisher.connect("other")
    assert publisher.data(1, "a").cut == ()
    assert publisher.data(2, "b").cut == (CutOff("slow", "more than 1 batches waiting"),)
    assert publisher.subscribers == ("other",)
    assert len(publisher.take("other")) == 3


def test_a_publisher_may_leave_out_what_would_be_filtered() -> None:
    publisher = Publisher()
    publisher.data(5, "before")
    publisher.connect("s", QueueSettings(batches_max=1, filtered=True))
    for _ in range(3):
        publisher.data(4, "filtered at the other end")
    publisher.data(6, "x")
    publisher.progress([(0, -1), (6, 1)])
    assert [type(message) for message in publisher.take("s")] == [Snapshot, Data, FrontierUpdate]


@settings(deadline=None)
@given(st.data())
def test_queues_are_bounded_under_every_policy(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    publisher = Publisher(shape)
    limits = {}
    for policy in QueuePolicy:
        limits[str(policy)] = limit = data.draw(st.integers(1, 4))
        settings = QueueSettings(policy, limit, data.draw(st.booleans()))
        publisher.connect(str(policy), settings)
    for _ in range(data.draw(st.integers(1, 30))):
        time = data.draw(times(shape))
        try:
            match data.draw(st.integers(0, 3)):
                case 0 if publisher.lower:
                    publisher.progress([(publisher.lower[0], -1), (time, 1)])
                case 1 if publisher.subscribers:
                    publisher.take(data.draw(st.sampled_from(publisher.subscribers)), 2)
                case _:
                    publisher.data(time, "")
        except EpochError:
            pass
        for name in publisher.subscribers:
            queue = publisher.queue(name)
            assert queue.batches <= limits[name]
            assert len(queue) <= 2 * limits[name] + 2
