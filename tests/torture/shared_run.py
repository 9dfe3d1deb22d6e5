"""A whole torture of shared groups: one ordeal for each catalog, the sums, and the summary."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tests.torture.account import Finding
from tests.torture.run import Catalog
from tests.torture.server import PostgresFaults, create_database, running_postgres
from tests.torture.shared_groups import Ordeal, Outcome

DATABASE = "shared"

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


def torture_shared(
    catalogs: Sequence[Catalog],
    faults: int,
    seed: int,
    folder: Path,
    progress: Progress = lambda catalog, faults: None,
) -> Result:
    """Share ``faults`` among the catalogs, all at the same time; files stay in ``folder``."""
    began = time.monotonic()
    with ExitStack() as servers, ThreadPoolExecutor(len(catalogs)) as pool:
        ordeals = []
        for number, catalog in enumerate(catalogs):
            share = faults * (number + 1) // len(catalogs) - faults * number // len(catalogs)
            place = folder / f"shared-{catalog}"
            place.mkdir(parents=True)
            url, server = str(place / "data"), None
            if catalog == "postgres":
                server_url = servers.enter_context(running_postgres(place / "server"))
                url = create_database(server_url, DATABASE)
                server = PostgresFaults(server_url, DATABASE)
            rng = random.Random(f"{seed} shared {catalog}")
            tell = partial(progress, catalog)
            ordeals.append(Ordeal(catalog, url, place, share, rng, server, tell))
        outcomes = list(pool.map(Ordeal.run, ordeals))
    return Result(seed, outcomes, time.monotonic() - began)


def show(console: Console, result: Result) -> None:
    """The summary, for people."""
    table = Table("shared groups", *(outcome.catalog for outcome in result.outcomes))

    def row(name: str, values: list[float]) -> None:
        table.add_row(name, *(f"{value:,.0f}" for value in values))

    for kind in sorted({kind for outcome in result.outcomes for kind in outcome.faults}):
        row(kind, [outcome.faults.get(kind, 0) for outcome in result.outcomes])
    figures = [outcome.figures for outcome in result.outcomes]
    for name in figures[0].__struct_fields__:
        if name != "replay_ms_max_after":
            row(name.replace("_", " "), [getattr(each, name) for each in figures])
    for kind in sorted({kind for each in figures for kind in each.replay_ms_max_after}):
        ages = [each.replay_ms_max_after.get(kind, 0) for each in figures]
        row(f"replay ms max after a {kind}", ages)
    row("seconds", [outcome.seconds for outcome in result.outcomes])
    console.print(table)
    for outcome in result.outcomes:
        for finding in outcome.findings:
            console.print(
                f"{outcome.catalog}: {finding.kind}: {finding.detail}",
                style="red",
                soft_wrap=True,
                markup=False,
            )
    verdict = "every event is accounted for" if not result.findings else "NOT ACCOUNTED FOR"
    console.print(
        f"{result.faults} faults of shared groups in {result.seconds:.0f} s; {verdict} "
        f"(seed {result.seed})"
    )
