"""Progress of a replicated group by origin: what every region can agree on.

Theory of operation
-------------------
Progress is, for every lane, a prefix and ranges of acked sequences.  Joining two states is a union
per lane, so any number of regions may ack at the same time and exchange what they know in any
order, repeated or delayed: they end up the same.

A union can only grow.  A *seek* has to take acks back, and a *delete* all of them, and neither may
be undone by an ack that was made before and arrives after.  So they are commands with a **stamp**,
a counter beyond every stamp its region has met, with the region's name to settle a tie.  Every lane
carries the stamp of the seek it follows, and acks count only together with that stamp: of two
stamps of a lane the higher wins whole, equal ones join.  A seek stamps just the lanes that its
region can see; what stays in other regions is none of its business.  The group's **life** (created,
deleted, created again) is stamped in the same way above all lanes.

Two regions that seek at the same time therefore agree on one of the two, the same one everywhere.

So a join is commutative, associative and idempotent: the state is a CRDT.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from headrace.errors import InvalidCursorDeltaError
from headrace.groups.progress.bounds import OFFSET_MAX
from headrace.groups.progress.ranges import AckedRanges
from headrace.regions.core.origins import Lane
from headrace.regions.core.stamps import STAMP_COUNTER_MAX, Life, Stamp

SequenceRanges = tuple[tuple[int, int], ...]
Gain = tuple[Lane, int, int]
"""Sequences ``lo`` to ``hi`` (exclusive) of a lane, among which some are newly acked."""

_VECTORISED_RANGES_MIN = 4096


class LaneDelta(msgspec.Struct, frozen=True, array_like=True):
    """Acks of one lane under one stamp: everything below ``floor``, and ascending ranges."""

    lane: Lane
    stamp: Stamp
    floor: int
    ranges: SequenceRanges = ()


class CursorDelta(msgspec.Struct, frozen=True):
    """A part, or the whole, of a group's progress; joining it twice is joining it once."""

    group: str
    life: Life
    lanes: tuple[LaneDelta, ...] = ()


class Merged(msgspec.Struct, frozen=True):
    """What a join has changed.  ``rewound``: a command took acks back; ``gains`` are new acks."""

    gains: tuple[Gain, ...] = ()
    rewound: bool = False

    @property
    def changed(self) -> bool:
        """Whether anything is new."""
        return self.rewound or bool(self.gains)


class _LaneProgress:
    __slots__ = ("acked", "stamp")

    def __init__(self, stamp: Stamp, floor: int = 0) -> None:
        self.stamp = stamp
        self.acked = AckedRanges(floor)


class OriginProgress:
    """The progress of one group, as far as one region knows it."""

    def __init__(self, group: str, life: Life | None = None) -> None:
        self.group = group
        self.life = life if life is not None else Life()
        self._lanes: dict[Lane, _LaneProgress] = {}
        self._counter = self.life.stamp.counter

    # --- reading -----------------------------------------------------------------------

    def __str__(self) -> str:
        if self.life.deleted:
            return f"group {self.group!r} is deleted by {self.life.stamp}"
        shown = ", ".join(
            f"{lane}@{state.stamp.counter}{state.stamp.region}: {state.acked}"
            for lane, state in sorted(self._lanes.items())
        )
        return f"group {self.group!r} has {{{shown}}}"

    def lanes(self) -> tuple[Lane, ...]:
        """Every lane of which something is known."""
        return tuple(self._lanes)

    def acked(self, lane: Lane) -> AckedRanges | None:
        """What is acked of a lane, not to be changed; None when nothing is known of it."""
        state = self._lanes.get(lane)
        return state.acked if state is not None else None

    def stamp(self, lane: Lane) -> Stamp:
        """The command that a lane's acks follow."""
        state = self._lanes.get(lane)
        return state.stamp if state is not None else Stamp()

    def next_stamp(self, region: str) -> Stamp:
        """A stamp above every one met so far."""
        return Stamp(self._counter + 1, region)

    def whole(self) -> CursorDelta:
        """Everything that is known."""
        return CursorDelta(
            self.group,
            self.life,
            tuple(
                LaneDelta(lane, state.stamp, state.acked.floor, state.acked.to_tuples())
                for lane, state in sorted(self._lanes.items())
            ),
        )

    # --- changing ----------------------------------------------------------------------

    def ack(self, lane: Lane, lo: int, hi: int) -> bool:
        """Ack sequences of a lane under its current stamp; whether any was new."""
        state = self._lanes.get(lane)
        if state is None:
            state = self._lanes[lane] = _LaneProgress(Stamp())
        return state.acked.ack_range(lo, hi) > 0

    def merge(self, delta: CursorDelta) -> Merged:
        """Join what another region knows."""
        self.check(delta)
        self._counter = max(self._counter, delta.life.stamp.counter)
        for part in delta.lanes:
            self._counter = max(self._counter, part.stamp.counter)
        if delta.life < self.life:
            return Merged()
        rewound = False
        if delta.life > self.life:
            self.life = delta.life
            self._lanes.clear()
            rewound = True  # even a life that only begins: what was acked before it is void
        gains: list[Gain] = []
        for part in delta.lanes:
            state = self._lanes.get(part.lane)
            if state is None:
                state = self._lanes[part.lane] = _LaneProgress(part.stamp)
            if part.stamp < state.stamp:
                continue
            if part.stamp > state.stamp:
                state = self._lanes[part.lane] = _LaneProgress(part.stamp)
                rewound = True
            gains.extend(_join(part, state.acked))
        return Merged(tuple(gains), rewound)

    def check(self, delta: CursorDelta) -> None:
        """Refuse a record that cannot have been written by this code."""
        why = _broken(delta, self.group)
        if why is not None:
            raise InvalidCursorDeltaError(f"progress of {delta.group!r}", str(self), why)


def _join(part: LaneDelta, acked: AckedRanges) -> Iterable[Gain]:
    """Join a lane's acks, and tell where something new may be; linear in what is new."""
    floor = acked.floor
    if acked.ack_range(0, part.floor):
        yield part.lane, floor, part.floor
    if len(part.ranges) >= _VECTORISED_RANGES_MIN:
        bounds = np.array(part.ranges, dtype=np.int64)
        if acked.ack_ranges(bounds[:, 0], bounds[:, 1]):
            for lo, hi in part.ranges:
                yield part.lane, lo, hi
        return
    for lo, hi in part.ranges:
        below = max(lo, acked.floor)
        if below < hi and acked.ack_range(below, hi):
            yield part.lane, below, hi


def _broken(delta: CursorDelta, group: str) -> str | None:
    if delta.group != group:
        return f"it is about another group than {group!r}"
    if delta.life.deleted and delta.lanes:
        return "a deleted group has no progress"
    stamps = [delta.life.stamp, *(part.stamp for part in delta.lanes)]
    if not all(0 <= stamp.counter < STAMP_COUNTER_MAX for stamp in stamps):
        return "a stamp is out of bounds"
    names = [part.lane for part in delta.lanes]
    if len(set(names)) < len(names):
        return "a lane is named twice"
    for part in delta.lanes:
        if not 0 <= part.floor <= OFFSET_MAX:
            return f"lane {part.lane!r} has the floor {part.floor}"
        last = part.floor
        for lo, hi in part.ranges:
            if not last <= lo < hi <= OFFSET_MAX:
                return f"the ranges of lane {part.lane!r} do not ascend at [{lo}, {hi})"
            last = hi
    return None
