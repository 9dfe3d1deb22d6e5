"""The simulator: protocol cores in a world of virtual time where everything goes wrong.

>>> from headrace.sim import run_seed, scenario_named
>>> run_seed(scenario_named("shared"), 7).ok
True

To plug in a protocol, read :mod:`headrace.sim.scenario`.
"""

from headrace.sim.faults import ALL_FAULTS, Fault, FaultPlan, parse_faults
from headrace.sim.runner import (
    Run,
    RunResult,
    Shrunk,
    Summary,
    replay,
    run_seed,
    run_seeds,
    shrink,
)
from headrace.sim.scenario import Action, Scenario
from headrace.sim.scenarios import scenario_named, scenarios
from headrace.sim.world import InvariantViolation, Process, World

__all__ = [
    "ALL_FAULTS",
    "Action",
    "Fault",
    "FaultPlan",
    "InvariantViolation",
    "Process",
    "Run",
    "RunResult",
    "Scenario",
    "Shrunk",
    "Summary",
    "World",
    "parse_faults",
    "replay",
    "run_seed",
    "run_seeds",
    "scenario_named",
    "scenarios",
    "shrink",
]
