"""Reader groups with many readers in several processes: how soon they settle, what updates cost.

``python -m bench.readers_many`` prints the figures.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from functools import partial
from pathlib import Path

import headrace
from bench.harness import Result, at_most, show
from headrace.catalog import entries
from headrace.groups.readers.core.balance import release_count
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.synchronizer import Followed
from headrace.groups.readers.core.updates import ReportLag
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime.hub import Following, hub_of
from headrace.groups.readers.runtime.transaction import GroupCommit

PROCESSES, READERS, SEGMENTS = 8, 500, 4000
LIMIT_S = 120.0
UPDATES = 100
APART_S = 0.05
REST_S = 2.0
GROUP = "wide"

_WORKER = """
import asyncio, sys, time, headrace
async def main():
    async with headrace.open(sys.argv[1]) as hr:
        group = await hr.reader_groups.get("wide")
        readers = [group.reader(name) for name in sys.argv[2:]]
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(reader.open() for reader in readers))
        print("joined", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(f"{time.process_time():.2f}", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(reader.close() for reader in readers))
asyncio.run(main())
"""


class _Watch:
    """Follows the group as its readers do."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    def followed(self, news: Followed | None) -> None:
        del news
        self.changed.set()

    def group_gone(self, error: headrace.HeadraceError) -> None:
        raise error


def _settled(state: ReaderGroupState) -> bool:
    """All readers are there, everything is owned, and nobody has to give anything up."""
    if len(state.members) != READERS or state.unassigned:
        return False
    return not any(release_count(state, name) for name in state.members)


async def _tell(workers: list[Process]) -> None:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        await worker.stdin.drain()


async def _hear(workers: list[Process]) -> list[str]:
    heard = []
    for worker in workers:
        assert worker.stdout is not None
        heard.append((await worker.stdout.readline()).decode().strip())
    return heard


async def _settling(folder: Path) -> tuple[float, int, float, float, float]:
    """Seconds until all is settled, in how many updates and by how much CPU time; then the median
    of an update and of a bare put of an entry, in ms."""
    async with headrace.open(folder) as hr:
        await hr.create_stream("wide", subjects=["wide.>"], segments=SEGMENTS)
        group = await hr.reader_groups.create(GROUP, streams=["wide"])
        name, hub, watch = ReaderGroupName(GROUP), hub_of(hr.host), _Watch()
        following = await hub.follow(name, watch)
        first = (await group.info()).revision
        workers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _WORKER, str(folder)),
                *(f"r{n}" for n in range(number, READERS, PROCESSES)),
                stdin=PIPE,
                stdout=PIPE,
            )
            for number in range(PROCESSES)
        ]
        try:
            await _hear(workers)
            began = time.perf_counter()
            await _tell(workers)
            async with asyncio.timeout(LIMIT_S):
                while not _settled(following.state):
                    watch.changed.clear()
                    await watch.changed.wait()
            settled_s = time.perf_counter() - began
            updates = (await group.info()).revision - first
            await _hear(workers)
            await _tell(workers)
            used_s = sum(float(each) for each in await _hear(workers))
            await asyncio.sleep(REST_S)
            update_ms, put_ms = await _in_turn(hr, following)
            hub.leave(following, watch)
            await _tell(workers)
            await asyncio.gather(*(worker.wait() for worker in workers))
        except BaseException:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
            raise
        return settled_s, updates, used_s, update_ms, put_ms


async def _in_turn(hr: headrace.Headrace, following: Following) -> tuple[float, float]:
    """The medians of updates of the group and of bare puts, in ms, while its readers idle."""
    hub = hub_of(hr.host)
    reader, member = next(iter(following.state.members.items()))
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(UPDATES):
        update = ReportLag(reader, member.token, 1 + number % 2)
        value = str(number).encode()
        for is_update in (True, False) if number % 2 else (False, True):
            await asyncio.sleep(APART_S)  # all have followed the one before
            began = time.perf_counter()
            if is_update:
                await hub.transact(following.name, partial(GroupCommit.put, update=update))
            else:
                put = partial(entries.put, bucket="bench", key="entry", value=value)
                await hr.host.in_transaction(put, small=True)
            took[is_update].append(1000 * (time.perf_counter() - began))
    return statistics.median(took[True]), statistics.median(took[False])


def run() -> list[Result]:
    """The figures of many readers."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        found = asyncio.run(_settling(Path(scratch) / "data"))
    settled_s, updates, used_s, update_ms, put_ms = found
    return [
        at_most(
            f"{READERS} readers in {PROCESSES} processes, {SEGMENTS:,} segments: settled",
            settled_s,
            10,
            "s",
            f"{updates} updates, {used_s:.0f} s of CPU",
        ),
        at_most(
            f"{READERS} readers: an update",
            update_ms / put_ms,
            3,
            "x a bare put",
            f"p50 {update_ms:.2f} against {put_ms:.2f} ms",
        ),
    ]


if __name__ == "__main__":
    show(run())
