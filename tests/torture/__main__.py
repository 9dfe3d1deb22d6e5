"""``python -m tests.torture``: the long version, with a summary."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.torture.run import Catalog, Result, new_folder, torture

app = cyclopts.App(name="python -m tests.torture", help_format="plaintext")


@app.default
def main(
    *,
    kills: Annotated[int, Parameter(help="writers to kill, over all catalogs")] = 220,
    catalog: Annotated[
        Literal["sqlite", "postgres", "both"], Parameter(help="what to torture")
    ] = "both",
    seed: Annotated[int | None, Parameter(help="repeat the plan of an earlier run")] = None,
    json: Annotated[bool, Parameter(help="print the result as JSON, and nothing else")] = False,
    keep: Annotated[bool, Parameter(help="keep catalogs, ledgers and output files")] = False,
) -> int:
    """Kill writers of the log at random and account for every event.

    Exits with 1 when any event is unaccounted for.  Example:
    python -m tests.torture --kills 60 --catalog sqlite
    """
    catalogs: tuple[Catalog, ...] = ("sqlite", "postgres") if catalog == "both" else (catalog,)
    chosen = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    console = Console(stderr=json)
    console.print(f"torture of {' and '.join(catalogs)}: {kills} kills, seed {chosen}")
    folder = new_folder()
    result = None
    try:
        result = _run(catalogs, kills, chosen, folder, console)
    finally:
        if keep or result is None or result.findings:
            console.print(f"everything is kept in {folder}", soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        _show(console, result)
    return 1 if result.findings else 0


def _run(
    catalogs: tuple[Catalog, ...], kills: int, seed: int, folder: Path, console: Console
) -> Result:
    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("kills"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars = {
            name: progress.add_task(name, total=kills // len(catalogs), start=False)
            for name in catalogs
        }

        def tell(name: Catalog, done: int) -> None:
            progress.start_task(bars[name])
            progress.update(bars[name], completed=done)

        return torture(catalogs, kills, seed, folder, tell)


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
