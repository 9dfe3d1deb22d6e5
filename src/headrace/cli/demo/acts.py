"""The acts of the tour.  Each shows one thing the log does, and checks that it did it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from headrace.api.client import Headrace
from headrace.cli.demo.data import running_numbers
from headrace.cli.options import Options
from headrace.cli.output import progress, table
from headrace.cli.screens import segments_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "flights"
SEGMENTS = 4
APPEND_ROWS = 4096
APPENDS_MIN = 12
FOLLOW_TIMEOUT_S = 60
DAY = datetime(2013, 7, 4, tzinfo=UTC)


class Stage:
    """What the acts share: the flights, the log, Spark, and how to speak of them."""

    def __init__(
        self, flights: pa.Table, console: Console, *, options: Options, folder: Path
    ) -> None:
        self.flights = flights
        self.quiet = options.json
        self.options = options
        self.folder = folder
        """For files that are gone when the tour is over."""
        self.starting: Future[tuple[SparkSession, bool]] | None = None
        self.starting_told = False
        self.spark_thread: Executor | None = None
        self.without_spark = ""
        """Why there is no Spark, when there is none."""
        self.facts: dict[str, Any] = {}
        self.failed: list[str] = []
        self.checks = 0
        self._console = console
        self._hr: Headrace | None = None

    @property
    def hr(self) -> Headrace:
        assert self._hr is not None
        return self._hr

    @hr.setter
    def hr(self, opened: Headrace) -> None:
        self._hr = opened

    def say(self, what: str | Table) -> None:
        if not self.quiet:
            self._console.print(what)

    def progress(self, doing: str) -> Progress:
        """A bar for an act; what is said meanwhile stands above it."""
        columns = (TextColumn(f"  {doing}"), BarColumn(), MofNCompleteColumn())
        console = self._console if self._console.is_terminal else None
        return progress(*columns, quiet=self.quiet, console=console)

    def check(self, what: str, held: bool) -> None:
        """Show whether something holds that must."""
        self.checks += 1
        if not held:
            self.failed.append(f"not so: {what}")
        self.say(f"  [green]✓[/green] {what}" if held else f"  [red]✗ not so: {what}[/red]")


Act = tuple[str, Callable[[Stage], Awaitable[None]]]


async def publish_and_split(stage: Stage) -> None:
    """Bulk appends, while a segment is split and another task reads along."""
    flights = stage.flights
    ingestion = await Ingestion.begin(stage)
    with stage.progress("publishing") as bar:
        task = bar.add_task("", total=flights.num_rows)
        appender = stage.hr.appender(STREAM)
        step = max(1, min(APPEND_ROWS, flights.num_rows // APPENDS_MIN))
        for at in range(0, flights.num_rows, step):
            if 3 * (at + step) >= flights.num_rows:
                ingestion.third.set()
            if at + step >= flights.num_rows:
                # The last part waits for the split, so that something is sure to come after it.
                await asyncio.wait([ingestion.splitter])
            part = flights.slice(at, step)
            await appender.append(part)
            bar.update(task, advance=part.num_rows)
        await appender.close()
    took = ingestion.stopped()
    sealed, opened, at_split = await ingestion.splitter
    stage.say(f"  {flights.num_rows:,} events published durably in {took}")
    stage.say(
        f"  segment {sealed} was split into {' and '.join(map(str, opened))} after "
        f"{at_split:,} events, while publishing went on"
    )
    await ingestion.check()
    stage.check("publishing went on after the split", at_split < flights.num_rows)


class Ingestion:
    """The flights on their way in: a task follows them, another splits a segment at a third."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._follower = asyncio.create_task(follow(stage.hr, stage.flights.num_rows))
        self.third = asyncio.Event()
        self.splitter = asyncio.create_task(split_fullest(stage.hr, self.third))
        self._began = time.perf_counter()

    @classmethod
    async def begin(cls, stage: Stage) -> Ingestion:
        await stage.hr.create_stream(STREAM, subjects=["flights.>"], segments=SEGMENTS)
        return cls(stage)

    def stopped(self) -> str:
        """How long it took, and how much that is a second."""
        took_s, count = time.perf_counter() - self._began, self._stage.flights.num_rows
        self._stage.facts |= {"published": count, "publish_s": round(took_s, 3)}
        return f"{took_s:.1f} s: {count / took_s:,.0f} a second"

    async def check(self) -> None:
        followed = await asyncio.wait_for(self._follower, FOLLOW_TIMEOUT_S)
        all_came = followed == self._stage.flights.num_rows
        self._stage.check(f"a reader that followed live got all {followed:,}", all_came)


async def split_fullest(hr: Headrace, due: asyncio.Event) -> tuple[int, tuple[int, ...], int]:
    """Split the fullest segment; tells how many events there were by then."""
    await due.wait()
    stream = await hr.stream(STREAM)
    fullest = max(stream.open_segments, key=lambda segment: segment.head)
    scaled = await hr.split(STREAM, fullest.number)
    after = await hr.stream(STREAM)
    heads = [s.head for s in after.segments if s.number not in scaled.opened]
    return fullest.number, scaled.opened, sum(heads)


