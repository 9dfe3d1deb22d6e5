"""A publisher: several lanes at once, each in one of the ways to write."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pyarrow as pa

import headrace
from headrace import Event
from headrace.catalog.producers import Placed
from headrace.errors import HeadraceError
from tests.torture.histories.calls import Calls, GivenUp, told_of
from tests.torture.histories.records import (
    IN,
    SIDE,
    Journal,
    Sent,
    Spot,
    Told,
    Writing,
    Written,
    now_ns,
    read_journal,
)

KEYS = 12
LANES = 4
LARGE_BYTES = 300_000


def event_of(sent: Sent, padding: int = 0) -> Event:
    return Event(
        subject=f"{sent.stream}.x",
        key=sent.key,
        value=sent.name.encode() + b" " * padding,
    )


def spots_of(placed: Iterable[Placed]) -> list[Spot]:
    return [
        Spot(part.stream, part.segment, part.start + row)
        for part in placed
        for row in range(part.count)
    ]


class Publisher:
    """One process; ``slot`` is its place, which it shares with those before and after it."""

    def __init__(self, hr: headrace.Headrace, slot: str, name: str, folder: Path, calls: Calls):
        self._hr = hr
        self._slot = slot
        self._name = name
        self._folder = folder
        self._calls = calls
        self._rng: random.Random = calls.rng
        self._journal = Journal(folder / f"{name}.journal")
        self._number = 0
        self._sequence = 0

    async def run(self) -> None:
        await self._repeat_of_the_dead()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(LANES):
                tasks.create_task(self._lane())
            tasks.create_task(self._producer_lane())
            tasks.create_task(self._appender_lane())
        self._journal.note(f"given up: {self._calls.given_up}")

    async def _lane(self) -> None:
        ways = (self._publish, self._append, self._arrow, self._transaction)
        while not self._calls.calm:
            await self._rng.choices(ways, (8, 3, 2, 3))[0]()
            await self._breathe()

    async def _breathe(self) -> None:
        await asyncio.sleep(self._rng.random() ** 2 * 0.03)

    # -- what is written ----------------------------------------------------------------

    def _events(self, stream: str, count: int) -> list[Sent]:
        found = []
        for _ in range(count):
            self._number += 1
            key = f"k{self._rng.randrange(KEYS)}"
            found.append(Sent(stream, key, f"{self._name}-{self._number}"))
        return found

    async def _write(
        self,
        way: str,
        events: list[Sent],
        make: Callable[[], Awaitable[list[Spot] | None]],
        sequence: int = -1,
    ) -> Told:
        """Write down, ask, and write down what was told."""
        call = events[0].name
        self._journal.write(Writing(now_ns(), call, way, events, sequence))
        spots: list[Spot] | None = None
        told: Told = "done"
        said = ""
        try:
            spots = await self._calls.call(make)
        except (GivenUp, HeadraceError) as error:
            told, said = told_of(error), f"{type(error).__name__}: {error}"
            if told == "refused":
                raise
        self._journal.write(Written(now_ns(), call, told, spots, said))
        return told

    async def _publish(self) -> None:
        events = self._events(IN, 1)
        event = event_of(events[0])

        async def make() -> list[Spot]:
            at = await self._hr.publish(event.subject, event.value, key=event.key)
            return [Spot(at.stream, at.segment, at.offset)]

        await self._write("publish", events, make)

    async def _append(self) -> None:
        events = self._events(self._rng.choice((IN, SIDE)), self._rng.randint(1, 12))
        given = [event_of(event) for event in events]

        async def make() -> list[Spot]:
            return spots_of(await self._hr.append(events[0].stream, given))

        await self._write("append", events, make)

    async def _arrow(self) -> None:
        large = self._rng.random() < 0.1
        events = self._events(SIDE if large else IN, 5 if large else self._rng.randint(1, 40))
        given = [event_of(event, LARGE_BYTES if large else 0) for event in events]
        table = pa.table(
            {
                "subject": [event.subject for event in given],
                "key": [event.key for event in given],
                "value": pa.array([event.value for event in given], pa.binary()),
            }
        )

        async def make() -> list[Spot]:
            return spots_of(await self._hr.append(events[0].stream, table))

        await self._write("arrow", events, make)

    async def _transaction(self) -> None:
        events = self._events(IN, self._rng.randint(1, 4)) + self._events(SIDE, 2)
        await self._write("transaction", events, lambda: self._commit(events))

    async def _commit(self, events: list[Sent], sequence: int = -1) -> list[Spot]:
        named = {} if sequence < 0 else {"producer": self._slot, "sequence": sequence}
        async with self._hr.transaction(**named) as tx:  # type: ignore[arg-type]
            for event in map(event_of, events):
                tx.publish(event.subject, event.value, key=event.key)
        return spots_of(tx.placed)

    # -- idempotent producers -----------------------------------------------------------

    async def _producer_lane(self) -> None:
        while not self._calls.calm:
            events = self._events(IN, 2) + self._events(SIDE, self._rng.randint(0, 2))
            self._sequence += 1
            await self._until_done(events, self._sequence)
            await self._breathe()

    async def _until_done(self, events: list[Sent], sequence: int) -> None:
        while await self._write(
            "producer", events, lambda: self._commit(events, sequence), sequence
        ) in ("given up", "unknown"):
            await self._breathe()

    async def _repeat_of_the_dead(self) -> None:
        """Send again what those before in this place did not hear of."""
        paths = sorted(
            self._folder.glob(f"{self._slot}.*.journal"),
            key=lambda path: int(path.suffixes[-2][1:]),
        )
        open_calls: dict[str, Writing] = {}
        for record in (record for path in paths for record in read_journal(path)):
            match record:
                case Writing(sequence=sequence) if sequence > 0:
                    open_calls[record.call] = record
                    self._sequence = max(self._sequence, sequence)
                case Written(told="done"):
                    open_calls.pop(record.call, None)
        for call in open_calls.values():
            await self._until_done(call.events, call.sequence)

    # -- appenders ----------------------------------------------------------------------

    async def _appender_lane(self) -> None:
        while not self._calls.calm:
            taken: list[str] = []
            try:
                async with self._hr.appender(IN) as appender:
                    for _ in range(self._rng.randint(1, 8)):
                        events = self._events(IN, self._rng.randint(1, 6))
                        taken.append(events[0].name)
                        await self._take(appender, events)
                        await self._breathe()
                    if self._rng.random() < 0.5:
                        await self._calls.call(appender.flush)
                        self._flushed(taken)
                self._flushed(taken)
            except GivenUp:
                self._journal.note("an appender was given up")
            except HeadraceError as error:
                self._journal.note(f"an appender failed: {error}")

    async def _take(self, appender: headrace.Appender, events: list[Sent]) -> None:
        call = events[0].name
        self._journal.write(Writing(now_ns(), call, "appender", events))
        given = [event_of(event) for event in events]
        try:
            await self._calls.call(lambda: appender.append(given))
        except BaseException as error:
            self._journal.write(Written(now_ns(), call, "given up", None, repr(error)))
            raise
        self._journal.write(Written(now_ns(), call, "taken"))

    def _flushed(self, taken: list[str]) -> None:
        for call in taken:
            self._journal.write(Written(now_ns(), call, "done"))
        taken.clear()


async def run(url: str, slot: str, name: str, folder: Path, seed: str) -> None:
    calls = Calls(folder, random.Random(seed))
    async with headrace.open(url) as hr:
        await Publisher(hr, slot, name, folder, calls).run()
