"""An administrator: splits, merges, compacts, trims, sweeps, and has members step down."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import headrace
from headrace.errors import HeadraceError
from headrace.log.compact_policy import CompactionPolicy
from tests.torture.histories.calls import Calls, GivenUp
from tests.torture.histories.records import GROUP, IN, SIDE, Journal, Spot, Trimming, now_ns

SEGMENTS_MAX = 6
POLICY = CompactionPolicy(min_batches=2, min_age_s=0)


class Administrator:
    def __init__(self, hr: headrace.Headrace, kind: str, journal: Journal, calls: Calls) -> None:
        self._hr = hr
        self._journal = journal
        self._calls = calls
        self._rng = calls.rng
        # The segments of a stream with partitions stay as they are.
        self._scaled = (SIDE,) if kind == "static" else (IN, SIDE)
        self._works = [self._scale, self._scale, self._compact, self._trim, self._sweep]
        if kind == "static":
            self._works.append(self._step_down)

    async def run(self) -> None:
        while not self._calls.calm:
            work = self._rng.choice(self._works)
            self._journal.note(work.__name__)
            try:
                await self._calls.call(work)
            except (GivenUp, HeadraceError) as error:
                self._journal.note(f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._rng.random() * 0.2)
        self._journal.note(f"given up: {self._calls.given_up}")

    async def _scale(self) -> None:
        stream = self._rng.choice(self._scaled)
        found = await self._hr.stream(stream)
        segments = sorted(
            (segment for segment in found.segments if segment.sealed_us is None),
            key=lambda segment: segment.range_lo,
        )
        if len(segments) < SEGMENTS_MAX and self._rng.random() < 0.5:
            await self._hr.split(stream, self._rng.choice(segments).number)
        elif len(segments) > 1:
            place = self._rng.randrange(len(segments) - 1)
            await self._hr.merge(stream, [s.number for s in segments[place : place + 2]])

    async def _compact(self) -> None:
        await self._hr.compact(self._rng.choice((IN, SIDE)), POLICY)

    async def _trim(self) -> None:
        """Trim what was read, so that the checker knows what was there."""
        events: list[tuple[Spot, str]] = []
        before: dict[int, int] = {}
        async for batch in self._hr.read(SIDE, limit=self._rng.randrange(200)):
            columns = (batch.column(name).to_pylist() for name in ("segment", "offset", "value"))
            for segment, offset, value in zip(*columns, strict=True):
                events.append((Spot(SIDE, segment, offset), value.decode().strip()))
                before[segment] = max(before.get(segment, 0), offset + 1)
        self._journal.write(Trimming(now_ns(), events))
        await self._hr.trim(SIDE, before)

    async def _sweep(self) -> None:
        await self._hr.sweep()

    async def _step_down(self) -> None:
        await self._hr.groups.step_down(IN, GROUP, f"m{self._rng.randrange(2)}")


async def run(url: str, kind: str, name: str, folder: Path, seed: str) -> None:
    calls = Calls(folder, random.Random(seed))
    async with headrace.open(url, housekeeping=False) as hr:
        journal = Journal(folder / f"{name}.journal")
        await Administrator(hr, kind, journal, calls).run()
