"""Autoscale: hot segments are split, cold ones merged, and a steady load is left in peace."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from headrace.catalog.streams import (
    KEY_SPACE,
    SEGMENTS_MAX,
    ByBytes,
    ByEvents,
    Fixed,
    Scaling,
)
from headrace.log import autoscale
from headrace.log.autoscale import WINDOWS_S, Merge, SegmentLoad, Split, decide
from headrace.log.log import Log
from headrace.log.scale import even_ranges
from tests.log.helpers import create, event, everything, read, table

DAY_S = 86_400


def load(
    rate: float | tuple[float, ...],
    number: int = 0,
    span: tuple[int, int] = (0, KEY_SPACE),
    age_s: float = DAY_S,
    scaled: bool = False,
) -> SegmentLoad:
    rates = rate if isinstance(rate, tuple) else (float(rate),) * len(WINDOWS_S)
    return SegmentLoad(number, *span, age_s, scaled, rates)


def halves(left: float, right: float) -> list[SegmentLoad]:
    middle = KEY_SPACE // 2
    return [load(left, 0, (0, middle)), load(right, 1, (middle, KEY_SPACE))]


POLICY = ByEvents(target_per_s=100, factor=4)


def test_a_fixed_stream_is_never_scaled() -> None:
    assert decide(Fixed(), [load(10**9)]) == []


@pytest.mark.parametrize(
    ("rates", "into"),
    [
        ((600, 0, 0, 0), 4),
        ((501, 0, 0, 0), 4),
        ((500, 0, 0, 0), None),
        ((0, 250, 0, 0), 2),
        ((0, 200, 0, 0), None),
        ((0, 0, 150, 0), 2),
        ((0, 0, 100, 0), None),
        ((0, 0, 0, 150), None),
        ((0, 0, 350, 0), 3),
    ],
)
def test_a_hot_segment_is_split_by_how_hot_it_is(
    rates: tuple[float, ...], into: int | None
) -> None:
    found = decide(POLICY, [load(rates)])
    assert [(d.segment, d.into) for d in found if isinstance(d, Split)] == (
        [] if into is None else [(0, into)]
    )


def test_a_young_segment_is_judged_only_by_windows_it_has_lived() -> None:
    assert decide(POLICY, [load(1000, age_s=119)]) == []
    assert len(decide(POLICY, [load(1000, age_s=121)])) == 1
    assert decide(POLICY, [load(300, age_s=299)]) == []
    assert decide(POLICY, [load(1000, age_s=599, scaled=True)]) == []
    assert len(decide(POLICY, [load(1000, age_s=601, scaled=True)])) == 1


def test_cold_neighbours_are_merged_down_to_the_minimum() -> None:
    found = decide(POLICY, halves(40, 40))
    assert [d.segments for d in found if isinstance(d, Merge)] == [(0, 1)]
    assert decide(POLICY, halves(40, 50)) == []
    assert decide(POLICY, halves(49, 49.5)) != []
    assert decide(ByEvents(target_per_s=100, minimum=2), halves(0, 0)) == []
    apart = [load(0, 0, (0, 10)), load(0, 1, (20, 30))]
    assert decide(POLICY, apart) == []
    young = [load(0, 0, (0, 10), age_s=1199), load(0, 1, (10, 20))]
    assert decide(POLICY, young) == []


def test_cold_over_one_window_only_is_not_cold() -> None:
    left = load((0, 0, 0, 60), 0, (0, 10))
    right = load((0, 0, 0, 60), 1, (10, 20))
    assert decide(POLICY, [left, right]) == []


def test_a_segment_takes_part_in_one_decision_at_most() -> None:
    rng = random.Random(1)
    for _ in range(200):
        count = rng.randrange(1, 12)
        spans = even_ranges(0, KEY_SPACE, count)
        loads = [
            load(rng.choice((0.0, 10.0, 49.0, 80.0, 150.0, 900.0)), n, span)
            for n, span in enumerate(spans)
        ]
        rng.shuffle(loads)
        policy = ByEvents(target_per_s=100, factor=rng.randrange(2, 6), minimum=rng.randrange(1, 6))
        touched: list[int] = []
        after = count
        for decision in decide(policy, loads):
            if isinstance(decision, Split):
                touched.append(decision.segment)
                after += decision.into - 1
                assert 2 <= decision.into <= policy.factor
            else:
                touched.extend(decision.segments)
                after -= 1
        assert len(touched) == len(set(touched))
        assert after >= min(count, policy.minimum)


def test_a_range_that_cannot_be_cut_is_not_split() -> None:
    """One hot key: its segment becomes as narrow as the key, and then it has to stay."""
    assert decide(POLICY, [load(900, 0, (7, 8))]) == []
    (found,) = decide(POLICY, [load(900, 0, (7, 10))])
    assert isinstance(found, Split)
    assert found.into == 3


def test_the_number_of_segments_stays_within_its_bound() -> None:
    spans = even_ranges(0, KEY_SPACE, SEGMENTS_MAX - 1)
    loads = [load(900, n, span) for n, span in enumerate(spans)]
    after = len(loads) + sum(d.into - 1 for d in decide(POLICY, loads) if isinstance(d, Split))
    assert len(loads) < after <= SEGMENTS_MAX


# --- a simulated day --------------------------------------------------------------------------


class Day:
    """Segments under a load by the minute, judged every minute as the log would be."""

    def __init__(
        self, policy: Scaling, rate_at: Callable[[float], float], hot_key: int | None = None
    ) -> None:
        self.policy = policy
        self.rate_at = rate_at
        self.hot_key = hot_key
        self.now_s = 0.0
        # number -> (lo, hi, born, scaled, amounts per minute)
        self.segments: dict[int, tuple[int, int, float, bool, list[float]]] = {
            0: (0, KEY_SPACE, 0.0, False, [])
        }
        self.next = 1
        self.changes: list[tuple[float, int]] = []

    def run(self, minutes: int) -> None:
        for _ in range(minutes):
            self.now_s += 60
            rate = self.rate_at(self.now_s)
            for lo, hi, _, _, amounts in self.segments.values():
                if self.hot_key is None:
                    amounts.append(rate * 60 * (hi - lo) / KEY_SPACE)
                else:
                    amounts.append(rate * 60 if lo <= self.hot_key < hi else 0.0)
            for decision in decide(self.policy, self.loads()):
                self.apply(decision)
                self.changes.append((self.now_s, len(self.segments)))

    def loads(self) -> list[SegmentLoad]:
        return [
            SegmentLoad(
                number,
                lo,
                hi,
                self.now_s - born,
                scaled,
                tuple(sum(amounts[-w // 60 :]) / w for w in WINDOWS_S),
            )
            for number, (lo, hi, born, scaled, amounts) in self.segments.items()
        ]

    def apply(self, decision: autoscale.Decision) -> None:
        if isinstance(decision, Split):
            lo, hi, *_ = self.segments.pop(decision.segment)
            spans = even_ranges(lo, hi, decision.into)
        else:
            left, right = (self.segments.pop(number) for number in decision.segments)
            spans = [(min(left[0], right[0]), max(left[1], right[1]))]
        for lo, hi in spans:
            self.segments[self.next] = (lo, hi, self.now_s, True, [])
            self.next += 1

    def hottest(self) -> float:
        return max(load.rates[-1] for load in self.loads())


@pytest.mark.parametrize("factor", [2, 4, 16])
@pytest.mark.parametrize("rate", [5, 49, 51, 99, 101, 180, 205, 390, 777, 1600])
def test_a_steady_load_comes_to_rest(rate: int, factor: int) -> None:
    day = Day(ByEvents(target_per_s=100, factor=factor), lambda _: rate)
    day.run(24 * 60)
    settled_s = 4 * 3600
    assert [change for change in day.changes if change[0] > settled_s] == []
    assert day.hottest() <= 100
    assert len(day.segments) <= max(1, math.ceil(rate / 100) * 2)


def test_a_day_of_tides_is_followed_without_swinging() -> None:
    def tide(at_s: float) -> float:
        return 400 + 380 * math.sin(2 * math.pi * at_s / DAY_S)

    day = Day(ByEvents(target_per_s=100, factor=2), tide)
    day.run(2 * 24 * 60)
    counts = [1] + [count for _, count in day.changes]
    turns = sum((b - a) * (d - c) < 0 for (a, b), (c, d) in pairwise(pairwise(counts)))
    assert max(counts) >= 6
    assert min(counts[8:]) <= 3
    # Up in the morning, down in the evening, twice; a little leeway at the turns.
    assert turns <= 10


def test_noise_around_a_steady_load_does_not_make_it_swing() -> None:
    rng = random.Random(5)
    day = Day(ByEvents(target_per_s=100, factor=2), lambda _: max(0.0, rng.gauss(320, 60)))
    day.run(24 * 60)
    assert [change for change in day.changes if change[0] > 6 * 3600] == []


def test_one_hot_key_ends_in_few_segments() -> None:
    day = Day(ByEvents(target_per_s=100, factor=2), lambda _: 500, hot_key=123_456_789)
    day.run(24 * 60)
    assert len(day.segments) < 40


# --- measured from the log -------------------------------------------------------------------


def shift(log: Log, by_s: int) -> None:
    """Make the stream and all that is in it older."""
    for table_name in ("segments", "batches"):
        log.catalog.write(
            lambda tx, name=table_name: tx.execute(  # type: ignore[misc]
                f"UPDATE {name} SET created_us = created_us - ?", (by_s * 1_000_000,)
            )
        )


def older_segments(log: Log, by_s: int) -> None:
    log.catalog.write(
        lambda tx: tx.execute(
            "UPDATE segments SET created_us = created_us - ?", (by_s * 1_000_000,)
        )
    )


def measured(log: Log) -> list[SegmentLoad]:
    return log.catalog.read(lambda tx: autoscale.measure(tx, log.stream("s")))


def test_rates_are_read_off_the_log(log: Log) -> None:
    create(log, scaling=ByEvents(target_per_s=10))
    (idle,) = measured(log)
    assert idle.rates == (0, 0, 0, 0)
    assert not idle.scaled
    for count, ago_s in ((1200, 900), (600, 150), (240, 10)):
        log.append("s", table(count))
        shift(log, ago_s if ago_s == 10 else 0)
        if ago_s == 900:
            shift(log, 750)
        if ago_s == 150:
            shift(log, 140)
    (found,) = measured(log)
    assert found.rates == (240 / 120, 840 / 300, 840 / 600, 2040 / 1200)
    assert 895 < found.age_s < 1000


def test_markers_are_no_load(log: Log) -> None:
    create(log, scaling=ByEvents(target_per_s=10))
    for _ in range(3):
        log.append_marker("s", 0, b"m")
        log.append("s", table(40))
    (found,) = measured(log)
    assert found.rates == tuple(120 / w for w in WINDOWS_S)


def test_rates_in_bytes_are_read_off_the_log(log: Log) -> None:
    create(log, scaling=ByBytes(target_per_s=10))
    log.append("s", table(100))
    log.append("s", table(100))
    size = log.stream("s").segments[0].bytes
    (found,) = measured(log)
    assert found.rates == tuple(size / w for w in WINDOWS_S)


def test_a_hot_stream_is_split_and_a_cold_one_merged(log: Log) -> None:
    create(log, scaling=ByEvents(target_per_s=1, factor=4))
    log.append("s", table(2000, keys=200))
    shift(log, 100)
    before = everything(log)
    assert log.autoscale("s") == []
    shift(log, 15)
    log.catalog.write(
        lambda tx: tx.execute("UPDATE segments SET created_us = created_us - 60000000")
    )
    before = everything(log)
    (would,) = log.autoscale("s", dry_run=True)
    assert (would.sealed, would.opened) == ((0,), ())
    assert "events/s" in would.reason
    assert everything(log) == before
    (done,) = log.autoscale("s")
    assert (done.sealed, done.opened) == ((0,), (1, 2, 3, 4))
    assert log.autoscale("s") == []
    shift(log, 3000)
    log.autoscale("s")
    shift(log, 3000)
    log.autoscale("s")
    assert len(log.stream("s").open_segments) == 1
    assert len(read(log)) == 2000


def test_a_scaling_done_by_somebody_else_is_no_error(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log, segments=2, scaling=ByEvents(target_per_s=1))
    log.append("s", [event(n, key=f"k{n}") for n in range(2000)])
    shift(log, 110)
    log.catalog.write(
        lambda tx: tx.execute("UPDATE segments SET created_us = created_us - 60000000")
    )
    real = autoscale.decide

    def late(policy: Scaling, loads: list[SegmentLoad]) -> list[autoscale.Decision]:
        found = real(policy, loads)
        monkeypatch.setattr(autoscale, "decide", real)
        log.split("s", 0)
        return found

    monkeypatch.setattr(autoscale, "decide", late)
    done = log.autoscale("s")
    assert [scaled.sealed for scaled in done] == [(1,)]
