"""The network of a simulated world: it drops, repeats, holds back, reorders and partitions.

Without faults a link is first in, first out, with a delay of a few milliseconds.  A partition
cuts the links between two sides for a while; what is under way when it begins still arrives.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.sim.faults import Fault

if TYPE_CHECKING:
    from headrace.sim.world import World

DROP_PROBABILITY = 0.04
REPEAT_PROBABILITY = 0.04
DELAY_PROBABILITY = 0.02
REORDER_PROBABILITY = 0.10
DELAY_MS_MAX = 4000


class Network:
    """Carries messages between the processes of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last_arrival_ms: dict[tuple[str, str], int] = {}
        self._cut: list[tuple[frozenset[str], int]] = []
        """Sides that are cut off from everyone else, each with its own number."""
        self._cuts_made = 0

    def send(self, source: str, target: str, message: Any) -> None:
        """Put a message on the link from `source` to `target`."""
        world = self._world
        rng, faults = world.rng, world.faults
        delay_ms = rng.randint(1, 8)
        held_ms = rng.randint(50, DELAY_MS_MAX)
        dropped = faults.strikes(Fault.DROP, DROP_PROBABILITY)
        repeated = faults.strikes(Fault.REPEAT, REPEAT_PROBABILITY)
        held = faults.strikes(Fault.DELAY, DELAY_PROBABILITY)
        overtakes = faults.strikes(Fault.REORDER, REORDER_PROBABILITY)
        if self.is_cut(source, target):
            world.note(source, "-x %s %s (partition)", target, message)
            return
        if dropped:
            world.note(source, "-x %s %s (dropped)", target, message)
            return
        world.note(source, "-> %s %s", target, message)
        link = (source, target)
        if held:
            self._arrive(source, target, message, held_ms)
        elif overtakes:
            self._arrive(source, target, message, 0)
        else:
            # First in, first out: never before what was sent earlier on this link.
            at_ms = max(world.now_ms + delay_ms, self._last_arrival_ms.get(link, 0))
            self._last_arrival_ms[link] = at_ms
            self._arrive(source, target, message, at_ms - world.now_ms)
        if repeated:
            self._arrive(source, target, message, rng.randint(1, DELAY_MS_MAX))

    def _arrive(self, source: str, target: str, message: Any, delay_ms: int) -> None:
        process = self._world.processes.get(target)
        if process is not None:
            self._world.call_in(delay_ms, partial(process.deliver, source, message))

    def partition(self, side: frozenset[str], for_ms: int) -> None:
        """Cut `side` off from everyone else for `for_ms`."""
        self._cuts_made += 1
        cut = (side, self._cuts_made)
        self._cut.append(cut)
        self._world.note("network", "cuts off %s", ", ".join(sorted(side)))
        self._world.call_in(for_ms, lambda: self._mend(cut))

    def _mend(self, cut: tuple[frozenset[str], int]) -> None:
        if cut in self._cut:
            self._cut.remove(cut)
            self._world.note("network", "joins %s again", ", ".join(sorted(cut[0])))

    def is_cut(self, source: str, target: str) -> bool:
        """Whether a partition stands between two processes."""
        if not self._cut:
            return False
        return any((source in side) != (target in side) for side, _ in self._cut)

    def heal(self) -> None:
        """End every partition."""
        for cut in list(self._cut):
            self._mend(cut)
