"""``headrace region promote`` and ``remove``: who writes a stream, and who is in it no longer."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from headrace.cli import region_shapes as shapes
from headrace.cli.options import NONE, Options
from headrace.cli.region_looks import StreamName, near
from headrace.cli.values import duration_s

DryRun = Annotated[bool, Parameter(negative="", help="Only tell what would happen.")]


def promote(
    stream: StreamName,
    /,
    *,
    timeout: Annotated[str, Parameter(help="How long it may take.")] = "30s",
    force: Annotated[
        bool, Parameter(negative="", help="At once, although the writer is gone or has more.")
    ] = False,
    dry_run: DryRun = False,
    options: Options = NONE,
) -> None:
    """Write a stream in this region from now on, of those that one region writes.

    The region that writes it stops, and this one begins when it has everything.

    * `headrace region promote orders --catalog ./us`
    * `headrace region promote orders --dry-run --catalog ./us`
    """
    from headrace.regions import promoting

    limit_s = duration_s(timeout, "--timeout")
    done = near(
        options,
        lambda log, others: promoting.promote(
            log, stream, others, timeout_s=limit_s, force=force, dry_run=dry_run
        ),
    )
    lag = "what it has more is not known" if done.lag_events is None else f"lag {done.lag_events}"
    said = "can be written" if dry_run else "is written"
    shape = shapes.PromotedStream(
        stream=done.stream,
        source=done.source,
        target=done.target,
        lag_events=done.lag_events,
        took_ms=round(done.took_s * 1000),
        forced=done.forced,
        dry_run=done.dry_run,
    )
    options.show(
        shape,
        f"stream [bold]{escape(stream)}[/bold] {said} in {done.target} instead of {done.source}; "
        f"{lag}",
    )


def remove(
    region: Annotated[str, Parameter(help="The region that leaves.")],
    /,
    *,
    force: Annotated[
        bool, Parameter(negative="", help="Although something of it is still needed.")
    ] = False,
    dry_run: DryRun = False,
    options: Options = NONE,
) -> None:
    """Take a region out of all streams that it shares with this one; its events stay here.

    Example: `headrace region remove eu --dry-run --catalog ./us`
    """
    from headrace.regions import leaving

    done = near(
        options,
        lambda log, others: leaving.remove(log, region, others, force=force, dry_run=dry_run),
    )
    rest = f"; run it in {', '.join(done.untold)} as well" if done.untold else ""
    verb = "would be" if dry_run else "is"
    shape = shapes.RemovedRegion(
        region=region,
        streams=done.streams,
        told=done.told,
        untold=done.untold,
        dry_run=done.dry_run,
    )
    options.show(
        shape, f"{escape(region)} {verb} out of {escape(', '.join(done.streams))}{escape(rest)}"
    )
