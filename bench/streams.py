"""Ten thousand streams: creating one more, and publishing a subject that is new there."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import headrace
from bench.harness import Result, at_least, at_most, folder, timed
from bench.publish import WARM_UP, bare_log, bare_row, stored_blobs

MS = 1000.0


async def publish_ms(hr: headrace.Headrace, subjects: Iterable[str]) -> float:
    """The median of publishes that wait for one another."""
    return statistics.median(await _publish_times(hr, subjects)) * MS


async def _publish_times(hr: headrace.Headrace, subjects: Iterable[str]) -> list[float]:
    times = []
    for subject in subjects:
        began = time.perf_counter()
        await hr.publish(subject, b"x")
        times.append(time.perf_counter() - began)
    return times


async def streams(scale: float) -> list[Result]:
    """Creating streams where many are, and a subject that is new there."""
    count = int(10_000 * scale)
    last = max(1, min(200, count // 2))
    place = Path(folder())
    async with headrace.open(place) as hr:
        for number in range(count - last):
            await hr.create_stream(f"s{number}", [f"s{number}.>"])
        began, used = time.perf_counter(), time.process_time()
        for number in range(count - last, count):
            await hr.create_stream(f"s{number}", [f"s{number}.>"])
        rate = last / (time.perf_counter() - began)
        cpu_ms = (time.process_time() - used) / last * MS
        detail, new_ms = await _new_subjects(hr, place, scale)
    name = f"publish a new subject beside {count:,} streams"
    return [
        at_least(f"create the {count:,}th stream", rate, 300, "streams/s", f"CPU {cpu_ms:.2f} ms"),
        at_most(name, new_ms, 0.5, "ms", detail),
    ]


async def _new_subjects(hr: headrace.Headrace, place: Path, scale: float) -> tuple[str, float]:
    """Milliseconds of a publish of a new subject, and what others take that take turns with it.

    The floor is a bare commit of the same rows to a file beside the catalog's.
    """
    await publish_ms(hr, [f"s{number}.a" for number in range(20)])
    times: dict[str, list[float]] = {}
    with contextlib.closing(bare_log(place.parent / "bare.db")) as connection:
        (blob,) = await asyncio.to_thread(stored_blobs, place, 1)
        for _ in range(int(WARM_UP * scale)):
            bare_row(connection, blob)
        for turn in range(max(1, int(20 * scale))):
            bare = [timed(lambda: bare_row(connection, blob)) for _ in range(20)]
            times.setdefault("a bare commit", []).extend(bare)
            for name, subjects in {
                "new": [f"s1.new.{turn}.{number}" for number in range(20)],
                "a known subject": ["s1.a"] * 20,
                "new ones in 20 streams": [f"s{number}.new.{turn}" for number in range(20)],
            }.items():
                times.setdefault(name, []).extend(await _publish_times(hr, subjects))
    found = {name: statistics.median(each) * MS for name, each in times.items()}
    new_ms = found.pop("new")
    return ", ".join(f"{name} {each_ms:.2f} ms" for name, each_ms in found.items()), new_ms
