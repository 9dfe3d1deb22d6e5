"""Regions whose members come and go in the middle of snapshots, over links that keep stopping.

The same world as :mod:`headrace.sim.scenarios.regions`, with three or four regions and little
quiet: the second round of a snapshot, and what happens between the rounds, is what counts here.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.sim.scenarios.regions import RegionsScenario


class RegionsMembersScenario(RegionsScenario):
    """Three or four regions, restless."""

    name: ClassVar[str] = "regions-members"
    about: ClassVar[str] = "members of a linked stream change between the rounds of a snapshot"
    sizes: ClassVar[tuple[int, ...]] = (3, 4, 4)
    stops: ClassVar[int] = 14
    changes: ClassVar[int] = 10


SCENARIO = RegionsMembersScenario
