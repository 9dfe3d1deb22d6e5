"""A whole torture of groups: one ordeal for each catalog, and the sums."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from tests.torture.account import Finding
from tests.torture.groups.ordeal import WORKERS, Ordeal, Outcome
from tests.torture.run import Catalog
from tests.torture.server import create_database, running_postgres

DATABASE = "groups"

Progress = Callable[[Catalog, int], None]


class Result(msgspec.Struct, frozen=True):
    """All ordeals of one run."""

    seed: int
    outcomes: list[Outcome]
    seconds: float

    @property
    def findings(self) -> list[Finding]:
        return [finding for outcome in self.outcomes for finding in outcome.findings]

    @property
    def faults(self) -> int:
        return sum(sum(outcome.faults.values()) for outcome in self.outcomes)


def torture_groups(
    catalogs: Sequence[Catalog],
    faults: int,
    seed: int,
    folder: Path,
    progress: Progress = lambda catalog, faults: None,
    workers: int = WORKERS,
) -> Result:
    """Share ``faults`` among the catalogs, all at the same time; files stay in ``folder``."""
    began = time.monotonic()
    with ExitStack() as servers, ThreadPoolExecutor(len(catalogs)) as pool:
        ordeals = []
        for number, catalog in enumerate(catalogs):
            share = faults * (number + 1) // len(catalogs) - faults * number // len(catalogs)
            place = folder / f"groups-{catalog}"
            place.mkdir(parents=True)
            url = str(place / "data")
            if catalog == "postgres":
                server_url = servers.enter_context(running_postgres(place / "server"))
                url = create_database(server_url, DATABASE)
            rng = random.Random(f"{seed} groups {catalog}")
            tell = partial(progress, catalog)
            ordeals.append(Ordeal(catalog, url, place, share, rng, tell, workers))
        outcomes = list(pool.map(Ordeal.run, ordeals))
    return Result(seed, outcomes, time.monotonic() - began)
