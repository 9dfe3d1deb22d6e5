"""A whole torture: one ordeal for each catalog, and the sums."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tests.torture.account import Finding
from tests.torture.ordeal import Ordeal, Outcome
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
) -> Result:
    """Share ``kills`` among the catalogs; what is written stays in ``folder``."""
    began = time.monotonic()
    outcomes = []
    for number, catalog in enumerate(catalogs):
        share = kills * (number + 1) // len(catalogs) - kills * number // len(catalogs)
        rng = random.Random(f"{seed} {catalog}")
        place = folder / catalog
        place.mkdir(parents=True)

        def tell(done: int, catalog: Catalog = catalog) -> None:
            progress(catalog, done)

        if catalog == "sqlite":
            ordeal = Ordeal(catalog, str(place / "data"), place, share, rng, progress=tell)
            outcomes.append(ordeal.run())
        else:
            with running_postgres(place / "server") as server_url:
                url = create_database(server_url, DATABASE)
                faults = PostgresFaults(server_url, DATABASE)
                ordeal = Ordeal(catalog, url, place, share, rng, faults, tell)
                outcomes.append(ordeal.run())
    return Result(seed, outcomes, time.monotonic() - began)


def new_folder() -> Path:
    """A new folder for a run; short, since sockets live in it."""
    return Path(tempfile.mkdtemp(prefix="torture-"))
