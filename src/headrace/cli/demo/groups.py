"""The act with an elastic group: members that die, join and step down, and nothing goes wrong.

Each plane's flights are strictly ordered work.  Three members, each with a hot standby, share
them; the Spark partition job fills the group's work queue.  What a member does with a batch (it
notes the flights as landed) commits in one transaction with the ack, so the notes prove it: none
is missing, none is there twice, and every plane's flights are in order.

:func:`main` is an instance of a member, in a process of its own; it is told what to do in a line of
JSON on its standard input, and leaves when that ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

import headrace
from headrace.cli.demo.acts import APPEND_ROWS, Stage
from headrace.cli.demo.data import running_numbers
from headrace.cli.demo.spark import session_of
from headrace.cli.failures import CheckFailedError
from headrace.cli.options import progress
from headrace.errors import Fenced
from headrace.groups.partitioned.names import GroupName

SOURCE, OUTPUT, GROUP = "planes", "landed", "crew"
MEMBERS, LATECOMER = ("anna", "bert", "cleo"), "dora"
PARTITIONS = 12
BUFFERED_MAX = 60_000
BATCH_EVENTS = 1_000
LEASE_MS = 1_000
PATIENCE_S = 120.0
LOOK_S = 0.02


class Orders(msgspec.Struct, frozen=True):
    """What an instance is told."""

    place: str
    store: str | None
    store_options: Mapping[str, str]
    member: str
    instance: str


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
    async with _partition_job(stage), _Crew(stage) as crew:
        for name in MEMBERS:
            await crew.start(name)
            await crew.start(name)
        await _misfortunes(stage, crew, planes.num_rows)
    await _prove(stage, planes)


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
    job = PartitionJob(
        stage.place,
        stage.options.store,
        GroupName(SOURCE, GROUP),
        store_options=stage.options.store_options,
    )
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


async def _misfortunes(stage: Stage, crew: _Crew, total: int) -> None:
    """One is killed, one is added, one steps down, at a quarter of the work each."""
    hr = stage.hr
    columns = (TextColumn("  landing"), BarColumn(), MofNCompleteColumn())
    deadline = time.monotonic() + PATIENCE_S
    plan = [_kill, _add, _step_down]
    began = time.perf_counter()
    with progress(*columns, quiet=stage.quiet) as bar:
        task = bar.add_task("", total=total)
        while (landed := await _landed(hr)) < total:
            bar.update(task, completed=landed)
            if plan and landed > total * (4 - len(plan)) / 5:
                await plan.pop(0)(stage, crew)
            crew.check()
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(LOOK_S)
    took_s = time.perf_counter() - began
    stage.facts["group_s"] = round(took_s, 3)
    stage.say(f"  {landed:,} flights landed in {took_s:.1f} s")
    for act in plan:  # a short tour is over before its time
        await act(stage, crew)


async def _kill(stage: Stage, crew: _Crew) -> None:
    name = crew.kill(await _active(stage.hr, MEMBERS[0]))
    stage.say(f"  {name} is killed (SIGKILL) at work; its standby takes over when the lease is out")


async def _add(stage: Stage, crew: _Crew) -> None:
    await crew.start(LATECOMER)
    await stage.hr.groups.add_members(SOURCE, GROUP, [LATECOMER])
    partitions = await stage.hr.groups.partitions(SOURCE, GROUP, LATECOMER)
    stage.say(f"  {LATECOMER} joins and is given {len(partitions)} partitions; no other moves")


async def _step_down(stage: Stage, crew: _Crew) -> None:
    await _active(stage.hr, MEMBERS[1])
    name = crew.name_of(await stage.hr.groups.step_down(SOURCE, GROUP, MEMBERS[1]))
    stage.say(f"  {name} steps down; its standby takes over at once")


async def _active(hr: headrace.Headrace, member: str) -> str:
    """The instance that holds the pin of a member."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = await hr.groups.active(SOURCE, GROUP)
        for each in status.members:
            if each.member == member and each.instance:
                return str(each.instance)
        await asyncio.sleep(LOOK_S)
    raise TimeoutError(f"no instance of {member} became active")


async def _landed(hr: headrace.Headrace) -> int:
    return sum(segment.head for segment in (await hr.stream(OUTPUT)).segments)