async def follow(hr: Headrace, count: int) -> int:
    """Read along until ``count`` events came; returns how many came."""
    seen = 0
    async with hr.tail(STREAM, start="earliest") as reading:
        async for batch in reading:
            seen += batch.num_rows
            if seen >= count:
                break
    return seen


async def look_at_segments(stage: Stage) -> None:
    """The segment graph after the split."""
    stream = await stage.hr.stream(STREAM)
    stage.say(segments_table(stream))
    events = sum(segment.events for segment in stream.segments)
    stage.facts["segments"] = {str(s.number): s.events for s in stream.segments}
    stage.check("the segments hold every event once", events == stage.flights.num_rows)


async def check_order(stage: Stage) -> None:
    """Everything read back: nothing missing, nothing twice, each plane's flights in order."""
    began = time.perf_counter()
    batches = [
        batch.select(["segment", "offset", "timestamp", "subject", "key", "headers"])
        async for batch in stage.hr.read(STREAM)
    ]
    took_s = time.perf_counter() - began
    table = pa.Table.from_batches(batches)
    stage.facts |= {"read": table.num_rows, "read_s": round(took_s, 3)}
    stage.say(
        f"  {table.num_rows:,} events read back in {took_s:.1f} s: "
        f"{table.num_rows / took_s:,.0f} a second"
    )
    keys = pc.coalesce(table["key"], table["subject"]).combine_chunks()
    codes = np.asarray(keys.dictionary_encode().indices)
    entries = table["headers"].combine_chunks().flatten()
    given = np.asarray(entries.field("value").cast(pa.string()).cast(pa.int64()))
    stamps = np.asarray(table["timestamp"].cast(pa.int64()))
    by_key = np.argsort(codes, kind="stable")
    same_key = codes[by_key][1:] == codes[by_key][:-1]
    planes = pc.count_distinct(table["key"]).as_py()
    stage.facts["planes"] = planes
    stage.check("as many read as published", table.num_rows == stage.flights.num_rows)
    stage.check(
        f"the flights of each of {planes:,} planes come in order, none missing, none twice",
        bool(np.array_equal(given, running_numbers(codes))),
    )
    stage.check(
        "time never goes back for a plane, through the split too",
        not bool(np.any(same_key & (np.diff(stamps[by_key]) < 0))),
    )
    stage.check("offsets have no gaps", _dense(table))


def _dense(table: pa.Table) -> bool:
    segments = np.asarray(table["segment"])
    offsets = np.asarray(table["offset"])
    return bool(np.array_equal(offsets, running_numbers(segments)))


async def replay_a_day(stage: Stage) -> None:
    """One day out of the year, found by time."""
    end = DAY + timedelta(days=1)
    stamps = stage.flights["timestamp"]
    wanted = pc.and_(
        pc.greater_equal(stamps, pa.scalar(DAY, stamps.type)),
        pc.less(stamps, pa.scalar(end, stamps.type)),
    )
    expected = pc.sum(wanted).as_py() or 0
    began = time.perf_counter()
    first_s = 0.0
    batches = []
    async for batch in stage.hr.read(STREAM, start=DAY, until=end):
        first_s = first_s or time.perf_counter() - began
        batches.append(batch.select(["subject", "timestamp"]))
    took_s = time.perf_counter() - began
    count = sum(batch.num_rows for batch in batches)
    stage.facts["replayed"] = count
    stage.say(
        f"  {DAY:%d %B %Y}: {count:,} flights in {took_s * 1e3:.0f} ms, the first after "
        f"{first_s * 1e3:.0f} ms"
    )
    if batches:
        stage.say(_busiest(pa.Table.from_batches(batches)))
    stage.check("the day is whole, and only that day", count == expected)


def _busiest(day: pa.Table) -> Table:
    counts = pc.value_counts(pc.replace_substring_regex(day["subject"], r"\.[^.]+$", ""))
    counted = sorted(counts.to_pylist(), key=lambda entry: -entry["counts"])[:3]
    rows = ((f"  {entry['values']}", entry["counts"]) for entry in counted)
    return table(("  busiest routes of the day", ">flights"), rows)


async def filter_subjects(stage: Stage) -> None:
    """Only some subjects, by a filter."""
    pattern = "flights.JFK.*.B6"
    began = time.perf_counter()
    count = 0
    async for batch in stage.hr.read(STREAM, subject=pattern):
        count += batch.num_rows
    took_s = time.perf_counter() - began
    matching = pc.match_substring_regex(stage.flights["subject"], r"^flights\.JFK\.[^.]+\.B6$")
    stage.facts["filtered"] = count
    stage.say(f"  {pattern}: {count:,} flights in {took_s:.2f} s")
    stage.check("the filter lets exactly those through", count == (pc.sum(matching).as_py() or 0))
