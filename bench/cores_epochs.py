"""How fast the epoch cores judge batches and move frontiers.

``python -m bench.cores_epochs`` prints a line per figure; ``run()`` gives them.  Frontier updates
are measured at two numbers of partitions: for O(log n) the cost must hardly grow between them.
Cores do nothing but compute, so it is the time of the processor that is measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.harness import Result, at_least, at_most, show
from headrace.epochs import (
    INTEGERS,
    PAIRS,
    Data,
    FrontierUpdate,
    Mode,
    Publisher,
    Snapshot,
    Subscriber,
    TimeShape,
    counted,
)

BATCHES = 1_000_000
ARRAY_BATCHES = 50_000
LEAST = 2.0  # million integer-timed batches judged per second
GROWTH_MAX = 4.0
_REPEATS = 3


def run() -> list[Result]:
    """Every figure."""
    few, many = (_frontier_us(partitions) for partitions in (100, 10_000))
    return [
        _figure("epochs: integer batches judged, in arrays", _judged(INTEGERS), "M/s", LEAST),
        _figure("epochs: integer batches judged, one time per array", _one_epoch(), "M/s", LEAST),
        _figure("epochs: pair batches judged, in arrays", _judged(PAIRS), "M/s"),
        _figure("epochs: integer batches received one by one", _received(), "M/s"),
        _figure("epochs: batches published to one subscriber", _published(), "M/s"),
        _figure("epochs: frontier update, 100 partitions", few, "us"),
        _figure("epochs: frontier update, 10,000 partitions", many, "us"),
        at_most(
            "epochs: frontier update, 10,000 against 100 partitions", many / few, GROWTH_MAX, "x"
        ),
        at_most(
            "epochs: frontier update, 20,000 active pairs", _active_pairs_ms(20_000), 1.0, "ms"
        ),
        _figure("epochs: counted integers, 100,000 held, update", _counted_us(100_000), "us"),
    ]


def _figure(name: str, value: float, unit: str, least: float | None = None) -> Result:
    return Result(name, value, unit) if least is None else at_least(name, value, least, unit)


def _best_s(make: Callable[[], Callable[[], object]]) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        operation = make()
        begun = time.process_time()
        operation()
        best = min(best, time.process_time() - begun)
    return best


def _ready(shape: TimeShape) -> Subscriber:
    """A subscriber with a filter that drops about a half of what comes."""
    subscriber = Subscriber(["p0", "p1"], shape)
    middle: Any = 50 if shape.length == 0 else (50, 50)
    subscriber.receive("p0", Snapshot((shape.bottom,), (middle,)))
    subscriber.receive("p1", Snapshot((shape.bottom,), ()))
    return subscriber


def _judged(shape: TimeShape) -> float:
    chance = np.random.default_rng(1)
    size = (ARRAY_BATCHES,) if shape.length == 0 else (ARRAY_BATCHES, shape.length)
    arrays = [chance.integers(0, 100, size) for _ in range(BATCHES // ARRAY_BATCHES)]

    def make() -> Callable[[], object]:
        subscriber = _ready(shape)
        return lambda: [subscriber.judge_many("p0", array) for array in arrays]

    return BATCHES / _best_s(make) / 1e6


def _one_epoch() -> float:
    arrays = [np.full(1000, 40 + number % 40) for number in range(BATCHES // 1000)]

    def make() -> Callable[[], object]:
        subscriber = _ready(INTEGERS)
        return lambda: [subscriber.judge_many("p0", array) for array in arrays]

    return BATCHES / _best_s(make) / 1e6


def _received() -> float:
    chance = random.Random(1)
    batches = [Data(chance.randrange(100), b"") for _ in range(BATCHES // 10)]

    def make() -> Callable[[], object]:
        subscriber = _ready(INTEGERS)
        receive = subscriber.receive
        return lambda: [receive("p0", batch) for batch in batches]

    return len(batches) / _best_s(make) / 1e6


def _published() -> float:
    count = BATCHES // 10

    def make() -> Callable[[], object]:
        publisher = Publisher()
        publisher.connect("s")

        def publish() -> None:
            for number in range(count):
                publisher.data(number % 100, b"")
                if number % 500 == 0:
                    publisher.take("s")

        return publish

    return count / _best_s(make) / 1e6


def _frontier_us(partitions: int) -> float:
    """One partition after another moves one step on."""
    names = [f"p{number}" for number in range(partitions)]
    updates = 20_000

    def make() -> Callable[[], object]:
        subscriber = Subscriber(names)
        for name in names:
            subscriber.receive(name, Snapshot((0,), ()))
        place = [0] * partitions

        def move() -> None:
            for number in range(updates):
                at = number % partitions
                step = FrontierUpdate(((place[at], -1), (place[at] + 1, 1)))
                subscriber.receive(names[at], step)
                place[at] += 1

        return move

    return _best_s(make) / updates * 1e6


def _active_pairs_ms(active: int) -> float:
    """A frontier moves while so many epochs of a partial order are open, and completes none."""
    updates = 100

    def make() -> Callable[[], object]:
        subscriber = Subscriber(["p0"], PAIRS, mode=Mode.WHOLE)
        subscriber.receive("p0", Snapshot(((0, 0),), ()))
        for number in range(active):
            time_of = (updates + number % 200, updates + number // 200)
            subscriber.receive("p0", Data(time_of, b""))

        def move() -> None:
            for step in range(updates):
                change = (((step, 0), -1), ((step + 1, 0), 1))
                subscriber.receive("p0", FrontierUpdate(change))

        return move

    return _best_s(make) / updates * 1e3


def _counted_us(held: int) -> float:
    chance = random.Random(2)
    times = [chance.randrange(10**9) for _ in range(held)]

    def make() -> Callable[[], object]:
        lower = counted(INTEGERS, times)

        def move() -> None:
            for old in times:
                lower.update(((old, -1), (old + 10**9, 1)))

        return move

    return _best_s(make) / held * 1e6


if __name__ == "__main__":
    show(run())
