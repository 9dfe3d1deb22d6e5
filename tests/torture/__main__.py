"""``python -m tests.torture``: the long version, with a summary.

``--what log`` is the torture of the log alone, ``--what groups`` that of partitioned groups,
``--what shared`` that of shared groups, ``--what readers`` that of reader groups, ``--what
spark-readers`` that of a Spark query in one, ``--what epochs`` that of publishers and subscribers
of epochs, ``--what regions`` that of groups that move between two regions (SQLite), ``--what
servers`` that of a PostgreSQL server that dies, fails over, goes back and is cut off.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import cyclopts
import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.torture.epochs import Result as EpochsResult
from tests.torture.epochs import show as show_epochs
from tests.torture.epochs import torture_epochs
from tests.torture.groups import report
from tests.torture.groups.run import Result as GroupsResult
from tests.torture.groups.run import torture_groups
from tests.torture.reader_run import Result as ReadersResult
from tests.torture.reader_run import show as show_readers
from tests.torture.reader_run import torture_readers
from tests.torture.regions import Outcome as RegionsOutcome
from tests.torture.regions import show as show_regions
from tests.torture.regions import torture_all_regions
from tests.torture.run import Catalog, Result, new_folder, torture
from tests.torture.server_faults import ServersResult, torture_servers
from tests.torture.server_faults import show as show_servers
from tests.torture.shared_run import Result as SharedResult
from tests.torture.shared_run import show as show_shared
from tests.torture.shared_run import torture_shared
from tests.torture.spark_readers import Result as SparkReadersResult
from tests.torture.spark_readers import show as show_spark_readers
from tests.torture.spark_readers import torture_spark_readers

R = TypeVar("R")

app = cyclopts.App(name="python -m tests.torture", help_format="plaintext")


class Results(msgspec.Struct, frozen=True):
    """What was run."""

    log: Result | None = None
    groups: GroupsResult | None = None
    shared: SharedResult | None = None
    readers: ReadersResult | None = None
    epochs: EpochsResult | None = None
    spark_readers: SparkReadersResult | None = None
    regions: tuple[RegionsOutcome, ...] = ()
    servers: ServersResult | None = None

    @property
    def sound(self) -> bool:
        parts = (
            *(self.log, self.groups, self.shared),
            *(self.readers, self.epochs, self.spark_readers, self.servers),
        )
        return not any(part.findings for part in parts if part is not None) and not any(
            outcome.counted.findings for outcome in self.regions
        )


@app.default
def main(
    what: Annotated[
        Literal[
            "log",
            "groups",
            "shared",
            "readers",
            "epochs",
            "spark-readers",
            "regions",
            "servers",
            "all",
        ],
        Parameter(help="whom to torture"),
    ] = "all",
    *,
    kills: Annotated[int, Parameter(help="writers to kill, over all catalogs")] = 220,
    faults: Annotated[int, Parameter(help="faults of members, per kind of group")] = 300,
    catalog: Annotated[
        Literal["sqlite", "postgres", "both"], Parameter(help="what to torture")
    ] = "both",
    seed: Annotated[int | None, Parameter(help="repeat the plan of an earlier run")] = None,
    json: Annotated[bool, Parameter(help="print the result as JSON, and nothing else")] = False,
    keep: Annotated[bool, Parameter(help="keep catalogs, ledgers and output files")] = False,
) -> int:
    """Kill and freeze processes at random and account for every event.

    Exits with 1 when any event is unaccounted for.  Example:
    python -m tests.torture --what groups --faults 60 --catalog sqlite
    """
    catalogs: tuple[Catalog, ...] = ("sqlite", "postgres") if catalog == "both" else (catalog,)
    chosen = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    console = Console(stderr=json)
    console.print(f"torture of {' and '.join(catalogs)}, seed {chosen}")
    folder = new_folder()
    result = Results()
    done = False
    try:
        if what in ("log", "all"):
            found = _run(
                f"{kills} kills",
                catalogs,
                kills,
                console,
                lambda tell: torture(catalogs, kills, chosen, folder, tell),
            )
            result = msgspec.structs.replace(result, log=found)
        if what in ("groups", "all"):
            endured = _run(
                f"{faults} faults",
                catalogs,
                faults,
                console,
                lambda tell: torture_groups(catalogs, faults, chosen, folder, tell),
            )
            result = msgspec.structs.replace(result, groups=endured)
        if what in ("shared", "all"):
            shared = _run(
                f"{faults} faults",
                catalogs,
                faults,
                console,
                lambda tell: torture_shared(catalogs, faults, chosen, folder, tell),
            )
            result = msgspec.structs.replace(result, shared=shared)
        if what in ("readers", "all"):
            readers = _run(
                f"{faults} faults",
                catalogs,
                faults,
                console,
                lambda tell: torture_readers(catalogs, faults, chosen, folder, tell),
            )
            result = msgspec.structs.replace(result, readers=readers)
        if what in ("epochs", "all"):
            epochs = _run(
                f"{faults} faults",
                catalogs,
                faults,
                console,
                lambda tell: torture_epochs(catalogs, faults, chosen, folder, tell),
            )
            result = msgspec.structs.replace(result, epochs=epochs)
        if what in ("spark-readers", "all"):
            drivers = _run(
                f"{faults} faults",
                catalogs,
                faults,
                console,
                lambda tell: torture_spark_readers(catalogs, faults, chosen, folder, tell),
            )
            result = msgspec.structs.replace(result, spark_readers=drivers)
        if what in ("regions", "all"):
            moved = torture_all_regions(faults // 6, chosen, folder)
            result = msgspec.structs.replace(result, regions=moved)
        if what in ("servers", "all") and "postgres" in catalogs:
            # Each takes about ten seconds.
            struck = torture_servers(max(1, faults // 10), chosen, console.print)
            result = msgspec.structs.replace(result, servers=struck)
        done = True
    finally:
        if keep or not done or not result.sound:
            console.print(f"everything is kept in {folder}", soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        if result.log is not None:
            _show(console, result.log)
        if result.groups is not None:
            report.show(console, result.groups)
        if result.shared is not None:
            show_shared(console, result.shared)
        if result.readers is not None:
            show_readers(console, result.readers)
        if result.epochs is not None:
            show_epochs(console, result.epochs)
        if result.spark_readers is not None:
            show_spark_readers(console, result.spark_readers)
        show_regions(console, result.regions)
        if result.servers is not None:
            show_servers(console, result.servers)
    return 0 if result.sound else 1


def _run(
    unit: str,
    catalogs: tuple[Catalog, ...],
    count: int,
    console: Console,
    run: Callable[[Callable[[Catalog, int], None]], R],
) -> R:
    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit.split()[1]),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars = {
            name: progress.add_task(name, total=count // len(catalogs), start=False)
            for name in catalogs
        }

        def tell(name: Catalog, done: int) -> None:
            progress.start_task(bars[name])
            progress.update(bars[name], completed=done)

        return run(tell)


def _show(console: Console, result: Result) -> None:
    table = Table("", *(outcome.catalog for outcome in result.outcomes))

    def row(name: str, *values: object) -> None:
        shown = (f"{value:,}" if isinstance(value, int) else str(value) for value in values)
        table.add_row(name, *shown)

    kinds = sorted({kind for outcome in result.outcomes for kind in outcome.kills})
    for kind in kinds:
        row(f"killed {kind}", *(outcome.kills.get(kind, 0) for outcome in result.outcomes))
    row("paused", *(outcome.pauses for outcome in result.outcomes))
    for fault in sorted({fault for outcome in result.outcomes for fault in outcome.server_faults}):
        row(f"connection {fault}", *(o.server_faults.get(fault, 0) for o in result.outcomes))
    reports = [outcome.report for outcome in result.outcomes]
    for name in ("acked", "in_doubt_found", "in_doubt_lost", "refused"):
        row(f"events {name.replace('_', ' ')}", *(getattr(r.totals, name) for r in reports))
    row("appends", *(r.totals.appends for r in reports))
    row("failed by a cut connection", *(r.totals.cut_connections for r in reports))
    row("repeats answered", *(r.totals.repeats for r in reports))
    row("segments", *(r.totals.segments for r in reports))
    row("batches", *(r.batches for r in reports))
    row("files / orphans", *(f"{r.files} / {r.orphans}" for r in reports))
    row("events followed", *(sum(s.events for s in o.seen) for o in result.outcomes))
    row("reads checked", *(sum(s.reads for s in o.seen) for o in result.outcomes))
    row("seconds", *(f"{outcome.seconds:.0f}" for outcome in result.outcomes))
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
        f"{result.kills} writers killed in {result.seconds:.0f} s; {verdict} (seed {result.seed})"
    )


if __name__ == "__main__":
    sys.exit(app())
