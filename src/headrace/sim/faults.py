"""What can go wrong in a simulated world, and the dice that decide when it does.

Every kind of fault can be switched off by name (``--faults``).  The dice are thrown even for a
kind that is off, and even after a fault has been muted: that keeps the random stream of a run
aligned while a failing run is being shrunk, so that taking one fault away tends to leave the rest
of the run as it was.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from headrace.errors import InvalidInputError


class Fault(StrEnum):
    """The kinds of fault, by the name used on the command line."""

    DROP = "drop"  # a message never arrives
    REPEAT = "repeat"  # a message arrives twice
    DELAY = "delay"  # a message is held back for seconds
    REORDER = "reorder"  # a message overtakes earlier ones of its link
    PARTITION = "partition"  # two sides cannot talk for a while
    CRASH = "crash"  # a process loses its memory and comes back
    PAUSE = "pause"  # a process stands still, past its leases, and goes on
    DRIFT = "drift"  # clocks run at different speeds
    REFUSE = "refuse"  # the store refuses a write
    LOSE = "lose"  # the store loses a write, or the answer to one
    SLOW = "slow"  # a consumer takes its time
    FAIL = "fail"  # a consumer gives an event back
    STALL = "stall"  # a consumer never acks
    SCALE = "scale"  # segments split and merge


ALL_FAULTS: frozenset[Fault] = frozenset(Fault)


class UnknownFaultError(InvalidInputError):
    """A name in a list of faults is not one."""


def parse_faults(text: str) -> frozenset[Fault]:
    """Read ``all``, ``none`` or a comma-separated list; ``-drop`` takes one away from all."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    chosen: set[Fault] = set()
    if names and names[0].startswith("-"):
        chosen = set(ALL_FAULTS)
    for name in names:
        if name == "all":
            chosen |= ALL_FAULTS
        elif name == "none":
            chosen.clear()
        else:
            bare = name.removeprefix("-")
            if bare not in Fault.__members__.values():
                known = ", ".join(sorted(ALL_FAULTS))
                raise UnknownFaultError(f"unknown fault {bare!r}; choose from: {known}, all, none")
            if name.startswith("-"):
                chosen.discard(Fault(bare))
            else:
                chosen.add(Fault(bare))
    return frozenset(chosen)


class FaultPlan:
    """Decides which faults strike; counts them; can be told to leave some out."""

    def __init__(
        self,
        rng: random.Random,
        kinds: Iterable[Fault] = ALL_FAULTS,
        *,
        muted: frozenset[int] = frozenset(),
    ) -> None:
        self._random = rng.random
        self.kinds = frozenset(kinds)
        self.muted = muted
        self.active = True
        self.counts: Counter[Fault] = Counter()
        self.struck = 0
        """How many faults have struck so far; a fault is muted by its number in this count."""

    def strikes(self, kind: Fault, probability: float) -> bool:
        """Throw the dice for one fault; a hit is counted."""
        missed = self._random() >= probability
        if missed or not self.active or kind not in self.kinds:
            return False
        number = self.struck
        self.struck += 1
        if number in self.muted:
            return False
        self.counts[kind] += 1
        return True
