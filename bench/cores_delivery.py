"""The delivery core and the distributions at scale, on one core of the machine.

They do nothing but compute, so what is measured is CPU time, the best of a few rounds: the
figures hold on a machine that is busy with something else.

``python -m bench.cores_delivery`` prints the figures.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from bench.harness import Result, at_least, at_most, show
from headrace.groups.delivery import DeliveryConfig, Dispatcher
from headrace.groups.partitioned.core.distribution import blocks, moved, sticky
from headrace.groups.progress.ranges import AckedRanges

EVENTS = 500_000
EVENTS_PER_S_MIN = 500_000
BATCH = 1000
ROUNDS = 3

Keys = npt.NDArray[np.int64]


def _feed_on(dispatcher: Dispatcher, keys: Keys) -> None:
    start = dispatcher.next_offset
    wanted = dispatcher.wanted
    if wanted >= dispatcher.config.buffer_events_max // 2 and start < len(keys):
        end = min(len(keys), start + wanted)
        dispatcher.feed(np.arange(start, end), keys[start:end], end)


def _batches(keys: Keys, shuffled: bool) -> float:
    """Hand out and ack in batches, in order or all mixed up."""
    dispatcher = Dispatcher(DeliveryConfig())
    rng = random.Random(7)
    held: list[int] = []
    done = now_ms = 0
    started = time.process_time()
    while done < len(keys):
        now_ms += 1
        _feed_on(dispatcher, keys)
        held += dispatcher.take(BATCH, now_ms).offsets
        if shuffled:
            rng.shuffle(held)
        acked, held = held[:BATCH], held[BATCH:]
        dispatcher.ack_many(acked, now_ms)
        dispatcher.tick(now_ms)
        done += len(acked)
    return len(keys) / (time.process_time() - started)


def _one_by_one(keys: Keys) -> float:
    """Hand out in batches, ack event by event."""
    dispatcher = Dispatcher(DeliveryConfig())
    done = 0
    started = time.process_time()
    while done < len(keys):
        _feed_on(dispatcher, keys)
        handout = dispatcher.take(256, 0)
        for offset, attempt in zip(handout.offsets, handout.attempts, strict=True):
            dispatcher.ack(offset, attempt, 0)
        done += len(handout)
    return len(keys) / (time.process_time() - started)


def _dispatcher() -> list[Result]:
    rng = np.random.default_rng(1)
    in_order, any_order = (lambda keys: _batches(keys, False)), (lambda keys: _batches(keys, True))
    results = []
    cases: list[tuple[str, int, Callable[[Keys], float], bool]] = [
        ("100,000 keys, batch acks", 100_000, in_order, True),
        ("10,000 keys, batch acks", 10_000, in_order, True),
        ("10,000 keys, acks in any order", 10_000, any_order, True),
        ("10,000 keys, single acks", 10_000, _one_by_one, False),
        ("100 keys, batch acks", 100, in_order, False),
    ]
    for name, count, measure, judged in cases:
        keys = rng.integers(0, count, EVENTS)
        rate = max(measure(keys) for _ in range(ROUNDS))
        if judged:
            results.append(at_least(f"dispatcher: {name}", rate, EVENTS_PER_S_MIN, "events/s"))
        else:
            results.append(Result(f"dispatcher: {name}", rate, "events/s"))
    return results


def _distributions() -> list[Result]:
    results = []
    for partitions in (1_000, 10_000, 100_000):
        members = [f"m{n}" for n in range(partitions // 10)]
        size = f"{partitions:,} partitions, {len(members):,} members"
        before = blocks(members, partitions)
        after = sticky(before, [*members, "one-more"], partitions)
        took = _best_s(partial(blocks, members, partitions))
        results.append(Result(f"blocks: {size}", took * 1000, "ms"))
        took = _best_s(partial(sticky, before, [*members, "one-more"], partitions))
        results.append(Result(f"sticky: {size} and one more", took * 1000, "ms"))
        fewest = partitions // (len(members) + 1)
        moves = len(moved(before, after))
        results.append(at_most(f"sticky: {size} and one more", moves, fewest, "moved"))
    four = sticky({}, [f"m{n}" for n in range(4)], 1024)
    moves = len(moved(four, sticky(four, [f"m{n}" for n in range(5)], 1024)))
    results.append(at_most("sticky: 1,024 partitions, 4 to 5 members", moves, 205, "moved"))
    return results


def _best_s(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def _ranges() -> list[Result]:
    count = 1_000_000
    offsets = np.arange(1, 2 * count, 2, dtype=np.int64)
    built = _best_s(lambda: AckedRanges().ack_many(offsets))
    acked = AckedRanges()
    acked.ack_many(offsets)
    picks = random.Random(3).sample(range(0, 2 * count, 2), 100_000)
    started = time.process_time()
    for offset in picks:
        acked.ack(offset)
    one_us = (time.process_time() - started) / len(picks) * 1e6
    record = acked.encode()
    both_ways = _best_s(lambda: AckedRanges.decode(acked.encode()))
    return [
        Result("acked ranges: build 1,000,000", built * 1000, "ms"),
        Result("acked ranges: one ack among 1,000,000", one_us, "µs"),
        Result(f"acked ranges: record of {len(acked):,}, both ways", both_ways * 1000, "ms"),
        Result("acked ranges: record", len(record) / len(acked), "bytes per range"),
    ]


def run() -> list[Result]:
    """Every figure."""
    return [*_dispatcher(), *_distributions(), *_ranges()]


if __name__ == "__main__":
    show(run())