async def _prove(stage: Stage, planes: pa.Table) -> None:
    batches = [batch async for batch in stage.hr.read(OUTPUT)]
    landed = pa.Table.from_batches(batches)
    tails = landed["key"].combine_chunks()
    codes = np.asarray(tails.dictionary_encode().indices)
    given = _numbers(landed)
    expected = set(zip(planes["key"].to_pylist(), _numbers(planes).tolist(), strict=True))
    got = list(zip(tails.to_pylist(), given.tolist(), strict=True))
    workers = pc.value_counts(pc.cast(landed["value"], pa.string())).to_pylist()
    for entry in sorted(workers, key=lambda entry: entry["values"]):
        stage.say(f"    {entry['values']:<12} {entry['counts']:>9,} flights")
    stage.facts["landed"] = {entry["values"]: entry["counts"] for entry in workers}
    stage.check(f"none of {len(expected):,} flights is lost", expected <= set(got))
    stage.check("none was processed twice", len(set(got)) == len(got))
    stage.check(
        f"the flights of each of {len(set(codes.tolist())):,} tail numbers were processed in order",
        bool(np.array_equal(_ranks(given, codes), running_numbers(codes))),
    )


def _numbers(events: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The header ``n`` of each event: its number among the flights of its plane."""
    entries = events["headers"].combine_chunks().flatten()
    return np.asarray(entries.field("value").cast(pa.string()).cast(pa.int64()))


def _ranks(
    given: np.ndarray[Any, np.dtype[np.int64]], codes: np.ndarray[Any, np.dtype[np.int32]]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """For each event the place of its number among those of its plane."""
    order = np.lexsort((given, codes))
    found = np.empty(len(given), dtype=np.int64)
    found[order] = running_numbers(codes[order])
    return found


class _Crew:
    """The processes of the act."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._killed: set[str] = set()

    async def __aenter__(self) -> _Crew:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def start(self, member: str) -> None:
        """Another instance of a member, in a process of its own."""
        instance = f"{member}-{1 + sum(name.startswith(member) for name in self._running)}"
        stage = self._stage
        orders = Orders(
            place=stage.place,
            store=stage.options.store,
            store_options=stage.options.store_options,
            member=member,
            instance=instance,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            f"from {__name__} import main; main()",
            stdin=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        self._running[instance] = process

    def name_of(self, instance: str) -> str:
        """Who an instance is; its own name begins with the id of its process."""
        pid = instance.split("-")[0]
        return next(name for name, each in self._running.items() if str(each.pid) == pid)

    def kill(self, instance: str) -> str:
        name = self.name_of(instance)
        self._killed.add(name)
        self._running[name].send_signal(signal.SIGKILL)
        return name

    def check(self) -> None:
        """Whoever was not killed has to be alive."""
        for name, process in self._running.items():
            if process.returncode is not None and name not in self._killed:
                raise CheckFailedError(f"{name} ended with {process.returncode}")


# --- an instance ---------------------------------------------------------------------------


async def work(orders: Orders) -> None:
    """Note every batch as landed, in one transaction with its ack."""
    opened = headrace.open(
        orders.place,
        store=orders.store,
        store_options=orders.store_options,
        housekeeping=False,
    )
    async with (
        opened as hr,
        hr.join(
            SOURCE,
            GROUP,
            member=orders.member,
            pin_ttl_ms=LEASE_MS,
            batch_events_max=BATCH_EVENTS,
        ) as member,
    ):
        async for batch in member.batches():
            try:
                async with batch.transaction() as tx:
                    tx.append(OUTPUT, _notes(batch.data, orders.instance))
            except Fenced:
                continue  # another instance has the partition: this work does not count


def _notes(flights: pa.RecordBatch, instance: str) -> pa.RecordBatch:
    tails = flights.column("key")
    return pa.record_batch(
        {
            "subject": pc.binary_join_element_wise(OUTPUT, tails, "."),
            "key": tails,
            "value": pa.array([instance.encode()] * flights.num_rows, pa.binary()),
            "headers": flights.column("headers"),
        }
    )


def main() -> None:
    """An instance, until standard input ends."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)

    def leave_with_stdin() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=leave_with_stdin, daemon=True).start()
    asyncio.run(work(orders))
