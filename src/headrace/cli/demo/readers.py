"""The act with a reader group: two readers and a Spark query, nobody assigns and nobody leads.

The readers stop half-way, until a checkpoint is asked for.  Meanwhile the query joins and a segment
is split.  After the checkpoint one of the readers is killed, and the others finish its work.  Then
the group goes back to the checkpoint, and exactly what was not acked at that time is read again.
What each of them notes of a flight commits in one transaction with the ack: the notes are the
proof.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.markup import escape

from headrace.cli.demo.acts import STREAM, Stage
from headrace.cli.demo.crew import LOOK_S, PATIENCE_S, Crew, Orders, serve
from headrace.cli.demo.notes import count, flights_of, prove, take_notes
from headrace.cli.demo.spark import in_spark, session_of
from headrace.cli.failures import CheckFailedError
from headrace.groups.readers.group import ReaderGroup
from headrace.groups.readers.info import ReaderGroupInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

GROUP, OUTPUT, CHECKPOINT = "gate", "boarded", "noon"
READERS, UNLUCKY, LATER, QUERY = ("anna", "bert"), "anna", "carl", "spark"
LEASE_TTL_MS = 3000
"""Shorter than the default, so that nobody has to watch it run out."""
BATCHES = 100


async def read_and_go_back(stage: Stage) -> None:
    """A reader group over the flights, to its end, and the rest once more from a checkpoint."""
    hr, total = stage.hr, stage.flights.num_rows
    await hr.create_stream(OUTPUT, subjects=[f"{OUTPUT}.>"], segments=2)
    group = await hr.reader_groups.create(GROUP, streams=[STREAM])
    async with Crew(stage, __name__) as crew:
        query = await _begin(stage, crew, group)
        try:
            async for done in crew.watch("boarding the first half", OUTPUT, total // 2):
                if 2 * done >= total:
                    break
            await _half_way(stage, group, total)
            crew.kill(UNLUCKY)
            stage.say(f"  {UNLUCKY} is killed (SIGKILL); the others read on when its lease is out")
            async for done in crew.watch("boarding", OUTPUT, total):
                if done >= total:
                    break
        finally:
            if query is not None:
                await in_spark(stage, query.stop)
    stage.facts["boarded"] = await prove(stage, OUTPUT, stage.flights, "planes and routes")
    await _once_more(stage, group, total)


async def _begin(stage: Stage, crew: Crew, group: ReaderGroup) -> StreamingQuery | None:
    for name in READERS:
        await crew.start(name, name)
    await _until(group, lambda info: len(info.readers) == len(READERS))
    spark, query = await session_of(stage), None
    if spark is None:
        stage.say(f"  [yellow]without a Spark query:[/yellow] {escape(stage.without_spark)}")
    else:
        query = await _joined(stage, spark, group)
    found = await _until(group, lambda info: all(reader.segments for reader in info.readers))
    shares = ", ".join(f"{reader.reader} {len(reader.segments)}" for reader in found.readers)
    stage.say(f"  segments of [bold]{GROUP}[/bold]: {shares}; nobody assigns, nobody leads")
    return query


async def _joined(stage: Stage, spark: SparkSession, group: ReaderGroup) -> StreamingQuery:
    """The query, once it is a reader of the group."""
    deadline = time.monotonic() + PATIENCE_S
    query = await in_spark(stage, _query, spark, stage)
    while QUERY not in {reader.reader for reader in (await group.info()).readers}:
        if time.monotonic() > deadline:
            raise CheckFailedError(f"the Spark query did not join in {PATIENCE_S:.0f} s")
        # On a machine with too much to do, Spark gives up waiting for its Python processes.
        if not await in_spark(stage, getattr, query, "isActive"):
            query = await in_spark(stage, _query, spark, stage)
        await asyncio.sleep(10 * LOOK_S)
    return query


async def _half_way(stage: Stage, group: ReaderGroup, total: int) -> None:
    """Split a segment under the readers, and take a checkpoint of all of them."""
    opened = (await stage.hr.stream(STREAM)).open_segments
    scaled = await stage.hr.split(STREAM, max(opened, key=lambda each: each.head).number)
    stage.say(f"  a segment is split into {' and '.join(map(str, scaled.opened))} under them")
    began = time.perf_counter()
    await group.checkpoint(CHECKPOINT, timeout_s=PATIENCE_S)
    took_s = time.perf_counter() - began
    done = await count(stage, OUTPUT)
    stage.say(
        f"  checkpoint [bold]{CHECKPOINT}[/bold] in {took_s:.1f} s, at about {done:,} of "
        f"{total:,} flights"
    )


async def _once_more(stage: Stage, group: ReaderGroup, total: int) -> None:
    """Back to the checkpoint: what was acked by then is not read again, and the rest is."""
    await group.reset(CHECKPOINT)
    rest = (await group.lag()).events
    async with Crew(stage, __name__) as crew:
        await crew.start(LATER, LATER)
        async for done in crew.watch("boarding again", OUTPUT, total + rest):
            if done >= total + rest and (await group.lag()).events == 0:
                break
    times = Counter(await flights_of(stage, OUTPUT))
    again = sum(1 for each in times.values() if each == 2)
    stage.facts["boarded_again"] = again
    stage.say(f"  the group went back to {CHECKPOINT}, and {LATER} read {rest:,} flights again")
    stage.check(
        "exactly what was not acked at the checkpoint came again, and nothing else",
        0 < rest < total and again == rest and len(times) == total and done == total + rest,
    )


async def _until(group: ReaderGroup, holds: Callable[[ReaderGroupInfo], bool]) -> ReaderGroupInfo:
    """Look at the group until something holds of it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = await group.info()
        if holds(found):
            return found
        await asyncio.sleep(LOOK_S)
    raise CheckFailedError(f"the readers did not get on in {PATIENCE_S:.0f} s")


def _query(spark: SparkSession, stage: Stage) -> StreamingQuery:
    rows = (
        spark.readStream.format("headrace")
        .options(**stage.options.spark, group=GROUP, reader=QUERY, includeHeaders="true")
        .load()
    )
    notes = rows.selectExpr(
        f"concat('{OUTPUT}.', coalesce(key, subject)) AS subject",
        "coalesce(key, subject) AS key",
        f"cast('{QUERY}' AS binary) AS value",
        "headers",
    )
    return (
        notes.writeStream.format("headrace")
        .options(**stage.options.spark, stream=OUTPUT)
        .option("checkpointLocation", str(stage.folder / "gate-checkpoint"))
        .start()
    )


# --- a reader ------------------------------------------------------------------------------


async def work(orders: Orders) -> None:
    """Note every batch, in one transaction with its ack; half-way wait for the checkpoint."""
    asked = asyncio.Event()
    if orders.member not in READERS:
        asked.set()
    async with orders.options.open_async() as hr:
        group = await hr.reader_groups.get(GROUP)
        total = sum(segment.head for segment in (await hr.stream(STREAM)).segments)

        async def noted() -> None:
            done = sum(segment.head for segment in (await hr.stream(OUTPUT)).segments)
            if 2 * done >= total:
                await asked.wait()

        async with group.reader(
            orders.member,
            on_checkpoint=lambda *_: asked.set(),
            lease_ttl_ms=LEASE_TTL_MS,
            heartbeat_ms=LEASE_TTL_MS // 3,
            batch_events_max=max(1, total // BATCHES),
        ) as reader:
            await take_notes(reader.batches(), OUTPUT, orders.instance, noted)


def main() -> None:
    """A reader, in a process of its own."""
    serve(work)
