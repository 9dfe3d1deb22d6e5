"""How long a partition is without an owner: after SIGKILL, a close, a step-down, a new member.

``python -m bench.takeover`` prints the figures.  Two instances of a member run in processes of
their own; this process publishes all the time, and each instance prints when it got what.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import headrace
import headrace.sync
from bench.harness import Result, at_most, show

STREAM, GROUP, MEMBER = "bench", "workers", "worker"
LEASE_MS = 2_000
ROUNDS = 5
KILL_OVER_MS, GRACEFUL_MS = 200.0, 100.0
PATIENCE_S = 30.0

_INSTANCE = """
import asyncio, os, sys, threading, time, headrace
async def main():
    folder, lease_ms = sys.argv[1], int(sys.argv[2])
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    def wait():
        sys.stdin.read()
        loop.call_soon_threadsafe(stop.set)
    threading.Thread(target=wait, daemon=True).start()
    async with headrace.open(folder) as hr:
        async with hr.join("bench", "workers", member="worker", pin_ttl_ms=lease_ms) as member:
            print("joined", flush=True)
            async def work():
                async for delivery in member:
                    print(time.monotonic_ns(), flush=True)
                    delivery.ack_soon()
            working = asyncio.ensure_future(work())
            await stop.wait()
            working.cancel()
asyncio.run(main())
"""


class Instance:
    """A process with an instance of the member, and when it last got something."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", _INSTANCE, str(folder), str(LEASE_MS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first_ns = 0
        self.joined = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        if not self.joined.wait(PATIENCE_S):
            raise TimeoutError(f"{name} did not join")

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("joined"):
                self.joined.set()
            elif not self.first_ns:
                self.first_ns = int(line)

    def forget(self) -> None:
        self.first_ns = 0

    def wait_for_work(self) -> int:
        """When it got its first event."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.first_ns:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} got nothing")
            time.sleep(0.0005)
        return self.first_ns

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Publisher:
    """Publishes an event every few milliseconds on a thread."""

    def __init__(self, hr: headrace.sync.Headrace) -> None:
        self._hr = hr
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.004):
            self._hr.publish("bench.eu.1", b"x" * 100, key=str(number % 50))
            number += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def run(folder: Path) -> list[Result]:
    """All ways in which a partition changes hands."""
    delays: dict[str, list[float]] = {"killed": [], "closed": [], "stepped down": []}
    with headrace.sync.open(folder) as hr:
        hr.create_stream(STREAM, subjects=["bench.>"], partitions=1)
        hr.run(hr.client.groups.create_static(STREAM, GROUP, max_members=1, members=[MEMBER]))
        publisher = Publisher(hr)
        instances: list[Instance] = []
        try:
            active = Instance(folder, "i0")
            instances.append(active)
            active.wait_for_work()
            for number in range(ROUNDS):
                for way in delays:
                    standby = Instance(folder, f"i{len(instances)}")
                    instances.append(standby)
                    time.sleep(0.3 + 0.07 * number)  # anywhere between two renewals
                    began = time.monotonic_ns()
                    _change_hands(way, hr, active)
                    delays[way].append((standby.wait_for_work() - began) / 1e6)
                    active.end()
                    active = standby
        finally:
            publisher.stop()
            for instance in instances:
                instance.end()
    median = {way: statistics.median(times) for way, times in delays.items()}
    worst = max(delays["killed"])
    return [
        at_most(
            "takeover after SIGKILL, over the lease's time to live, worst",
            worst - LEASE_MS,
            KILL_OVER_MS,
            "ms",
            f"{worst:.0f} ms with a lease of {LEASE_MS} ms; median {median['killed']:.0f} ms",
        ),
        *(
            at_most(
                f"hand-over when the active instance {way}, median",
                median[way],
                GRACEFUL_MS,
                "ms",
                f"{max(delays[way]):.0f} ms at most",
            )
            for way in ("closed", "stepped down")
        ),
    ]


def _change_hands(way: str, hr: headrace.sync.Headrace, active: Instance) -> None:
    match way:
        case "killed":
            active.process.kill()
        case "closed":
            assert active.process.stdin is not None
            active.process.stdin.close()
        case _:
            hr.run(hr.client.groups.step_down(STREAM, GROUP, MEMBER))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        show(run(Path(name) / "log"))
