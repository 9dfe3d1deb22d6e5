"""A writer: a process that appends in every way there is, and keeps its ledger.

    python -m tests.torture.writer URL STORE LEDGER_FOLDER WRITER INCARNATION SEED [PLACE PASSES]

It first repeats what its earlier incarnations left unresolved under an idempotent producer, then
runs its lanes until its standard input ends.  A key belongs to one lane of a writer, and a lane
starts an event only after the one before it was handed in, so a writer's events of a key have to
stand in the log in the order of their uids.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import headrace
from headrace.errors import CatalogUnavailableError, HeadMoved
from tests.torture import ledger
from tests.torture.ledger import (
    STREAMS,
    Acked,
    InDoubt,
    Intent,
    Journal,
    Kind,
    Part,
    Refused,
    Spot,
    key_of,
    subject_of,
)

ALPHA, BETA, GAMMA = range(3)
SEGMENTS = {"alpha": 2, "beta": 2, "gamma": 1}
PUBLISHERS = 12
SMALL_BYTES = 64
LARGE_BYTES = 16 * 1024
OPEN_TRIES_MAX = 120
RETRY_TRIES_MAX = 600

# The first key of each lane; lanes never share one.
PUBLISH_KEYS, BURST_KEYS, BATCH_KEYS, TRANSACTION_KEYS, PRODUCER_KEYS, CONDITIONAL_KEYS = range(
    0, 600, 100
)
LOOP_KEYS = 600


class Writer:
    """One incarnation at work."""

    def __init__(
        self,
        hr: headrace.Headrace,
        folder: Path,
        writer: int,
        incarnation: int,
        rng: random.Random,
        stop: asyncio.Event,
    ) -> None:
        self._hr = hr
        self._stop = stop
        self._rng = rng
        self._producer = f"writer-{writer}"
        records = [r for path in ledger.journals(folder, writer) for r in ledger.read_journal(path)]
        self._unresolved = ledger.unresolved(records)
        self._sequence = 1 + max(
            (r.sequence for r in records if isinstance(r, Intent) and r.sequence is not None),
            default=0,
        )
        self._journal = Journal(ledger.journal_path(folder, writer, incarnation))
        self._next_uid = ledger.first_uid(writer, incarnation)
        self._numbers: Counter[int] = Counter()

    async def run(self) -> None:
        for intent in self._unresolved:
            await self._resolve(intent)
        async with asyncio.TaskGroup() as lanes:
            for publisher in range(PUBLISHERS):
                lanes.create_task(self._publish_lane(PUBLISH_KEYS + publisher))
            for lane in (
                self._burst_lane,
                self._batch_lane,
                self._transaction_lane,
                self._producer_lane,
                self._conditional_lane,
                self._loop_lane,
            ):
                lanes.create_task(lane())

    # -- lanes --------------------------------------------------------------------------

    async def _publish_lane(self, key: int) -> None:
        while not self._stop.is_set():
            part = self._part(self._rng.choice((ALPHA, BETA)), [key])
            await self._attempt(self._intent("publish", part))
            await self._breathe(0.02)

    async def _burst_lane(self) -> None:
        """Many events of few keys in flight at once; they keep the order of the calls."""
        while not self._stop.is_set():
            async with asyncio.TaskGroup() as burst:
                for _ in range(self._rng.randint(5, 60)):
                    part = self._part(ALPHA, [BURST_KEYS + self._rng.randrange(3)])
                    burst.create_task(self._attempt(self._intent("publish", part)))
            await self._breathe(0.1)

    async def _batch_lane(self) -> None:
        while not self._stop.is_set():
            part = self._large(ALPHA) if self._rng.random() < 0.15 else self._small(ALPHA, 300)
            await self._attempt(self._intent("batch", part))
            await self._breathe(0.1)

    async def _transaction_lane(self) -> None:
        while not self._stop.is_set():
            parts = [self._part(stream, self._keys(TRANSACTION_KEYS, 20)) for stream in (0, 1)]
            if self._rng.random() < 0.05:
                parts.append(self._large(BETA, TRANSACTION_KEYS))
            await self._attempt(self._intent("transaction", *parts))
            await self._breathe(0.05)

    async def _producer_lane(self) -> None:
        while not self._stop.is_set():
            match self._rng.randrange(4):
                case 0:
                    kind: Kind = "producer-publish"
                    parts = [self._part(ALPHA, [PRODUCER_KEYS])]
                case 1:
                    kind = "producer-transaction"
                    parts = [self._part(s, self._keys(PRODUCER_KEYS, 8)) for s in (ALPHA, BETA)]
                case _:
                    kind = "producer-append"
                    large = self._rng.random() < 0.15
                    parts = [
                        self._large(BETA, PRODUCER_KEYS)
                        if large
                        else self._part(BETA, self._keys(PRODUCER_KEYS, 30))
                    ]
            intent = self._intent(kind, *parts, idempotent=True)
            self._journal.write(intent)
            await self._resolve(intent)
            if self._rng.random() < 0.2:
                # An answer that got lost on its way looks like this to the log.
                await self._resolve(intent)
            await self._breathe(0.05)

    async def _conditional_lane(self) -> None:
        while not self._stop.is_set():
            try:
                stream = await self._hr.stream(STREAMS[GAMMA])
            except CatalogUnavailableError:
                continue
            part = self._part(GAMMA, self._keys(CONDITIONAL_KEYS, 3))
            head = stream.segments[0].head
            await self._attempt(self._intent("conditional", part, expected_head=head))
            await self._breathe(0.2)

    async def _loop_lane(self) -> None:
        """One append after the other through an appender; at its end all are durable."""
        while not self._stop.is_set():
            appender = self._hr.appender(STREAMS[BETA])
            given: list[int] = []
            try:
                for _ in range(self._rng.randint(1, 30)):
                    large = self._rng.random() < 0.03
                    part = (
                        self._large(BETA, LOOP_KEYS)
                        if large
                        else self._part(BETA, self._keys(LOOP_KEYS, 40))
                    )
                    loop = given[0] if given else part.first
                    self._journal.write(Intent(part.first, "loop", [part], loop=loop))
                    given.append(part.first)
                    await appender.append(ledger.batch_of(part))
                await appender.close()
            except CatalogUnavailableError as error:
                for op in given:
                    self._journal.write(InDoubt(op, str(error)))
            else:
                for op in given:
                    self._journal.write(Acked(op, []))
            await self._breathe(0.1)

    async def _breathe(self, most_s: float) -> None:
        await asyncio.sleep(self._rng.random() * most_s)

    # -- events -------------------------------------------------------------------------

    def _part(self, stream: int, keys: list[int], size: int = SMALL_BYTES) -> Part:
        first = self._next_uid
        self._next_uid += len(keys)
        numbers = []
        for key in keys:
            self._numbers[key] += 1
            numbers.append(self._numbers[key])
        return Part(stream, first, size, keys, numbers)

    def _keys(self, base: int, most: int) -> list[int]:
        return [base + self._rng.randrange(8) for _ in range(self._rng.randint(1, most))]

    def _small(self, stream: int, rows_max: int) -> Part:
        rows = self._rng.randint(1, rows_max)
        return self._part(stream, [BATCH_KEYS + self._rng.randrange(40) for _ in range(rows)])

    def _large(self, stream: int, base: int = BATCH_KEYS) -> Part:
        """Enough for one key that its segment's share goes to a file."""
        hot = base + self._rng.randrange(8)
        keys = [hot if self._rng.random() < 0.9 else base + 9 for _ in range(80)]
        return self._part(stream, keys, LARGE_BYTES)

    def _intent(
        self,
        kind: Kind,
        *parts: Part,
        idempotent: bool = False,
        expected_head: int | None = None,
    ) -> Intent:
        producer = sequence = None
        if idempotent:
            producer, sequence = self._producer, self._sequence
            self._sequence += 1
        return Intent(parts[0].first, kind, list(parts), producer, sequence, expected_head)

    # -- appends ------------------------------------------------------------------------

    async def _attempt(self, intent: Intent) -> None:
        """Append once and note what came of it."""
        self._journal.write(intent)
        try:
            spots = await self._append(intent)
        except CatalogUnavailableError as error:
            self._journal.write(InDoubt(intent.op, str(error)))
        except HeadMoved:
            self._journal.write(Refused(intent.op))
        else:
            self._journal.write(Acked(intent.op, spots))

    async def _resolve(self, intent: Intent) -> None:
        """Append under an idempotent producer, again and again until it is acknowledged."""
        for _ in range(RETRY_TRIES_MAX):
            try:
                spots = await self._append(intent)
            except CatalogUnavailableError as error:
                self._journal.write(InDoubt(intent.op, str(error)))
                await asyncio.sleep(0.1)
            else:
                self._journal.write(Acked(intent.op, spots))
                return
        raise TimeoutError(f"{ledger.show_uid(intent.op)} could not be appended")

    async def _append(self, intent: Intent) -> list[Spot]:
        part = intent.parts[0]
        producer, sequence = intent.producer, intent.sequence
        match intent.kind:
            case "publish" | "producer-publish":
                found = await self._hr.publish(
                    subject_of(part.stream, part.keys[0]),
                    ledger.values_of(part)[0],
                    key=key_of(part.keys[0]),
                    producer=producer,
                    sequence=sequence,
                )
                return [Spot(found.stream, found.segment, found.offset, 1)]
            case "transaction" | "producer-transaction":
                async with self._hr.transaction(producer=producer, sequence=sequence) as tx:
                    for each in intent.parts:
                        tx.append(STREAMS[each.stream], ledger.batch_of(each))
                placed = tx.placed
            case "batch" | "producer-append" | "conditional":
                expected = None if intent.expected_head is None else {0: intent.expected_head}
                placed = await self._hr.append(
                    STREAMS[part.stream],
                    ledger.batch_of(part),
                    producer=producer,
                    sequence=sequence,
                    expected_heads=expected,
                )
        return [Spot(p.stream, p.segment, p.start, p.count) for p in placed]


