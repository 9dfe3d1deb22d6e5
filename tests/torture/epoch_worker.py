"""Publishers and subscribers of epochs under torture, some of them in one process.

``python -m tests.torture.epoch_worker URL FOLDER LIFE ROLE…``.  A role is one of:

- ``publish:NAME`` publishes to ``orders`` what its source has, from the publisher's frontier on;
- ``output:NAME`` and ``ack:NAME`` are named subscribers, one with an event of ``out`` per epoch;
- ``whole:NAME`` and ``streaming:NAME`` keep the token themselves, in one line with what they saw;
- ``relay:NAME`` acks an event of ``in`` and makes it an epoch of ``via``, in one transaction.

What they see goes to files in FOLDER, a line per write, and who is the active one of a name to
``NAME.holder``.  At the line ``stop`` publishers leave after the epoch they are in; all others run
until they are killed.  At ``die PLACE PASSES`` a process kills itself there, and at ``stall
PASSES UNTIL`` it stops with a write in hand (``dying.py``).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import cast

import msgspec

import headrace
from headrace.epochs.runtime.given import EpochFrontier, EpochPart, EpochTakenBack, WholeEpoch
from headrace.epochs.runtime.publisher import EpochPublisher
from headrace.epochs.runtime.subscription import EpochSubscription
from headrace.errors import AlreadyAckedError, CatalogUnavailableError, Fenced
from headrace.log.events import Event
from tests.torture import dying

LEASE_MS = 2500
PUBLISHERS = ("p0", "p1")


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One line of a subscriber: epochs with the digests of their rows, or an ack."""

    life: str
    at_ns: int
    """When this was written."""
    under: int
    """The fencing token of a named subscription."""
    kind: str
    epochs: list[tuple[int, str]]
    token: str = ""


def rows_of(publisher: str, epoch: int) -> int:
    """How many rows the source of a publisher has for an epoch; some are empty."""
    return random.Random(f"{publisher} {epoch}").choice((0, 1, 3, 3, 5, 9))


def digest(values: Iterable[bytes]) -> str:
    """The same for the same rows without regard to their order; each counts."""
    found = sorted(values)
    return f"{len(found)}-{hashlib.sha256(b'|'.join(found)).hexdigest()[:12]}"


class Journal:
    """One write for each line."""

    def __init__(self, folder: Path, role: str, life: str) -> None:
        self.path = folder / f"{role.replace(':', '-')}.{life}.jsonl"
        self._file = self.path.open("ab", buffering=0)
        self._life = life
        self.under = 0

    def write(self, kind: str, epochs: list[tuple[int, str]], token: str = "") -> None:
        seen = Seen(self._life, time.monotonic_ns(), self.under, kind, epochs, token)
        self._file.write(msgspec.json.encode(seen) + b"\n")


