"""What the dispatchers of events and of batches share: progress, time, pausing and fencing.

Time is an argument and monotonic: a time before the last one counts as the last one, so that
deadlines keep their order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from headrace.errors import FeedError, Fenced, InvalidDelayError
from headrace.groups.delivery.messages import DeliveryConfig
from headrace.groups.progress import AckedRanges, Progress
from headrace.groups.progress.arrays import Int64s
from headrace.groups.progress.bounds import OFFSET_MAX

DELAY_MS_MAX = 7 * 24 * 3600 * 1000


class UnitDispatcher:
    """One unit: how far it is acked, and whether anything may be handed out."""

    def __init__(self, config: DeliveryConfig, progress: Progress | None = None) -> None:
        progress = progress or Progress()
        self.config = config
        self._acked = progress.check()
        self._attempts = dict(progress.attempts)  # failed deliveries by offset, of refused events
        self._next_offset = progress.floor
        self._now_ms = 0
        self._silent_since_ms: int | None = None
        self._stall_told = False
        self._paused = False
        self._fenced: Fenced | None = None

    @property
    def next_offset(self) -> int:
        """From where the next feed continues."""
        return self._next_offset

    @property
    def floor(self) -> int:
        """Everything below is acked."""
        return self._acked.floor

    @property
    def caught_up(self) -> bool:
        """Everything that was fed is acked."""
        return self._acked.floor >= self._next_offset

    def unacked(self, offsets: Int64s) -> npt.NDArray[np.bool_] | None:
        """Which of ascending offsets are not acked; None: all of them."""
        if not offsets.size or self._acked.end <= offsets[0]:
            return None  # the usual case
        return ~self._acked.contains_many(offsets)

    def progress(self) -> Progress:
        """What to store, and what the next owner starts from."""
        return Progress.of(self._acked, self._attempts)

    def pause(self) -> None:
        """Hand out nothing more; answers to what is in flight still count."""
        self._paused = True

    def resume(self) -> None:
        """Go on where it was paused."""
        self._paused = False

    def fence(self, fenced: Fenced) -> None:
        """The unit belongs to someone else: every call that would act now raises this."""
        self._fenced = fenced

    def _join(self, acked: AckedRanges, held: Iterable[int]) -> bool:
        """Count as acked what is acked elsewhere, but not what is held here; whether it is news."""
        kept = sorted(offset for offset in held if offset in acked)
        before = self._acked.floor, self._acked.acked_above_floor
        self._acked.merge(_without(acked, kept) if kept else acked)
        if self._attempts:
            done = self._acked
            self._attempts = {at: n for at, n in self._attempts.items() if at not in done}
        return before != (self._acked.floor, self._acked.acked_above_floor)

    def _advance(self, now_ms: int) -> int:
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        return self._now_ms

    def _stall_ms(self) -> int | None:
        """When the consumer has been silent for too long, if that is not told yet."""
        since, limit = self._silent_since_ms, self.config.stall_after_ms
        return since + limit if limit and since is not None and not self._stall_told else None

    def _check_fence(self) -> None:
        if (lost := self._fenced) is not None:
            raise Fenced(lost.group, lost.unit, lost.token, lost.current)

    def _check_feed(self, offsets: Int64s, end: int) -> None:
        """A feed goes on where the last one ended, and ascends."""
        self._check_fence()
        start = self._next_offset
        if not start <= end <= OFFSET_MAX:
            raise FeedError(f"a feed up to {end} does not continue at {start}")
        if offsets.size and (
            offsets[0] < start or offsets[-1] >= end or not bool((offsets[1:] > offsets[:-1]).all())
        ):
            raise FeedError(f"a feed must ascend within {start} to {end}")

    @staticmethod
    def _check_delay(what: str, delay_ms: int | None) -> None:
        if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
            raise InvalidDelayError(
                f"a nack of {what} asks for a delay of {delay_ms} ms; "
                f"it must be 0 to {DELAY_MS_MAX}"
            )


def _without(acked: AckedRanges, kept: list[int]) -> AckedRanges:
    """Acked ranges but for some offsets, which ascend."""
    floor = min(acked.floor, kept[0])
    pieces: list[tuple[int, int]] = []
    for start, end in ((floor, acked.floor), *acked.to_tuples()):
        lo = start
        for offset in kept[bisect_left(kept, start) : bisect_left(kept, end)]:
            if lo < offset:
                pieces.append((lo, offset))
            lo = offset + 1
        if lo < end:
            pieces.append((lo, end))
    return AckedRanges.from_tuples(floor, pieces)