async def until_open(work: Callable[[], Awaitable[None]]) -> None:
    """Run something that opens the catalog; a server that is just recovering gets time."""
    for attempt in range(OPEN_TRIES_MAX):
        try:
            await work()
            return
        except CatalogUnavailableError:
            if attempt == OPEN_TRIES_MAX - 1:
                raise
            await asyncio.sleep(0.25)


async def create_streams(hr: headrace.Headrace) -> None:
    """Whoever comes first makes them."""
    for name in STREAMS:
        await hr.create_stream(name, [f"{name}.>"], segments=SEGMENTS[name])


def stop_with_stdin(stop: asyncio.Event) -> None:
    """Set ``stop`` when standard input ends: the parent closed it, or is gone."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait, daemon=True).start()


async def main(arguments: list[str]) -> None:
    url, store, folder, writer, incarnation, seed, *death = arguments
    stop = asyncio.Event()
    stop_with_stdin(stop)

    async def work() -> None:
        async with headrace.open(url, store=store) as hr:
            await create_streams(hr)
            rng = random.Random(seed)
            if death:
                from tests.torture import dying

                dying.arm(cast(dying.Place, death[0]), int(death[1]), rng.random() * 0.003)
            await Writer(hr, Path(folder), int(writer), int(incarnation), rng, stop).run()

    await until_open(work)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
