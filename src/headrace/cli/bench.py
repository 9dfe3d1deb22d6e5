"""``headrace bench``: how quick this machine and its disk (or the server) are with Headrace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table

from headrace.cli.done_shapes import BenchLine
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import progress, table, until_ctrl_c
from headrace.cli.policies import size_text
from headrace.cli.values import size_bytes, some_seconds

VALUE_MAX = 1 << 20
SECONDS_MAX = 600.0

app = App(name="bench", help="How quick this machine is, in a few seconds.", help_epilogue="")


@app.default
def bench(
    *,
    seconds: Annotated[float, Parameter(converter=some_seconds)] = 2.0,
    size: str = "100B",
    options: Options = NONE,
) -> None:
    """Measure publishing, reading and consuming on this machine.

    A folder catalog is not touched: a new one is made beside it, on the same disk, and removed
    afterwards.  On PostgreSQL a stream is made in the catalog for it, and removed.

    * `headrace bench`
    * `headrace bench --size 1kB --seconds 10s --catalog postgresql://localhost/app`

    Parameters
    ----------
    seconds
        How long each part is measured: 2s.
    size
        Of the value of an event: 100B, 4kB.
    """
    if not 0.05 <= seconds <= SECONDS_MAX:
        raise UsageError(f"--seconds {seconds:g}: give 0.05s to 10m")
    value_bytes = size_bytes(size, "--size")
    if value_bytes > VALUE_MAX:
        raise UsageError(f"--size {size}: give up to 1MiB")
    from headrace.cli.measuring import measure  # loads Arrow, which --help does without

    until_ctrl_c()
    found: list[BenchLine] = []
    with progress(quiet=options.json) as bar:
        task = bar.add_task("measuring", total=None)

        def note(line: BenchLine) -> None:
            found.append(line)
            bar.update(task, description=line.what)

        asyncio.run(measure(options, value_bytes, seconds, note))
    options.show(found, _table(found))


def _table(found: Sequence[BenchLine]) -> Table:
    rows = (
        (
            each.what,
            "" if each.events_per_s is None else f"{each.events_per_s:,.0f}",
            "" if each.bytes_per_s is None else size_text(int(each.bytes_per_s)),
            "" if each.p50_ms is None else f"{each.p50_ms:,.2f}",
            "" if each.p99_ms is None else f"{each.p99_ms:,.2f}",
        )
        for each in found
    )
    return table(("", ">events/s", ">values/s", ">ms (half)", ">ms (99 of 100)"), rows)
