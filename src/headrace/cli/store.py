"""``headrace store``: the files of large batches."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from rich.progress import SpinnerColumn, TextColumn

from headrace.cli.done_shapes import SweptFiles
from headrace.cli.options import NONE, Options
from headrace.cli.output import progress
from headrace.cli.policies import size_text
from headrace.cli.values import duration_s

app = App(name="store", help="Look after the files of large batches.", help_epilogue="")


@app.command
def sweep(
    *,
    older_than: str = "1h",
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Remove files that nothing names any more; never data that is referenced.

    Example: `headrace store sweep --older-than 2h --dry-run`

    Parameters
    ----------
    older_than
        Leave younger files alone: they may belong to an append under way.
    dry_run
        Only count them.
    """
    age_s = duration_s(older_than, "--older-than")
    with (
        options.open() as log,
        progress(
            SpinnerColumn(), TextColumn("{task.completed:,.0f} files looked at"), quiet=options.json
        ) as bar,
    ):
        task = bar.add_task("", total=None)
        swept = log.sweep(
            older_than_s=age_s,
            dry_run=dry_run,
            progress=lambda files: bar.update(task, completed=files),
        )
    verb = "would remove" if dry_run else "removed"
    options.show(
        SweptFiles(
            dry_run=swept.dry_run,
            files=swept.files,
            orphans=swept.orphans,
            orphan_bytes=swept.orphan_bytes,
            buried=swept.buried,
        ),
        f"looked at {swept.files:,} files; {verb} {swept.orphans:,} orphans "
        f"({size_text(swept.orphan_bytes)}) and {swept.buried:,} files of trimmed events",
    )
