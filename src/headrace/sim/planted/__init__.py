"""Planted bugs: deliberate rule changes that prove the checks can see.

A module here holds ``PLANTED``, a tuple of :class:`PlantedBug`.  Each bug changes one rule of a
core while its context is open, and names the hunt that must find it: seeds of the simulator, the
exhaustive check, or golden cases.  A bug that nobody finds means that a check is blind, and
``headrace sim --planted`` then exits with an error.

The cores know nothing of this: a bug patches one function of a core from outside
(:func:`patched`), and the patch is taken back when the hunt is over.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

from headrace.sim.exhaustive import SETUPS, Explorer
from headrace.sim.faults import ALL_FAULTS, Fault
from headrace.sim.runner import run_seed
from headrace.sim.scenarios import scenario_named

Original = Callable[..., Any]
"""A function that a bug replaces, and what it is replaced by."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One deliberate rule change, and the hunt that must find it."""

    name: str
    about: str
    plant: Callable[[], AbstractContextManager[object]]
    """Opens a context in which the rule is broken."""
    hunt: Callable[[], str | None]
    """Looks for it; says how it was found, or None."""


@dataclass(frozen=True, slots=True)
class Hunted:
    """How a hunt ended."""

    bug: PlantedBug
    finding: str | None


@contextmanager
def patched(owner: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Replace ``owner.name`` by ``change(original)`` for a while."""
    original = getattr(owner, name)
    with mock.patch.object(owner, name, change(original)):
        yield


def by_search(setup: str, depth: int) -> Callable[[], str | None]:
    """A hunt through every state of one small world."""

    def hunt() -> str | None:
        chosen = next(s for s in SETUPS if s.name == setup)
        explored = Explorer(chosen).run(depth)
        return explored.violation and f"exhaustive {setup!r}: {explored.violation}"

    return hunt


def by_seeds(
    scenario: str,
    seeds: int = 200,
    *,
    first: int = 0,
    steps: int | None = None,
    faults: frozenset[Fault] = ALL_FAULTS,
) -> Callable[[], str | None]:
    """A hunt through `seeds` seeds of a scenario from `first` on, near one known to find it."""

    def hunt() -> str | None:
        for seed in range(first, first + seeds):
            result = run_seed(scenario_named(scenario), seed, steps=steps, faults=faults)
            if not result.ok:
                return f"{scenario} seed {seed}: {result.invariant}"
        return None

    return hunt


def seeded_bug(
    scenario: str,
    name: str,
    about: str,
    owner: Any,
    attribute: str,
    change: Callable[[Original], Any],
    first: int = 0,
) -> PlantedBug:
    """A function that is replaced, hunted by 200 seeds of a scenario from `first` on."""
    plant = lambda: patched(owner, attribute, change)  # noqa: E731
    return PlantedBug(name, about, plant, by_seeds(scenario, 200, first=first))


@cache
def planted_bugs() -> tuple[PlantedBug, ...]:
    """Every planted bug there is."""
    found: list[PlantedBug] = []
    for module in pkgutil.iter_modules(__path__):
        bugs = getattr(importlib.import_module(f"{__name__}.{module.name}"), "PLANTED", ())
        found.extend(bugs)
    return tuple(found)


def hunt_planted(bugs: tuple[PlantedBug, ...]) -> Iterator[Hunted]:
    """Plant each bug in turn and hunt for it."""
    for bug in bugs:
        with bug.plant():
            finding = bug.hunt()
        yield Hunted(bug, finding)
