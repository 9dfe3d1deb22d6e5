"""``headrace demo``: a tour in acts, on real data, that checks what it shows."""

from __future__ import annotations

import asyncio
import shlex
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from headrace.cli.demo import acts, epochs, groups, readers, shared, spark
from headrace.cli.demo.acts import STREAM, Act, Stage
from headrace.cli.demo.data import load_flights
from headrace.cli.failures import CheckFailedError, UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import console, print_json

app = App(name="demo", help_epilogue="")

ACTS: tuple[Act, ...] = (
    ("A year of flights through Spark; split a segment on the way", spark.ingest),
    ("Events per segment", acts.look_at_segments),
    ("Read everything back", acts.check_order),
    ("Replay a day", acts.replay_a_day),
    ("Filter by subject", acts.filter_subjects),
    ("Compact, and read with Spark", spark.compact_and_read),
    ("An elastic group: one killed, one added, one stepped down", groups.consume_in_a_group),
    ("A shared group: the process that leads it is killed", shared.lose_the_leader),
    ("A reader group: a split, a checkpoint, a kill, and back", readers.read_and_go_back),
    ("Flights by day as epochs: the publisher is killed in a day", epochs.days_as_epochs),
)


@app.default
def demo(
    *,
    flights: Annotated[
        int | None, Parameter(help="Only this many flights, from the first.")
    ] = None,
    with_spark: Annotated[
        bool, Parameter(name="--spark", help="Without it the flights are published from here.")
    ] = True,
    options: Options = NONE,
) -> None:
    """The tour: a year of flights out of New York through a log, with a split on the way.

    Every act checks what it shows; the exit status is 1 if a check fails.  Without --catalog it
    runs in a temporary folder and leaves nothing behind.

    Example: `headrace demo`, or `headrace demo --catalog ./demo` to look around afterwards
    """
    if flights is not None and flights < 1:
        raise UsageError(f"--flights {flights}: the tour needs one flight at least")
    began = time.perf_counter()
    out = console()
    if not options.json:
        out.print("[dim]loading a year of flights out of New York (2013) …[/dim]")
    table = load_flights(flights)
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as name:
        folder = Path(name)
        place = options.catalog or str(folder / "data")
        stage = Stage(table, out, options=replace(options, catalog=place), folder=folder)
        with spark.spark_of(stage, folder, wanted=with_spark):
            asyncio.run(_perform(stage, ACTS))
    took_s = time.perf_counter() - began
    if options.json:
        print_json({"took_s": round(took_s, 3), "facts": stage.facts, "failed": stage.failed})
    else:
        stage.say(
            f"\n{stage.checks - len(stage.failed)} of {stage.checks} checks held, "
            f"{took_s:.1f} s in all"
        )
        stage.say(afterwards(options.catalog))
    if stage.failed:
        raise CheckFailedError(f"the tour found: {'; '.join(stage.failed)}")


def afterwards(catalog: str | None) -> str:
    """What to type next: the last lines of the tour."""
    console = "see the same flights in the console:"
    if catalog is None:
        return f"{console} headrace demo --catalog ./demo && headrace --catalog ./demo up"
    here = f"headrace --catalog {shlex.quote(catalog)}"
    return f"look around: {here} stream info flights\n{console} {here} up"


async def _perform(stage: Stage, program: tuple[Act, ...]) -> None:
    async with stage.options.open_async(create=True, housekeeping=True) as hr:
        if any(stream.name == STREAM for stream in await hr.streams()):
            has = f"{stage.options.place} has a stream {STREAM!r} already"
            raise UsageError(f"{has}; give the tour another place")
        stage.hr = hr
        for number, (title, act) in enumerate(program, 1):
            stage.say(f"\n[bold]{number}. {title}[/bold]")
            await act(stage)
