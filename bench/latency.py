"""From a durable publish to its arrival in another process, and what waiting costs.

``python -m bench.latency`` prints the figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import headrace.sync
from bench.harness import Result, at_most, percentile, show

EVENTS = 1500
WARM_UP = 200
IDLE_S = 10.0

_TAIL = """
import asyncio, struct, sys, time, headrace
async def main():
    async with headrace.open(sys.argv[1]) as hr:
        reading = hr.tail("bench")
        opened = False
        count = 0
        pending = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(0.5)
        print("ready", flush=True)
        while count < int(sys.argv[2]):
            batch = await pending
            now = time.perf_counter_ns()
            for value in batch.column("value").to_pylist():
                print((now - struct.unpack("<q", value[:8])[0]) / 1e6)
                count += 1
            pending = asyncio.ensure_future(anext(reading))
        pending.cancel()
asyncio.run(main())
"""

_IDLE = """
import asyncio, sys, time, headrace
async def main():
    async with headrace.open(sys.argv[1]) as hr:
        waits = [asyncio.ensure_future(anext(hr.tail("bench"))) for _ in range(8)]
        await asyncio.sleep(1.0)
        used, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(float(sys.argv[2]))
        print((time.process_time() - used) / (time.perf_counter() - began))
        for wait in waits:
            wait.cancel()
asyncio.run(main())
"""


def _publish(folder: Path, tail: subprocess.Popen[str]) -> None:
    """From a script, to a tail on an event loop."""
    with headrace.sync.open(folder) as hr:
        assert tail.stdout is not None
        tail.stdout.readline()
        for _ in range(EVENTS + WARM_UP):
            stamp = time.perf_counter_ns().to_bytes(8, "little") + os.urandom(92)
            hr.publish("bench.a", stamp, key="k")
            time.sleep(0.001)


def publish_to_tail(folder: Path) -> list[Result]:
    """perf_counter is one clock for all processes of a machine, so the stamp needs no syncing."""
    with headrace.sync.open(folder) as hr:
        hr.create_stream("bench", subjects=["bench.>"], segments=4)
    command = [sys.executable, "-c", _TAIL, str(folder), str(EVENTS + WARM_UP)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        _publish(folder, tail)
        assert tail.stdout is not None
        times = [float(line) for line in tail.stdout.read().split()][WARM_UP:]
    return [
        at_most("publish to tail, two processes, p50", percentile(times, 0.5), 1.1, "ms"),
        at_most("publish to tail, two processes, p99", percentile(times, 0.99), 5.0, "ms"),
    ]


def idle(folder: Path) -> Result:
    command = [sys.executable, "-c", _IDLE, str(folder), str(IDLE_S)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return at_most("8 idle tails, CPU", float(out) * 100, 1.0, "% of a core")


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name) / "log"
        return [*publish_to_tail(folder), idle(folder)]


if __name__ == "__main__":
    show(run())
