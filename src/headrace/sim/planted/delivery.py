"""Planted bugs of the delivery core: each breaks one rule of the dispatcher or of progress."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np

from headrace.groups.delivery import DeadLetter, Dispatcher, Retry
from headrace.groups.progress import Progress
from headrace.groups.progress.ranges import AckedRanges
from headrace.sim.planted import Original, seeded_bug


def _next_of_key_first(original: Original) -> Original:
    def refuse(self: Dispatcher, offset: int, *args: Any) -> Retry | DeadLetter:
        key, order = self._pending[offset][0], self._order
        outcome: Retry | DeadLetter = original(self, offset, *args)
        queue = order.parked.get(key)
        if isinstance(outcome, Retry) and queue is not None:
            order.freed.append((queue.popleft(), key))
            order.parked_events -= 1
            order.held[key] += 1
            if not queue:
                del order.parked[key]
        return outcome

    return refuse


def _no_timeouts(original: Original) -> Original:  # noqa: ARG001
    return lambda self, now_ms: []  # noqa: ARG005


def _key_stays_held(original: Original) -> Original:
    def dead_lettered(self: Dispatcher, offset: int, now_ms: int) -> None:
        key = self._key_of_dying[offset]
        self._order.held[key] += 1
        original(self, offset, now_ms)

    return dead_lettered


def _acked_at_death(original: Original) -> Original:
    def die(self: Dispatcher, letter: DeadLetter, key: int) -> DeadLetter:
        self._acked.ack(letter.offset)
        made: DeadLetter = original(self, letter, key)
        return made

    return die


def _floor_jumps(original: Original) -> Original:
    return lambda self, offset: original(self, offset) and self.ack_range(0, offset + 1) >= 0


def _deliveries_without_end(original: Original) -> Original:
    def init(self: Dispatcher, config: Any, progress: Progress | None = None) -> None:
        original(self, msgspec.structs.replace(config, max_deliveries=0), progress)

    return init


def _attempts_from_zero(original: Original) -> Original:
    def init(self: Dispatcher, config: Any, progress: Progress | None = None) -> None:
        start = progress or Progress()
        original(self, config, msgspec.structs.replace(start, attempts=()))

    return init


def _attempts_not_recorded(original: Original) -> Original:
    return lambda acked, attempts: original(acked, {})  # noqa: ARG005


def _acked_is_fed_again(original: Original) -> Original:  # noqa: ARG001
    return lambda self, offsets: np.zeros(len(offsets), dtype=np.bool_)  # noqa: ARG005


def _any_attempt_counts(original: Original) -> Original:
    def check(self: Dispatcher, verb: str, offset: int, attempt: int) -> None:
        current = self.attempt_of(offset)
        original(self, verb, offset, attempt if current is None else current)

    return check


def _feed_skips_one(original: Original) -> Original:
    return lambda self, offsets, keys, end: original(self, offsets, keys, end + 1)


def _fence_forgotten(original: Original) -> Original:  # noqa: ARG001
    return lambda self, fenced: None  # noqa: ARG005


def _half_a_batch_counts(original: Original) -> Original:
    def ack_many(self: Dispatcher, offsets: Any, now_ms: int, attempts: Any = 1) -> None:
        each = [attempts] * len(offsets) if isinstance(attempts, int) else attempts
        for offset, attempt in zip(offsets, each, strict=True):
            self.ack(offset, attempt, now_ms)
        if not offsets:
            original(self, offsets, now_ms, attempts)

    return ack_many


_bug = partial(seeded_bug, "delivery")


PLANTED = (
    _bug(
        "delivery/next-of-key-first",
        "the next event of a key is freed while a refused one rests",
        Dispatcher,
        "_refuse",
        _next_of_key_first,
    ),
    _bug(
        "delivery/timeout-ignored",
        "an event that is never answered stays in flight",
        Dispatcher,
        "tick",
        _no_timeouts,
    ),
    _bug(
        "delivery/dead-letter-blocks-key",
        "the key of a dead letter is not freed",
        Dispatcher,
        "dead_lettered",
        _key_stays_held,
    ),
    _bug(
        "delivery/acked-before-it-is-buried",
        "a dying event counts as acked before its dead letter is stored",
        Dispatcher,
        "_die",
        _acked_at_death,
    ),
    _bug(
        "delivery/floor-jumps-over-a-hole",
        "an ack moves the floor past events that are not acked",
        AckedRanges,
        "ack",
        _floor_jumps,
    ),
    _bug(
        "delivery/deliveries-without-end",
        "max_deliveries is not looked at",
        Dispatcher,
        "__init__",
        _deliveries_without_end,
    ),
    _bug(
        "delivery/attempts-from-zero",
        "a new owner does not take the attempts over",
        Dispatcher,
        "__init__",
        _attempts_from_zero,
    ),
    _bug(
        "delivery/attempts-not-recorded",
        "progress is stored without the attempts",
        Progress,
        "of",
        _attempts_not_recorded,
    ),
    _bug(
        "delivery/acked-is-fed-again",
        "a new owner hands out what was acked above the floor",
        AckedRanges,
        "contains_many",
        _acked_is_fed_again,
    ),
    _bug(
        "delivery/stale-attempt-counts",
        "an answer to an earlier attempt is taken for the newest",
        Dispatcher,
        "_check_answer",
        _any_attempt_counts,
    ),
    _bug(
        "delivery/feed-skips-an-event",
        "an offset that was not read yet counts as holding nothing",
        Dispatcher,
        "feed",
        _feed_skips_one,
    ),
    _bug(
        "delivery/fence-forgotten",
        "answers still count after the unit was lost",
        Dispatcher,
        "fence",
        _fence_forgotten,
        first=22,
    ),
    _bug(
        "delivery/half-a-batch-counts",
        "a batch of acks with a stale one in it is applied in part",
        Dispatcher,
        "ack_many",
        _half_a_batch_counts,
    ),
)
