"""A whole torture: one ordeal for each catalog, and the sums."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from tests.torture.account import Finding
from tests.torture.ordeal import WRITERS, Ordeal, Outcome
from tests.torture.server import PostgresFaults, create_database, running_postgres

Catalog = Literal["sqlite", "postgres"]
Progress = Callable[[Catalog, int], None]
DATABASE = "torture"


class Result(msgspec.Struct, frozen=True):
    """All ordeals of one run."""

    seed: int
    outcomes: list[Outcome]
    seconds: float

    @property
    def findings(self) -> list[Finding]:
        return [finding for outcome in self.outcomes for finding in outcome.findings]

    @property
    def kills(self) -> int:
        """Writers that were killed."""
        return sum(
            count
            for outcome in self.outcomes
            for kind, count in outcome.kills.items()
            if not kind.startswith("scaler")
        )


def torture(
    catalogs: Sequence[Catalog],
    kills: int,
    seed: int,
    folder: Path,
    progress: Progress = lambda catalog, kills: None,
    writers: int = WRITERS,
) -> Result:
    """Share ``kills`` among the catalogs, all at the same time; files stay in ``folder``."""
    began = time.monotonic()
    with ExitStack() as servers, ThreadPoolExecutor(len(catalogs)) as pool:
        ordeals = []
        for number, catalog in enumerate(catalogs):
            share = kills * (number + 1) // len(catalogs) - kills * number // len(catalogs)
            place = folder / catalog
            place.mkdir(parents=True)
            url, faults = str(place / "data"), None
            if catalog == "postgres":
                server_url = servers.enter_context(running_postgres(place / "server"))
                url = create_database(server_url, DATABASE)
                faults = PostgresFaults(server_url, DATABASE)
            rng = random.Random(f"{seed} {catalog}")
            tell = partial(progress, catalog)
            ordeals.append(Ordeal(catalog, url, place, share, rng, faults, tell, writers))
        outcomes = list(pool.map(Ordeal.run, ordeals))
    return Result(seed, outcomes, time.monotonic() - began)


def new_folder() -> Path:
    """A new folder for a run; short, since sockets live in it."""
    return Path(tempfile.mkdtemp(prefix="torture-"))
