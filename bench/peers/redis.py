"""Redis Streams: pipelines, groups, and many ids in one acknowledgement."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable
from typing import Any

from bench.peers.work import (
    BATCH_EVENTS,
    EVENTS,
    STRICT_EVENTS,
    SUBJECTS,
    VALUES,
    Way,
    Work,
    rate_of_batches,
)

STREAM = b"bench"
GROUP = b"workers"
CONSUMER = b"worker"


def connect(port: int) -> Any:
    return importlib.import_module("redis").Redis(host="127.0.0.1", port=port, protocol=2)


def ways(port: int, *, appendfsync: str) -> list[Way]:
    system = "Redis fsync always" if appendfsync == "always" else "Redis"
    survives = "power failure"
    if appendfsync != "always":
        survives = "process death; up to 1 s lost on power failure"

    def way(work: Work, how: str, run: Callable[[Any], float]) -> Way:
        return Way(work, system, how, survives, lambda: _on_new_stream(port, run))

    return [
        way(Work.PUBLISH, "pipelines of 1000 XADD", publish),
        way(Work.CONSUME, "XREADGROUP 1000 and XACK in a pipeline", consume),
        way(Work.STRICT, "XREADGROUP 1 and XACK in a pipeline", strict),
    ]


def _on_new_stream(port: int, run: Callable[[Any], float]) -> float:
    client = connect(port)
    try:
        client.delete(STREAM)
        client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        return run(client)
    finally:
        client.delete(STREAM)
        client.close()


def _publish_batch(client: Any) -> None:
    # Not a transaction: as one MULTI the same takes a little longer.
    pipeline = client.pipeline(transaction=False)
    for subject, value in zip(SUBJECTS, VALUES, strict=True):
        pipeline.execute_command("XADD", STREAM, "*", "s", subject, "v", value)
    pipeline.execute()


def publish(client: Any) -> float:
    async def send() -> None:
        _publish_batch(client)

    return asyncio.run(rate_of_batches(send, 1))


def consume(client: Any) -> float:
    """The acks of what was read travel with the next read; each event is looked at by itself."""
    return _consume(client, EVENTS, BATCH_EVENTS)


def strict(client: Any) -> float:
    return _consume(client, STRICT_EVENTS, 1)


def _consume(client: Any, events: int, count: int) -> float:
    for _ in range(-(-events // BATCH_EVENTS)):
        _publish_batch(client)
    read = ("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", count, "STREAMS", STREAM, ">")
    # Plain arrays of bytes, as hiredis parses them: the client's own replies cost it more.
    options = {"NEVER_DECODE": True}
    client.response_callbacks.pop("XREADGROUP", None)
    seen = total = 0
    done: list[bytes] = []
    began = time.perf_counter()
    while seen < events:
        pipeline = client.pipeline(transaction=False)
        if done:
            pipeline.execute_command("XACK", STREAM, GROUP, *done)
        pipeline.execute_command(*read, **options)
        ((_, entries),) = pipeline.execute()[-1]
        done = []
        for entry, fields in entries:
            total += len(fields[3])
            done.append(entry)
        seen += len(done)
    client.execute_command("XACK", STREAM, GROUP, *done)
    rate = events / (time.perf_counter() - began)
    if total != events * len(VALUES[0]):
        raise RuntimeError(f"{total} bytes came, not {events * len(VALUES[0])}")
    return rate