class Work:
    """The roles of one process."""

    def __init__(self, hr: headrace.Headrace, folder: Path, life: str) -> None:
        self.hr = hr
        self.folder = folder
        self.life = life
        self.stop = asyncio.Event()
        self._rng = random.Random(life)

    def chance(self) -> float:
        return self._rng.random()

    # -- publishers ----------------------------------------------------------------------

    async def publish(self, name: str) -> None:
        while not self.stop.is_set():
            async with self.hr.epoch_publisher("orders", name, lease_ttl_ms=LEASE_MS) as pub:
                self._holds(name)
                while not self.stop.is_set():
                    try:
                        await self._source(pub)
                    except CatalogUnavailableError:
                        # Stored or not, nobody knows: what is open is taken back and done again.
                        await patiently(pub.rollback)

    def _holds(self, name: str) -> None:
        (self.folder / f"{name}.holder").write_text(self.life)

    async def _source(self, pub: EpochPublisher) -> None:
        """Publish epochs from the frontier on, in one of several ways each."""
        rng, early = self._rng, 0
        epoch = pub.frontier
        while not (self.stop.is_set() and not early):
            rows = [self._row(pub, epoch, row) for row in range(rows_of(pub.name, epoch))][early:]
            early = 0
            cut = rng.randint(0, len(rows))
            if cut:
                await pub.append(epoch, rows[:cut])
                await asyncio.sleep(rng.uniform(0, 0.03))
            way = rng.choice(("together", "apart", "early"))
            if way == "together":
                await pub.append(epoch, rows[cut:], advance_to=epoch + 1)
            else:
                if rows[cut:]:
                    await pub.append(epoch, rows[cut:])
                if way == "early" and rows_of(pub.name, epoch + 1) > 1:
                    await pub.append(epoch + 1, [self._row(pub, epoch + 1, 0)])
                    early = 1
                await asyncio.sleep(rng.uniform(0, 0.03))
                await pub.advance_to(epoch + 1)
            epoch += 1
            assert pub.frontier == epoch, (pub.frontier, epoch)

    def _row(self, pub: EpochPublisher, epoch: int, row: int) -> Event:
        value = f"{pub.name} {epoch} {row} {pub.token}".encode()
        return Event(subject="orders.x", key=str(row), value=value)

    async def relay(self, name: str) -> None:
        group = await self.hr.reader_groups.get("relay")
        while not self.stop.is_set():
            async with (
                self.hr.epoch_publisher("via", name, lease_ttl_ms=LEASE_MS) as pub,
                group.reader(f"{name}-{self.life}", lease_ttl_ms=LEASE_MS) as reader,
            ):
                self._holds(name)
                async for delivery in reader:
                    try:
                        async with delivery.transaction() as tx:
                            epoch, out = pub.frontier, pub.within(tx)
                            out.publish(epoch, "via.x", delivery.value)
                            out.publish(epoch, "via.y", delivery.value, advance_to=epoch + 1)
                    except AlreadyAckedError:
                        pass  # by a commit whose answer did not come
                    await asyncio.sleep(self._rng.uniform(0, 0.02))

    # -- subscribers ---------------------------------------------------------------------

    async def output(self, name: str) -> None:
        async with self._named(name) as epochs:
            self._holds(name)
            async for epoch in epochs:
                found = digest(await values(epoch))
                async with epoch.transaction() as tx:
                    tx.publish("out.x", f"{name} {epoch.time} {found}".encode())

    async def ack(self, name: str) -> None:
        journal = Journal(self.folder, f"ack:{name}", self.life)
        async with self._named(name) as epochs:
            journal.under = epochs.lease_token
            self._holds(name)
            async for epoch in epochs:
                found = digest(await values(epoch))
                journal.write("given", [(epoch.time, found)])
                await epoch.ack()
                journal.write("acked", [(epoch.time, found)])

    def _named(self, name: str) -> EpochSubscription:
        return self.hr.epochs("orders", name=name, start="earliest", lease_ms=LEASE_MS)

    async def whole(self, name: str) -> None:
        journal = Journal(self.folder, f"whole:{name}", "chain")
        start = last_token(journal.path) or "earliest"
        async with self.hr.epochs("orders", start=start) as epochs:
            async for epoch in epochs:
                journal.write("given", [(epoch.time, digest(await values(epoch)))], epoch.token)

    async def streaming(self, name: str) -> None:
        journal = Journal(self.folder, f"streaming:{name}", "chain")
        start = last_token(journal.path) or "earliest"
        parts: dict[tuple[int, str], list[bytes]] = {}
        done: int | None = None
        async with self.hr.epochs("orders", start=start, mode="streaming") as epochs:
            async for item in epochs:
                match item:
                    case EpochPart(time=int(at), publisher=publisher):
                        parts.setdefault((at, publisher), []).extend(await values(item))
                    case EpochTakenBack(publisher=publisher, held=(int(held),)):
                        gone = [key for key in parts if key[1] == publisher and key[0] >= held]
                        for key in gone:
                            del parts[key]
                    case EpochFrontier(frontier=(int(now),), token=token):
                        first = now if done is None else done
                        complete = []
                        for at in range(first, now):
                            found = [v for p in PUBLISHERS for v in parts.pop((at, p), ())]
                            if found:
                                complete.append((at, digest(found)))
                        assert not [key for key in parts if key[0] < now]
                        journal.write("given", complete, token)
                        done = now
                    case _:
                        raise AssertionError(item)


def last_token(path: Path) -> str:
    """What an earlier life kept."""
    lines = path.read_bytes().splitlines()
    return msgspec.json.decode(lines[-1], type=Seen).token if lines else ""


async def values(rows: EpochPart | WholeEpoch) -> list[bytes]:
    """The values of rows."""
    return [value async for batch in rows for value in batch.column("value").to_pylist()]


async def patiently(step: Callable[[], Awaitable[object]]) -> None:
    """A catalog that is held up meanwhile is asked again."""
    while True:
        try:
            await step()
        except CatalogUnavailableError:
            await asyncio.sleep(0.1)
        else:
            return


async def endure(step: Callable[[str], Awaitable[None]], name: str, stop: asyncio.Event) -> None:
    """Begin again after being replaced, or when somebody was frozen with the lock in hand."""
    while not stop.is_set():
        try:
            await step(name)
        except (Fenced, CatalogUnavailableError):
            await asyncio.sleep(0.05)


async def main(url: str, folder: str, life: str, *roles: str) -> None:
    loop = asyncio.get_running_loop()
    async with headrace.open(url, housekeeping=False) as hr:
        work = Work(hr, Path(folder), life)
        (Path(folder) / f"{life}.ready").touch()
        print("ready", flush=True)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(endure(getattr(work, kind), name, work.stop))
                for kind, _, name in (role.partition(":") for role in roles)
            ]
            while True:
                said = (await loop.run_in_executor(None, sys.stdin.readline)).split()
                if said in ([], ["stop"]):
                    break
                if said[0] == "stall":
                    dying.stall(int(said[1]), float(said[2]))
                    continue
                _, place, passes = said
                dying.arm(cast(dying.Place, place), int(passes), work.chance() * 0.003)
            work.stop.set()
            if not any(role.startswith("publish:") for role in roles):
                for task in running:
                    task.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
