"""Every torture by its name, in one form: so many faults on a catalog, and what was found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.torture.epochs import torture_epochs
from tests.torture.groups.run import torture_groups
from tests.torture.histories.run import run_rounds
from tests.torture.interrupts import Interrupts
from tests.torture.reader_run import torture_readers
from tests.torture.regions import REGIONS, torture_regions
from tests.torture.regions import Kind as RegionKind
from tests.torture.run import Catalog, torture
from tests.torture.server import create_database, running_postgres
from tests.torture.shared_run import torture_shared
from tests.torture.spark_readers import torture_spark_readers
from tests.torture.steering import Kind, seeks_under_load

ROUND_FAULTS = 8
"""About as many faults has a round of histories."""
SEEKS_PER_KILL = 4
STRIKES = 25
"""Interrupts by signal take little time: so many for each fault that is asked for."""


class Endured(NamedTuple):
    """What a torture met, and what was wrong, in words."""

    met: int
    findings: list[str]


Run = Callable[[Catalog, int, int, Path], Endured]


class Torture(NamedTuple):
    """One torture; ``run`` gets the catalog, how many faults, a seed and an empty folder."""

    run: Run
    catalogs: tuple[Catalog, ...] = ("sqlite", "postgres")
    unit: str = "faults"


def _log(catalog: Catalog, faults: int, seed: int, folder: Path) -> Endured:
    result = torture((catalog,), faults, seed, folder)
    return Endured(result.kills, [f"{each.kind}: {each.detail}" for each in result.findings])


def _groups(catalog: Catalog, faults: int, seed: int, folder: Path) -> Endured:
    result = torture_groups((catalog,), faults, seed, folder)
    return Endured(result.faults, [f"{each.kind}: {each.detail}" for each in result.findings])


def _shared(catalog: Catalog, faults: int, seed: int, folder: Path) -> Endured:
    result = torture_shared((catalog,), faults, seed, folder)
    return Endured(result.faults, [f"{each.kind}: {each.detail}" for each in result.findings])


def _readers(catalog: Catalog, faults: int, seed: int, folder: Path) -> Endured:
    result = torture_readers((catalog,), faults, seed, folder)
    return Endured(sum(sum(each.faults.values()) for each in result.outcomes), result.findings)


def _spark_readers(catalog: Catalog, faults: int, seed: int, folder: Path) -> Endured:
    result = torture_spark_readers((catalog,), faults, seed, folder)
    return Endured(sum(each.kills + each.freezes for each in result.outcomes), result.findings)


def _epochs(catalog: Catalog, faults: int, seed: int, folder: Path) -> Endured:
    result = torture_epochs((catalog,), faults, seed, folder)
    return Endured(sum(sum(each.faults.values()) for each in result.outcomes), result.findings)


def _regions(catalog: Catalog, faults: int, seed: int, folder: Path) -> Endured:
    kind: RegionKind = ("static", "shared")[seed % 2]
    moves = max(2, faults // 2)
    if catalog == "sqlite":
        outcome = torture_regions(kind, moves, seed, folder, loss_part=1 / 3)
    else:
        with running_postgres(folder / "server") as server:
            urls = {name: create_database(server, name) for name in REGIONS}
            outcome = torture_regions(kind, moves, seed, folder, loss_part=0.0, urls=urls)
    met = sum(outcome.faults.values()) + outcome.switches + outcome.losses
    return Endured(met, list(outcome.counted.findings))


def _histories(catalog: Catalog, faults: int, seed: int, folder: Path) -> Endured:
    del catalog, folder  # a round has a folder of its own, and keeps it where it finds anything
    found: list[str] = []
    totals = run_rounds(
        max(1, faults // ROUND_FAULTS),
        seed,
        4.0,
        tell=lambda outcome, kept: found.extend(
            f"{outcome.kind} {outcome.seed}: {each.kind}: {each.detail} (in {kept})"
            for each in outcome.findings
        ),
    )
    return Endured(sum(totals.faults.values()), found)


def _steering(catalog: Catalog, faults: int, seed: int, folder: Path) -> Endured:
    kind: Kind = ("static", "shared")[seed % 2]
    if catalog == "sqlite":
        verdict = seeks_under_load(str(folder / "d"), folder, kind, faults * SEEKS_PER_KILL, seed)
    else:
        with running_postgres(folder / "server") as server:
            url = create_database(server, "steering")
            verdict = seeks_under_load(url, folder, kind, faults * SEEKS_PER_KILL, seed)
    return Endured(verdict.kills, verdict.findings)


def _interrupts(catalog: Catalog, faults: int, seed: int, folder: Path) -> Endured:
    del catalog  # the locks are those of SQLite
    result = Interrupts(folder, faults * STRIKES, seed).run()
    findings = [f"{each.kind}: {each.detail}" for each in result.findings]
    return Endured(result.interrupts, findings)


TORTURES = {
    "log": Torture(_log),
    "groups": Torture(_groups),
    "shared": Torture(_shared),
    "readers": Torture(_readers),
    "spark-readers": Torture(_spark_readers),
    "epochs": Torture(_epochs),
    "regions": Torture(_regions),
    "steering": Torture(_steering),
    "histories": Torture(_histories, ("sqlite",)),
    "interrupts": Torture(_interrupts, ("sqlite",), "interrupts"),
}
