"""Parcels through the catalog: written over, read twice or late, and nothing is lost by that."""

from __future__ import annotations

import random

from headrace.groups.shared.core.parcels import KEPT_MS, PARCEL_BYTES_MAX, Correspondence, Frame


def frame(number: int, size: int = 4) -> Frame:
    return Frame(to_leaders=True, data=number.to_bytes(size, "big"))


def test_letters_that_are_written_over_or_read_twice_bring_every_frame_once_and_in_order() -> None:
    rng = random.Random(7)
    here, there = Correspondence(0), Correspondence(0)
    slots = {"there": here.parcel(), "here": there.parcel()}
    sent: dict[str, list[Frame]] = {"there": [], "here": []}
    got: dict[str, list[Frame]] = {"there": [], "here": []}
    sides = {"here": here, "there": there}
    for number in range(3000):
        to = rng.choice(["here", "there"])
        side = sides["here" if to == "there" else "there"]
        if rng.random() < 0.5:
            sent[to].append(frame(number))
            side.put(frame(number), number)
            slots[to] = side.parcel("why")
        else:
            got[to] += sides[to].take(slots[to])
    for to, side in sides.items():
        other = sides["here" if to == "there" else "there"]
        got[to] += side.take(other.parcel("why"))
        assert side.note == "why"
    assert got == sent
    assert here.take(there.parcel()) == there.take(here.parcel()) == []


def test_what_was_read_is_not_written_again_and_what_nobody_reads_is_left_out() -> None:
    here, there = Correspondence(0), Correspondence(0)
    here.put(frame(1), 0)
    there.take(here.parcel())
    here.take(there.parcel())
    assert here.parcel().frames == ()
    here.put(frame(2), 10)
    here.put(frame(3), 10 + KEPT_MS)
    assert here.parcel().frames == (frame(3),)
    assert there.take(here.parcel()) == [frame(3)]


def test_a_letter_has_bounds_and_the_oldest_frames_give_way() -> None:
    here, there = Correspondence(0), Correspondence(0)
    for number in range(10):
        here.put(frame(number, PARCEL_BYTES_MAX // 4), 0)
    assert there.take(here.parcel()) == [frame(n, PARCEL_BYTES_MAX // 4) for n in range(6, 10)]


def test_a_correspondence_that_was_forgotten_and_begun_anew_is_heard() -> None:
    there = Correspondence(0)
    before = Correspondence(5)
    before.put(frame(1), 5)
    assert there.take(before.parcel()) == [frame(1)]
    anew = Correspondence(6)
    anew.put(frame(2), 6)
    assert there.take(anew.parcel()) == [frame(2)]
