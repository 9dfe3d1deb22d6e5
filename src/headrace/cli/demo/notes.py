"""What members of the tour's groups write down, and what it proves.

A member notes every flight that it was given, in one transaction with the ack.  So the notes are
what was processed: a flight that is missing was lost, one that is there twice was processed again
after its ack, and the order of a plane's notes is the order in which its flights were processed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.demo.acts import Stage
from headrace.cli.demo.data import running_numbers
from headrace.errors import Fenced
from headrace.groups.consumer import Batch


async def take_notes(
    batches: AsyncIterator[Batch],
    stream: str,
    worker: str,
    noted: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Note every batch in `stream`, in one transaction with its ack; then await ``noted()``."""
    async for batch in batches:
        try:
            async with batch.transaction() as tx:
                tx.append(stream, notes_of(batch.data, stream, worker))
        except Fenced:
            continue  # somebody else has it now: this work does not count
        if noted is not None:
            await noted()


def notes_of(flights: pa.RecordBatch, stream: str, worker: str) -> pa.RecordBatch:
    """Notes for `stream` that `worker` has processed these flights."""
    keys = pc.coalesce(flights.column("key"), flights.column("subject"))
    return pa.record_batch(
        {
            "subject": pc.binary_join_element_wise(stream, keys, "."),
            "key": keys,
            "value": pa.array([worker.encode()] * flights.num_rows, pa.binary()),
            "headers": flights.column("headers"),
        }
    )


async def count(stage: Stage, stream: str) -> int:
    """How many notes there are by now."""
    return sum(segment.head for segment in (await stage.hr.stream(stream)).segments)


async def flights_of(stage: Stage, stream: str) -> list[tuple[str, int]]:
    """The flights that are noted in `stream`, in its order."""
    noted = pa.Table.from_batches([batch async for batch in stage.hr.read(stream)])
    return list(zip(noted["key"].to_pylist(), _numbers(noted).tolist(), strict=True))


async def prove(stage: Stage, stream: str, flights: pa.Table, keys_are: str) -> dict[str, int]:
    """Compare the notes in `stream` with what there was to do; who did how many."""
    batches = [batch async for batch in stage.hr.read(stream)]
    noted = pa.Table.from_batches(batches)
    keys = noted["key"].combine_chunks()
    codes = np.asarray(keys.dictionary_encode().indices)
    given = _numbers(noted)
    wanted = pc.coalesce(flights["key"], flights["subject"])
    expected = set(zip(wanted.to_pylist(), _numbers(flights).tolist(), strict=True))
    got = list(zip(keys.to_pylist(), given.tolist(), strict=True))
    entries = pc.value_counts(pc.cast(noted["value"], pa.string())).to_pylist()
    workers = {entry["values"]: entry["counts"] for entry in entries}
    for name, flown in sorted(workers.items()):
        stage.say(f"    {name:<12} {flown:>9,} flights")
    stage.check(f"none of {len(expected):,} flights is lost", expected <= set(got))
    stage.check("none was processed twice", len(set(got)) == len(got))
    stage.check(
        f"the flights of each of {len(set(codes.tolist())):,} {keys_are} were processed in order",
        bool(np.array_equal(_ranks(given, codes), running_numbers(codes))),
    )
    return workers


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
