"""Whole programs in a simulated world: real runtimes, with the world's time, network and faults.

A :class:`~headrace.sim.programs.program.Program` is a process of the world that runs on an event
loop of its own (``headrace.testing``), in the world's time.  What it dials and listens on are
simulated connections (``sockets``), and between it and its real catalog stands a committer that
refuses, delays and loses answers (``store``).
"""

from headrace.sim.programs.program import Program
from headrace.sim.programs.sockets import Internet

__all__ = ["Internet", "Program"]
