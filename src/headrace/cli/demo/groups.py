"""The act with an elastic group: members that die, join and step down, and nothing goes wrong.

Each plane's flights are strictly ordered work.  Three members, each with a hot standby, share
them; the Spark partition job fills the group's work queue.  What a member does with a batch (it
notes the flights as landed) commits in one transaction with the ack, so the notes prove it: none
is missing, none is there twice, and every plane's flights are in order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa
import pyarrow.compute as pc

import headrace
from headrace.cli.demo.acts import APPEND_ROWS, Stage
from headrace.cli.demo.crew import LOOK_S, PATIENCE_S, Crew, Orders, serve
from headrace.cli.demo.notes import prove, take_notes
from headrace.cli.demo.spark import session_of
from headrace.groups.partitioned.names import GroupName

SOURCE, OUTPUT, GROUP = "planes", "landed", "crew"
MEMBERS, LATECOMER = ("anna", "bert", "cleo"), "dora"
PARTITIONS = 12
BUFFERED_MAX = 60_000
BATCH_EVENTS = 2_000
LEASE_MS = 1_000


# --- the act -------------------------------------------------------------------------------


async def consume_in_a_group(stage: Stage) -> None:
    """An elastic group over the flights, keyed by tail number."""
    hr = stage.hr
    planes = _planes(stage.flights)
    await hr.create_stream(SOURCE, subjects=[f"{SOURCE}.>"], segments=2)
    await hr.create_stream(OUTPUT, subjects=[f"{OUTPUT}.>"], segments=2)
    for at in range(0, planes.num_rows, APPEND_ROWS):
        await hr.append(SOURCE, planes.slice(at, APPEND_ROWS))
    await hr.groups.create_elastic(
        SOURCE,
        GROUP,
        max_members=PARTITIONS,
        filter=f"{SOURCE}.*.*",
        wildcards=[1],
        max_buffered=BUFFERED_MAX,
        members=MEMBERS,
        distribution="sticky",
    )
    stage.say(
        f"  {planes.num_rows:,} flights in {PARTITIONS} partitions by tail number; members "
        f"{', '.join(MEMBERS)}, each with a standby"
    )
    async with _partition_job(stage), Crew(stage, __name__) as crew:
        for name in MEMBERS:
            await crew.start(name)
            await crew.start(name)
        await _misfortunes(stage, crew, planes.num_rows)
    stage.facts["landed"] = await prove(stage, OUTPUT, planes, "tail numbers")


def _planes(flights: pa.Table) -> pa.Table:
    """The flights whose plane is known, with its tail number in the subject."""
    known = flights.filter(pc.is_valid(flights["key"]))
    origin = pc.utf8_slice_codeunits(known["subject"], len("flights."), len("flights.JFK"))
    subjects = pc.binary_join_element_wise(SOURCE, known["key"], origin, ".")
    return known.set_column(known.schema.get_field_index("subject"), "subject", subjects)


@asynccontextmanager
async def _partition_job(stage: Stage) -> AsyncIterator[None]:
    """The job that fills the work queue, on Spark if it is there, in a thread of its own."""
    from headrace.spark.partition import PartitionJob

    spark = await session_of(stage)
    log, group = stage.options, GroupName(SOURCE, GROUP)
    job = PartitionJob(log.place, log.store, group, store_options=log.store_options)
    if spark is not None:
        job.start(spark)
    where = "a Spark job" if spark is not None else "this process, for want of Spark,"
    stage.say(f"  {where} fills the work queue, {BUFFERED_MAX:,} events at most")
    stop = threading.Event()
    filling = asyncio.create_task(asyncio.to_thread(job.run, stop))
    try:
        yield
    finally:
        stop.set()
        await filling


async def _misfortunes(stage: Stage, crew: Crew, total: int) -> None:
    """One is killed, one is added, one steps down, at a quarter of the work each."""
    plan = [_kill, _add, _step_down]
    began = time.perf_counter()
    async for landed in crew.watch("landing", OUTPUT, total):
        if landed >= total:
            break
        if plan and landed > total * (4 - len(plan)) / 5:
            await plan.pop(0)(stage, crew)
    took_s = time.perf_counter() - began
    stage.facts["group_s"] = round(took_s, 3)
    stage.say(f"  {total:,} flights landed in {took_s:.1f} s")
    for act in plan:  # a short tour is over before its time
        await act(stage, crew)


async def _kill(stage: Stage, crew: Crew) -> None:
    name = crew.name_of(await _active(stage.hr, MEMBERS[0]))
    crew.kill(name)
    stage.say(f"  {name} is killed (SIGKILL) at work; its standby takes over when the lease is out")


async def _add(stage: Stage, crew: Crew) -> None:
    await crew.start(LATECOMER)
    await stage.hr.groups.add_members(SOURCE, GROUP, [LATECOMER])
    partitions = await stage.hr.groups.partitions(SOURCE, GROUP, LATECOMER)
    stage.say(f"  {LATECOMER} joins and is given {len(partitions)} partitions; no other moves")


async def _step_down(stage: Stage, crew: Crew) -> None:
    await _active(stage.hr, MEMBERS[1])
    instance = await stage.hr.groups.step_down(SOURCE, GROUP, MEMBERS[1])
    name = crew.name_of(instance.split("-")[0])
    stage.say(f"  {name} steps down; its standby takes over at once")


async def _active(hr: headrace.Headrace, member: str) -> str:
    """The process of the instance that holds the pin of a member."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = await hr.groups.active(SOURCE, GROUP)
        for each in status.members:
            if each.member == member and each.instance:
                return str(each.instance).split("-")[0]
        await asyncio.sleep(LOOK_S)
    raise TimeoutError(f"no instance of {member} became active")


# --- an instance ---------------------------------------------------------------------------


async def work(orders: Orders) -> None:
    """Note every batch as landed, in one transaction with its ack."""
    async with (
        orders.options.open_async() as hr,
        hr.join(
            SOURCE,
            GROUP,
            member=orders.member,
            pin_ttl_ms=LEASE_MS,
            batch_events_max=BATCH_EVENTS,
        ) as member,
    ):
        await take_notes(member.batches(), OUTPUT, orders.instance)


def main() -> None:
    """An instance, in a process of its own."""
    # The tour fills the queue by itself; that no pipeline does is no news here.
    logging.getLogger("headrace.groups.partitioned.runtime.filling").setLevel(logging.ERROR)
    serve(work)
