"""The summary of a torture of groups, for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tests.torture.groups.run import Result


def show(console: Console, result: Result) -> None:
    table = Table("groups", *(outcome.catalog for outcome in result.outcomes))

    def row(name: str, values: list[int]) -> None:
        table.add_row(name, *(f"{value:,}" for value in values))

    for kind in sorted({kind for outcome in result.outcomes for kind in outcome.faults}):
        row(kind, [outcome.faults.get(kind, 0) for outcome in result.outcomes])
    for kind in sorted({kind for outcome in result.outcomes for kind in outcome.changes}):
        row(f"changed: {kind}", [outcome.changes.get(kind, 0) for outcome in result.outcomes])
    totals = [outcome.totals for outcome in result.outcomes]
    for name in totals[0].__struct_fields__:
        row(name.replace("_", " "), [getattr(each, name) for each in totals])
    row("seconds", [round(outcome.seconds) for outcome in result.outcomes])
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
        f"{result.faults} faults of members in {result.seconds:.0f} s; {verdict} "
        f"(seed {result.seed})"
    )
