"""How to plug a protocol into the simulator.

A scenario is one module in ``headrace/sim/scenarios/`` with a subclass of :class:`Scenario` and a
line ``SCENARIO = MyScenario``; it is found by itself.  For every seed a fresh instance is made:

1. ``build()`` makes the processes (``self.world.spawn(MyProcess(self.world, "node-1"))``), opens
   segments (``self.world.log.create(4)``) and puts first records into ``self.world.store``.
   The size of the set-up should itself come from ``self.world.rng``.
2. ``actions()`` lists what the outside does meanwhile: publish, subscribe, leave, split a
   segment.  Each has a weight; one is drawn every few milliseconds while faults are on.  An
   action with a ``fault`` happens only when that kind of fault is switched on, and is counted.
3. ``check()`` is called after *every* step and must raise through ``self.world.fail`` or
   ``self.world.require`` when an invariant is broken.  Keep it cheap: look at what has changed.
   Checks may also stand where things happen, in the processes.
4. After `steps` steps the world heals: no more faults or actions, everyone alive.  ``healed()``
   is called once; then the world runs on until ``quiescent()`` says that nothing is left to do.
   A world that does not get there within ``settle_ms`` breaks the invariant `quiescence`; say in
   ``unsettled()`` what it is still waiting for.
5. ``final()`` checks what must hold in the end (everything consumed, everything assigned).
6. ``close()`` is called in any case, for a scenario that holds files or event loops.

Processes that may crash, pause or be cut off are named by ``victims()``.  Count interesting
states with ``self.world.reach("borrower.connected")``: they appear in the summary, and a test can
insist that they were seen.  Whatever iterates while drawing random numbers must have a fixed
order: lists and dicts, never sets of strings.

Planted bugs stand in ``headrace/sim/planted/``, see :mod:`headrace.sim.planted`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from headrace.sim.faults import Fault
from headrace.sim.world import Process, World


class Action(msgspec.Struct, frozen=True):
    """Something the outside does, drawn at random by weight."""

    name: str
    weight: int
    run: Callable[[], object]
    fault: Fault | None = None


class Scenario:
    """Base of all scenarios; the module's docstring says how to write one."""

    name: ClassVar[str]
    about: ClassVar[str]
    steps: ClassVar[int] = 2000
    """Steps with faults, unless the caller wants another number."""
    action_ms: ClassVar[int] = 25
    """An action is drawn every 1 to 2 × this."""
    mishap_ms: ClassVar[int] = 1500
    """A crash, a pause or a partition is drawn every 1 to 2 × this."""
    down_ms: ClassVar[tuple[int, int]] = (50, 4000)
    pause_ms: ClassVar[tuple[int, int]] = (100, 15_000)
    partition_ms: ClassVar[tuple[int, int]] = (100, 8_000)
    settle_ms: ClassVar[int] = 300_000
    settle_steps: ClassVar[int] = 200_000
    """A healed world that does not come to rest within both of these breaks `quiescence`."""

    def __init__(self, world: World) -> None:
        self.world = world

    def build(self) -> None:
        """Make the world: processes, segments, first records."""
        raise NotImplementedError

    def actions(self) -> list[Action]:
        """What the outside may do."""
        return []

    def victims(self) -> list[Process]:
        """The processes that may crash, pause and be cut off: all, unless overridden."""
        return list(self.world.processes.values())

    def check(self) -> None:
        """Check the invariants after a step."""

    def healed(self) -> None:
        """The faults are over."""

    def quiescent(self) -> bool:
        """Whether nothing is left to do."""
        return True

    def unsettled(self) -> str:
        """What the world is still waiting for, when it does not come to rest."""
        return ""

    def final(self) -> None:
        """Check what must hold once the world has come to rest."""

    def close(self) -> None:
        """The run is over, however it ended: give back what the scenario holds outside of it."""
