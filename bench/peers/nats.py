"""NATS JetStream: the library's own calls, and the fastest loops written by hand on top."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.peers.work import (
    BATCH_EVENTS,
    EVENTS,
    IN_FLIGHT,
    PUBLISH_S,
    STRICT_EVENTS,
    SUBJECTS,
    VALUES,
    Way,
    Work,
    rate_of_batches,
)

STREAM = "bench"
CONSUMER = "worker"
PULL_EVENTS = 2000
PULLS_AHEAD = 3
STEP_TIMEOUT_S = 60.0


async def connect(url: str) -> Any:
    # Checking subjects again costs the client time that none of the others spend.
    return await importlib.import_module("nats").connect(url, skip_subject_validation=True)


def ways(url: str, *, sync_always: bool) -> list[Way]:
    system = "NATS sync always" if sync_always else "NATS"
    survives = (
        "power failure" if sync_always else "process death; up to 2 min lost on power failure"
    )

    def way(work: Work, how: str, run: Callable[[Any], Awaitable[float]]) -> Way:
        return Way(work, system, how, survives, lambda: asyncio.run(_on_new_stream(url, run)))

    return [
        way(Work.PUBLISH, "library, 1000 in flight", publish_library),
        way(Work.PUBLISH, "atomic batches", lambda nc: publish_atomic(nc, 1)),
        way(Work.PUBLISH, "atomic batches, 4 in flight", lambda nc: publish_atomic(nc, IN_FLIGHT)),
        way(Work.CONSUME, "hand-written pull loop", consume),
        way(Work.STRICT, "fetch 1, confirmed ack", strict_confirmed),
        way(Work.STRICT, "fetch 1, ack", strict_fetch),
        way(Work.STRICT, "ack that asks for the next", strict_next),
    ]


async def _on_new_stream(url: str, run: Callable[[Any], Awaitable[float]]) -> float:
    nc = await connect(url)
    try:
        await create_stream(nc)
        return await asyncio.wait_for(run(nc), STEP_TIMEOUT_S)
    finally:
        await nc.jetstream().delete_stream(STREAM)
        await nc.close()


async def create_stream(nc: Any, replicas: int = 1) -> None:
    api = importlib.import_module("nats.js.api")
    config = api.StreamConfig(
        name=STREAM, subjects=["bench.>"], allow_atomic=True, num_replicas=replicas
    )
    await nc.jetstream().add_stream(config)


async def publish_library(nc: Any) -> float:
    """``publish_async`` with a batch in flight; the confirmations of a batch are waited for."""
    js = nc.jetstream(publish_async_max_pending=2 * BATCH_EVENTS)
    sent, began = 0, time.perf_counter()
    # At least one batch: with a sync for each event that alone takes about a second.
    while time.perf_counter() - began < PUBLISH_S:
        futures = [
            await js.publish_async(subject, value)
            for subject, value in zip(SUBJECTS, VALUES, strict=True)
        ]
        await asyncio.gather(*futures)
        sent += BATCH_EVENTS
    return sent / (time.perf_counter() - began)


_batch_ids = itertools.count(1)


async def _publish_batch(nc: Any, events: int = BATCH_EVENTS) -> None:
    """One atomic batch: numbered messages, of which the last asks for the commit."""
    publish, batch = nc.publish, str(next(_batch_ids))
    for row in range(events - 1):
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(row + 1)}
        await publish(SUBJECTS[row], VALUES[row], headers=headers)
    headers = {
        "Nats-Batch-Id": batch,
        "Nats-Batch-Sequence": str(events),
        "Nats-Batch-Commit": "1",
    }
    last = events - 1
    answer = await nc.request(SUBJECTS[last], VALUES[last], headers=headers, timeout=10)
    said = json.loads(answer.data)
    if said.get("count") != events:
        raise RuntimeError(f"a batch was not committed: {said}")


async def publish_atomic(nc: Any, in_flight: int) -> float:
    return await rate_of_batches(lambda: _publish_batch(nc), in_flight)


async def create_consumer(nc: Any, max_ack_pending: int) -> None:
    api = importlib.import_module("nats.js.api")
    config = api.ConsumerConfig(
        durable_name=CONSUMER,
        ack_policy=api.AckPolicy.EXPLICIT,
        max_ack_pending=max_ack_pending,
        ack_wait=30,
    )
    await nc.jetstream().add_consumer(STREAM, config)


async def _fill(nc: Any, events: int) -> None:
    for _ in range(-(-events // BATCH_EVENTS)):
        await _publish_batch(nc)


NEXT = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}"


async def consume(nc: Any) -> float:
    """Pulls that overlap, a callback for each message, acks without an answer.

    The clock stops when the server has counted every ack.
    """
    await _fill(nc, EVENTS)
    await create_consumer(nc, max_ack_pending=-1)
    inbox, seen, asked = nc.new_inbox(), 0, 0
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    publish = nc.publish
    pull = json.dumps({"batch": PULL_EVENTS, "expires": 10_000_000_000}).encode()

    async def take(message: Any) -> None:
        nonlocal seen, asked
        if not message.reply:
            return  # the end of a pull, not an event
        await publish(message.reply)
        seen += 1
        if seen == EVENTS:
            done.set_result(None)
        elif asked - seen < (PULLS_AHEAD - 1) * PULL_EVENTS:
            asked += PULL_EVENTS
            await publish(NEXT, pull, reply=inbox)

    subscription = await nc.subscribe(inbox, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
    began = time.perf_counter()
    for _ in range(PULLS_AHEAD):
        asked += PULL_EVENTS
        await publish(NEXT, pull, reply=inbox)
    await done
    await _all_acked(nc)
    rate = EVENTS / (time.perf_counter() - began)
    await subscription.unsubscribe()
    return rate


async def _all_acked(nc: Any) -> None:
    await nc.flush()
    while True:
        info = await nc.jetstream().consumer_info(STREAM, CONSUMER)
        if not info.num_ack_pending:
            return


async def strict_confirmed(nc: Any) -> float:
    """One event at a time with the library's own fetch, and an ack that is known to count."""
    return await _strict(nc, lambda message: message.ack_sync())


async def strict_fetch(nc: Any) -> float:
    """The same with an ack of which nobody hears whether it arrived."""
    return await _strict(nc, lambda message: message.ack())


async def _strict(nc: Any, ack: Callable[[Any], Awaitable[Any]]) -> float:
    await _fill(nc, STRICT_EVENTS)
    await create_consumer(nc, max_ack_pending=1)
    subscription = await nc.jetstream().pull_subscribe_bind(CONSUMER, STREAM)
    began = time.perf_counter()
    for _ in range(STRICT_EVENTS):
        (message,) = await subscription.fetch(1)
        await ack(message)
    return STRICT_EVENTS / (time.perf_counter() - began)


async def strict_next(nc: Any) -> float:
    """One event at a time, where the ack of an event is the request for the next."""
    await _fill(nc, STRICT_EVENTS)
    await create_consumer(nc, max_ack_pending=1)
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    began = time.perf_counter()
    await nc.publish(NEXT, b'{"batch": 1}', reply=inbox)
    for _ in range(STRICT_EVENTS):
        message = await subscription.next_msg(timeout=10)
        await nc.publish(message.reply, b"+NXT", reply=inbox)
    rate = STRICT_EVENTS / (time.perf_counter() - began)
    await subscription.unsubscribe()
    return rate
