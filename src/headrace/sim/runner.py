"""Runs one seed of a scenario, shortens what fails, and adds up what was seen.

A failing run is shrunk (delta debugging): it is repeated with fewer and fewer faults, as long as
the same invariant still breaks; first without whole kinds of fault, then without halves, quarters
and so on of the single faults.  The number of attempts is bounded, so a result may not be minimal,
but it always fails by itself when replayed with the same arguments.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from headrace.errors import HeadraceError
from headrace.sim.faults import ALL_FAULTS, Fault
from headrace.sim.scenario import Action, Scenario
from headrace.sim.world import InvariantViolation, World

SHRINK_RUNS_MAX = 60
HISTORY_LINES_SHOWN = 60
COLLECT_AFTER = 100_000
"""Objects that a run makes between two looks for cycles.  Almost all of them are its history, which
stays: Python's own 700 would have it walked through thousands of times."""


class RunResult(msgspec.Struct, frozen=True):
    """The result of one seed."""

    scenario: str
    seed: int
    steps: int
    virtual_ms: int
    faults: dict[str, int]
    reached: dict[str, int]
    invariant: str | None = None
    detail: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every invariant held."""
        return self.invariant is None


class Shrunk(msgspec.Struct, frozen=True):
    """A run with fewer faults that breaks the same invariant."""

    result: RunResult
    history: list[str]
    faults: list[str]
    faults_struck: int
    faults_kept: int
    runs: int

    def excerpt(self, lines: int = HISTORY_LINES_SHOWN) -> list[str]:
        """The last part of the history, which ends in the violation."""
        if len(self.history) <= lines:
            return self.history
        left_out = len(self.history) - lines
        return [f"... {left_out} lines left out, --replay shows all ...", *self.history[-lines:]]


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Look for cycles seldom while a run is under way."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], COLLECT_AFTER) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Run:
    """One run of one world, step by step."""

    def __init__(
        self,
        scenario: type[Scenario],
        seed: int,
        *,
        steps: int | None = None,
        faults: Iterable[Fault] = ALL_FAULTS,
        muted: frozenset[int] = frozenset(),
    ) -> None:
        self.steps_max = scenario.steps if steps is None else steps
        self.world = World(seed, faults, muted=muted)
        self.scenario = scenario(self.world)
        self._acting = True

    def finish(self) -> RunResult:
        """Run to the end, or to the first violation."""
        world = self.world
        try:
            with collecting_rarely():
                self._live()
            violation = None
        except InvariantViolation as found:
            violation = found
        except (HeadraceError, AssertionError, LookupError, TypeError, ValueError) as error:
            # A core must refuse what it cannot accept with an error that its runtime expects;
            # anything that escapes to here would have killed a real process.
            world.note("world", "VIOLATION escaped error: %s", repr(error))
            violation = InvariantViolation("no error escapes", repr(error))
        finally:
            self.scenario.close()
        return RunResult(
            scenario=self.scenario.name,
            seed=world.seed,
            steps=world.steps,
            virtual_ms=world.now_ms,
            faults={kind.value: n for kind, n in sorted(world.faults.counts.items())},
            reached=dict(sorted(world.reached.items())),
            invariant=violation.invariant if violation else None,
            detail=violation.detail if violation else None,
        )

    def _live(self) -> None:
        world, scenario = self.world, self.scenario
        scenario.build()
        scenario.check()
        world.call_in(world.rng.randint(1, scenario.action_ms), self._act)
        world.call_in(world.rng.randint(1, scenario.mishap_ms), self._mishap)
        while world.steps < self.steps_max and world.step():
            scenario.check()
        self._acting = False
        world.heal()
        scenario.healed()
        scenario.check()
        deadline_ms = world.now_ms + scenario.settle_ms
        steps_max = world.steps + scenario.settle_steps
        while not scenario.quiescent():
            if world.now_ms > deadline_ms or world.steps > steps_max or not world.step():
                world.fail("quiescence", scenario.unsettled() or "the world does not come to rest")
            scenario.check()
        scenario.final()
        world.note("world", "rests")

    def _act(self) -> None:
        if not self._acting:
            return
        world, scenario = self.world, self.scenario
        actions: list[Action] = scenario.actions()
        if actions:
            weights = [action.weight for action in actions]
            action = world.rng.choices(actions, weights)[0]
            if action.fault is None or world.faults.strikes(action.fault, 1.0):
                world.note("world", "does %s", action.name)
                action.run()
        world.call_in(world.rng.randint(scenario.action_ms, 2 * scenario.action_ms), self._act)

    def _mishap(self) -> None:
        if not self._acting:
            return
        world, scenario = self.world, self.scenario
        rng = world.rng
        victims = scenario.victims()
        kind = rng.choice((Fault.CRASH, Fault.PAUSE, Fault.PARTITION))
        down_ms = rng.randint(*scenario.down_ms)
        pause_ms = rng.randint(*scenario.pause_ms)
        partition_ms = rng.randint(*scenario.partition_ms)
        draws = [rng.random() for _ in victims]
        if victims and world.faults.strikes(kind, 1.0):
            victim = victims[draws.index(max(draws))]
            match kind:
                case Fault.CRASH if victim.alive:
                    world.crash(victim, down_ms)
                case Fault.PAUSE:
                    world.pause(victim, pause_ms)
                case _:
                    side = frozenset(
                        p.name for p, draw in zip(victims, draws, strict=True) if draw > 0.6
                    )
                    world.network.partition(side | {victim.name}, partition_ms)
        world.call_in(rng.randint(scenario.mishap_ms, 2 * scenario.mishap_ms), self._mishap)


def run_seed(
    scenario: type[Scenario],
    seed: int,
    *,
    steps: int | None = None,
    faults: Iterable[Fault] = ALL_FAULTS,
) -> RunResult:
    """Run one seed to the end, or to the first violation."""
    return Run(scenario, seed, steps=steps, faults=faults).finish()


def replay(
    scenario: type[Scenario],
    seed: int,
    *,
    steps: int | None = None,
    faults: Iterable[Fault] = ALL_FAULTS,
) -> tuple[RunResult, str]:
    """Run one seed; also returns its whole history, the same to the byte every time."""
    run = Run(scenario, seed, steps=steps, faults=faults)
    result = run.finish()
    return result, "\n".join(run.world.history()) + "\n"


def shrink(
    scenario: type[Scenario],
    seed: int,
    *,
    steps: int | None = None,
    faults: Iterable[Fault] = ALL_FAULTS,
    runs_max: int = SHRINK_RUNS_MAX,
) -> Shrunk:
    """Shrink a seed that fails; the invariant broken stays the same."""
    return _Shrinker(scenario, seed, steps, frozenset(faults), runs_max).shrink()


class _Shrinker:
    def __init__(
        self,
        scenario: type[Scenario],
        seed: int,
        steps: int | None,
        faults: frozenset[Fault],
        runs_max: int,
    ) -> None:
        self._scenario = scenario
        self._seed = seed
        self._steps = steps
        self._faults = faults
        self._runs_max = runs_max
        self._runs = 0
        self._best, self._result = self._run(faults, frozenset())

    def _run(self, faults: frozenset[Fault], muted: frozenset[int]) -> tuple[Run, RunResult]:
        self._runs += 1
        run = Run(self._scenario, self._seed, steps=self._steps, faults=faults, muted=muted)
        return run, run.finish()

    def _keep_if_same(self, faults: frozenset[Fault], muted: frozenset[int]) -> bool:
        run, result = self._run(faults, muted)
        if result.invariant is None or result.invariant != self._result.invariant:
            return False
        if run.world.history_length > self._best.world.history_length * 2:
            return False
        self._best, self._result = run, result
        return True

    def shrink(self) -> Shrunk:
        struck = self._best.world.faults.struck
        faults = self._faults
        if self._result.invariant is not None:
            for kind in sorted(self._faults):
                if self._runs < self._runs_max and self._keep_if_same(faults - {kind}, frozenset()):
                    faults -= {kind}
            self._mute(faults)
        plan = self._best.world.faults
        return Shrunk(
            result=self._result,
            history=self._best.world.history(),
            faults=sorted(faults),
            faults_struck=struck,
            faults_kept=sum(plan.counts.values()),
            runs=self._runs,
        )

    def _mute(self, faults: frozenset[Fault]) -> None:
        """Take out the single faults by halves, quarters, eighths, while the runs last."""
        muted: frozenset[int] = frozenset()
        count = self._best.world.faults.struck
        size = max(1, count // 2)
        while self._runs < self._runs_max and count:
            for start in range(0, count, size):
                chunk = frozenset(range(start, min(start + size, count)))
                if self._runs >= self._runs_max:
                    return
                if not chunk <= muted and self._keep_if_same(faults, muted | chunk):
                    muted |= chunk
            if size == 1:
                return
            size = max(1, size // 2)


class Summary:
    """Adds up the results of many seeds of one scenario."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.seeds = 0
        self.steps = 0
        self.virtual_ms = 0
        self.faults: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self.failures: list[RunResult] = []

    def add(self, result: RunResult) -> None:
        """Take one seed's result in."""
        self.seeds += 1
        self.steps += result.steps
        self.virtual_ms += result.virtual_ms
        self.faults.update(result.faults)
        self.reached.update(result.reached)
        if not result.ok:
            self.failures.append(result)


def run_seeds(
    scenario: type[Scenario],
    seeds: Iterable[int],
    *,
    steps: int | None = None,
    faults: Iterable[Fault] = ALL_FAULTS,
) -> Iterator[RunResult]:
    """Run seeds one after the other; the caller decides when to stop."""
    kinds = frozenset(faults)
    for seed in seeds:
        yield run_seed(scenario, seed, steps=steps, faults=kinds)
