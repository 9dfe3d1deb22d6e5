"""``headrace region snapshot``: for groups whose progress is exchanged by snapshot."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.cli.failures import EXIT_FAILED
from headrace.cli.options import NONE, Options
from headrace.cli.output import table
from headrace.cli.region_leaving import DryRun
from headrace.cli.region_looks import StreamName
from headrace.cli.region_shapes import named
from headrace.cli.region_snapshot_shapes import forced_shape, listed_shape, taken_shape
from headrace.cli.values import duration_s

app = App(name="snapshot", help="Snapshots, of groups that are replicated by them.")


@app.command
def now(
    stream: StreamName,
    /,
    *,
    timeout: Annotated[str, Parameter(help="How long it may take.")] = "30s",
    options: Options = NONE,
) -> int:
    """Take a snapshot of each segment now, and wait for them; status 1 if one is not complete.

    Example: `headrace region snapshot now orders`
    """
    from headrace.regions.taking import take_snapshots

    limit_s = duration_s(timeout, "--timeout")
    with options.open() as log:
        done = take_snapshots(log, stream, timeout_s=limit_s)
    waits = f"under way still after {limit_s:g} s; see: headrace region status"
    lines = [f"segment {each.segment}: {each.outcome or waits}" for each in done.snapshots]
    options.show(taken_shape(done), *map(escape, lines))
    return 0 if done.complete else EXIT_FAILED


@app.command(name="list")
def list_(
    stream: StreamName,
    /,
    *,
    limit: Annotated[int, Parameter(help="The newest of each segment.")] = 10,
    options: Options = NONE,
) -> None:
    """The snapshots that this region's log holds, and which groups have passed them.

    Example: `headrace region snapshot list orders --limit 3`
    """
    from headrace.regions.taking import list_snapshots

    with options.open() as log:
        found = list_snapshots(log, stream, limit)
    rows = [
        (
            each.segment,
            datetime.fromtimestamp(each.taken_us / 1e6, UTC).isoformat(" ", "seconds"),
            each.local,
            ", ".join(f"{region} {at}" for region, at in each.positions.items()),
            ", ".join(each.missing),
            ", ".join(map(named, each.passed_by)),
        )
        for each in found
    ]
    headings = (">segment", "taken", ">here", "there", "without", "passed by")
    shown = table(headings, rows) if rows else "no snapshot stands in the log"
    shapes = [listed_shape(each, tuple(map(named, each.passed_by))) for each in found]
    options.show(shapes, shown)


@app.command
def force(stream: StreamName, /, *, dry_run: DryRun = False, options: Options = NONE) -> None:
    """Go on with a snapshot without the regions that have not answered, and tell what is at risk.

    * `headrace region snapshot force orders --dry-run`
    * `headrace region snapshot force orders`
    """
    from headrace.regions.forcing import force_snapshots

    with options.open() as log:
        done = force_snapshots(log, stream, dry_run=dry_run)
    lines = []
    for each in done.snapshots:
        said = f"waits for {', '.join(each.missing)}" if dry_run else "is complete without "
        said += "" if dry_run else ", ".join(each.missing)
        lines.append(f"segment {each.segment}: the snapshot {each.refused or said}")
        lines += [f"they come again, nobody can say they were met: {risk}" for risk in each.at_risk]
    options.show(forced_shape(done), *map(escape, lines or ["no snapshot is under way"]))
