"""Autoscale: when to split a hot segment and when to merge cold neighbours.

A pure function from loads to decisions.  Rates are averages over the last 2, 5, 10 and 20
minutes, computed from the log itself (what was appended since), so no state is kept between calls.

- Hot: more than 5 times the target over 2 minutes, 2 times over 5, or the target over 10.  A hot
  segment is cut into rate / target parts, at least 2 and at most the policy's factor.
- Cold: less than half the target over every window.  Two cold neighbours are merged if together
  they would stay below the target over every window, so the result is not hot again.
- Rest: a segment that came out of a scaling is left alone for 10 minutes, and no window is judged
  that is longer than a segment's life.  A cut leaves each part more than half the target, which
  is not cold.  This is the hysteresis: under a steady load a stream never oscillates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from headrace.catalog import Tx, batches, markers
from headrace.catalog.streams import (
    SEGMENTS_MAX,
    ByBytes,
    ByEvents,
    Fixed,
    Scaling,
    Segment,
    Stream,
)

WINDOWS_S = (120, 300, 600, 1200)
HOT = ((120, 5.0), (300, 2.0), (600, 1.0))
COLD = 0.5
REST_S = 600


class SegmentLoad(msgspec.Struct, frozen=True):
    """How much an open segment took: ``rates`` per second over each of ``WINDOWS_S``."""

    number: int
    range_lo: int
    range_hi: int
    age_s: float
    scaled: bool
    rates: tuple[float, ...]

    def rate(self, window_s: int) -> float:
        return self.rates[WINDOWS_S.index(window_s)]


class Split(msgspec.Struct, frozen=True, tag=True):
    """Cut a hot segment into equal parts."""

    segment: int
    into: int
    reason: str


class Merge(msgspec.Struct, frozen=True, tag=True):
    """Join two cold neighbours."""

    segments: tuple[int, int]
    reason: str


Decision = Split | Merge


def decide(policy: Scaling, loads: Sequence[SegmentLoad]) -> list[Decision]:
    """What to do now, for the open segments of one stream."""
    if isinstance(policy, Fixed):
        return []
    unit = "events/s" if isinstance(policy, ByEvents) else "bytes/s"
    rested = [load for load in loads if not (load.scaled and load.age_s < REST_S)]
    decisions: list[Decision] = []
    count = len(loads)
    busy: set[int] = set()
    for load in rested:
        found = _hot(policy, load, unit, SEGMENTS_MAX - count + 1)
        if found is not None:
            decisions.append(found)
            busy.add(load.number)
            count += found.into - 1
    cold = {load.number for load in rested if _cold(policy, load)} - busy
    for left, right in _neighbours(loads):
        if count <= policy.minimum:
            break
        if {left.number, right.number} <= cold and _stays_below(policy, left, right):
            cold -= {left.number, right.number}
            count -= 1
            together = left.rates[-1] + right.rates[-1]
            decisions.append(
                Merge(
                    (left.number, right.number),
                    f"{together:.1f} {unit} together over 20 minutes, target {policy.target_per_s}",
                )
            )
    return decisions


def _hot(policy: ByEvents | ByBytes, load: SegmentLoad, unit: str, most: int) -> Split | None:
    # A single hot key cannot be cut: its segment ends up as narrow as the key, and stays.
    most = min(most, policy.factor, load.range_hi - load.range_lo)
    if most < 2:
        return None
    for window_s, factor in HOT:
        rate = load.rate(window_s)
        if load.age_s >= window_s and rate > factor * policy.target_per_s:
            into = max(2, min(most, int(rate // policy.target_per_s)))
            reason = f"{rate:.1f} {unit} over {window_s // 60} min, target {policy.target_per_s}"
            return Split(load.number, into, reason)
    return None


def _cold(policy: ByEvents | ByBytes, load: SegmentLoad) -> bool:
    return load.age_s >= WINDOWS_S[-1] and all(
        rate < COLD * policy.target_per_s for rate in load.rates
    )


def _neighbours(loads: Sequence[SegmentLoad]) -> list[tuple[SegmentLoad, SegmentLoad]]:
    ordered = sorted(loads, key=lambda load: load.range_lo)
    return [(left, right) for left, right in pairwise(ordered) if left.range_hi == right.range_lo]


def _stays_below(policy: ByEvents | ByBytes, left: SegmentLoad, right: SegmentLoad) -> bool:
    return all(a + b < policy.target_per_s for a, b in zip(left.rates, right.rates, strict=True))


def measure(tx: Tx, stream: Stream) -> list[SegmentLoad]:
    """The loads of a stream's open segments, from what its log holds."""
    now_us = tx.now_us()
    by_bytes = isinstance(stream.config.scaling, ByBytes)
    return [_measure(tx, segment, now_us, by_bytes) for segment in stream.open_segments]


def _measure(tx: Tx, segment: Segment, now_us: int, by_bytes: bool) -> SegmentLoad:
    rates = []
    for window_s in WINDOWS_S:
        first = batches.first_by_append_time(tx, segment, now_us - window_s * 1_000_000)
        if first is None:
            amount = 0
        elif by_bytes:
            amount = segment.bytes - (first.total_bytes - first.size_bytes)
        else:
            amount = markers.events_in(tx, segment, [(first.start, segment.head)])
        rates.append(amount / window_s)
    return SegmentLoad(
        number=segment.number,
        range_lo=segment.range_lo,
        range_hi=segment.range_hi,
        age_s=(now_us - segment.created_us) / 1e6,
        scaled=bool(segment.predecessors),
        rates=tuple(rates),
    )
