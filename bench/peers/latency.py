"""From a publisher in one process to a consumer in another, each event acked.

    python -m bench.peers.latency SYSTEM ADDRESS EVENTS

is the consumer: it says ``ready``, then one line of milliseconds for each event.  The clock is
one for all processes of a machine, and the time of publishing stands in the event.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import headrace.sync
from bench.peers import log, nats, redis
from bench.peers.work import VALUE_BYTES

EVENTS = 250
WARM_UP = 50
PAUSE_S = 0.001
CHILD_TIMEOUT_S = 60.0

_STAMP = struct.Struct("<q")


def _value() -> bytes:
    return _STAMP.pack(time.perf_counter_ns()) + bytes(VALUE_BYTES - _STAMP.size)


def _age_ms(value: bytes) -> float:
    return (time.perf_counter_ns() - int(_STAMP.unpack_from(value)[0])) / 1e6


# --- publishers, in this process -----------------------------------------------------------


class Times(msgspec.Struct):
    """Milliseconds from publish to delivery, and until a publish was confirmed."""

    delays: list[float]
    publishes: list[float]


def from_headrace(catalog: str) -> Times:
    """``catalog`` is a folder, or the address of a database."""
    log.create_group(catalog)
    publishes = []
    with headrace.sync.open(catalog) as hr, _consumer("headrace", catalog) as times:
        for _ in range(EVENTS + WARM_UP):
            begun_s = time.perf_counter()
            hr.publish("bench.eu.1", _value(), key="1")
            publishes.append((time.perf_counter() - begun_s) * 1000)
            time.sleep(PAUSE_S)
        return Times(times(), publishes[WARM_UP:])


def from_nats(url: str, replicas: int = 1) -> Times:
    publishes = []

    async def run() -> list[float]:
        nc = await nats.connect(url)
        await nats.create_stream(nc, replicas)
        await nats.create_consumer(nc, max_ack_pending=-1)
        js = nc.jetstream()
        try:
            with _consumer("nats", url) as times:
                for _ in range(EVENTS + WARM_UP):
                    begun_s = time.perf_counter()
                    await js.publish("bench.eu.1", _value())
                    publishes.append((time.perf_counter() - begun_s) * 1000)
                    await asyncio.sleep(PAUSE_S)
                return await asyncio.to_thread(times)
        finally:
            await js.delete_stream(nats.STREAM)
            await nc.close()

    return Times(asyncio.run(run()), publishes[WARM_UP:])


def from_redis(address: str) -> Times:
    client = redis.connect(int(address))
    client.delete(redis.STREAM)
    client.xgroup_create(redis.STREAM, redis.GROUP, id="0", mkstream=True)
    publishes = []
    try:
        with _consumer("redis", address) as times:
            for _ in range(EVENTS + WARM_UP):
                begun_s = time.perf_counter()
                client.execute_command("XADD", redis.STREAM, "*", "v", _value())
                publishes.append((time.perf_counter() - begun_s) * 1000)
                time.sleep(PAUSE_S)
            return Times(times(), publishes[WARM_UP:])
    finally:
        client.delete(redis.STREAM)
        client.close()


@contextmanager
def _consumer(system: str, address: str) -> Iterator[Callable[[], list[float]]]:
    """A consumer in a process of its own; gives what it measured once all has come."""
    command = [sys.executable, "-m", "bench.peers.latency", system, address, str(EVENTS + WARM_UP)]
    root = Path(__file__).parents[2]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env=os.environ)
    assert child.stdout is not None
    try:
        if child.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the consumer of {system} did not come up")

        def times() -> list[float]:
            out, _ = child.communicate(timeout=CHILD_TIMEOUT_S)
            return [float(line) for line in out.split()][WARM_UP:]

        yield times
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        child.stdout.close()


# --- consumers, in the other process -------------------------------------------------------


async def _on_headrace(folder: str, events: int) -> list[float]:
    async with headrace.open(folder) as hr, log.join(hr) as member:
        await member.settled()
        _ready()
        found: list[float] = []
        async for delivery in member:
            found.append(_age_ms(delivery.value))
            delivery.ack_soon()
            if len(found) == events:
                break
        await member.flush()
    return found


async def _on_nats(url: str, events: int) -> list[float]:
    nc = await nats.connect(url)
    inbox, found = nc.new_inbox(), []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def take(message: Any) -> None:
        if not message.reply:
            return
        found.append(_age_ms(message.data))
        await nc.publish(message.reply)
        if len(found) == events:
            done.set_result(None)

    await nc.subscribe(inbox, cb=take)
    await nc.publish(nats.NEXT, b'{"batch": %d, "expires": 60000000000}' % events, reply=inbox)
    await nc.flush()
    _ready()
    await done
    await nc.close()
    return found


def _on_redis(address: str, events: int) -> list[float]:
    client = importlib.import_module("redis").Redis(host="127.0.0.1", port=int(address), protocol=2)
    client.response_callbacks.pop("XREADGROUP", None)
    read: tuple[Any, ...] = ("XREADGROUP", "GROUP", redis.GROUP, redis.CONSUMER, "COUNT", 100)
    read += ("BLOCK", 10_000, "STREAMS", redis.STREAM, ">")
    _ready()
    found: list[float] = []
    while len(found) < events:
        ((_, entries),) = client.execute_command(*read)
        for _, fields in entries:
            found.append(_age_ms(fields[1]))
        client.execute_command("XACK", redis.STREAM, redis.GROUP, *(e for e, _ in entries))
    client.close()
    return found


def _ready() -> None:
    print("ready", flush=True)


def main(system: str, address: str, events: int) -> None:
    match system:
        case "headrace":
            found = asyncio.run(_on_headrace(address, events))
        case "nats":
            found = asyncio.run(_on_nats(address, events))
        case "redis":
            found = _on_redis(address, events)
        case _:
            raise SystemExit(f"bench: no such system: {system}")
    print("\n".join(map(str, found)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
