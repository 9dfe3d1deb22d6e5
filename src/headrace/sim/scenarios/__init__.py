"""The scenarios, found by themselves: every module here with a ``SCENARIO`` line is one."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from headrace.errors import InvalidInputError
from headrace.sim.scenario import Scenario


class UnknownScenarioError(InvalidInputError):
    """There is no scenario of that name."""


@cache
def scenarios() -> dict[str, type[Scenario]]:
    """Every scenario by name, in alphabetical order."""
    found: dict[str, type[Scenario]] = {}
    for module in pkgutil.iter_modules(__path__):
        scenario = getattr(importlib.import_module(f"{__name__}.{module.name}"), "SCENARIO", None)
        if scenario is not None:
            found[scenario.name] = scenario
    return dict(sorted(found.items()))


def scenario_named(name: str) -> type[Scenario]:
    """The scenario of that name, or an error that lists those there are."""
    found = scenarios()
    if name not in found:
        known = ", ".join(found) or "none"
        raise UnknownScenarioError(f"unknown scenario {name!r}; choose from: {known}, all")
    return found[name]
