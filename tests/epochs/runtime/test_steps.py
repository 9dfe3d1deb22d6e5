"""Rows of many epochs in one read: by steps, one by one, and over what was taken back."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace
from headrace.epochs.core.times import INTEGERS, PAIRS, Time, TimeShape
from headrace.epochs.runtime import read_ahead
from headrace.epochs.runtime.epoch_rows import EpochRows
from headrace.epochs.runtime.given import EpochFrontier, EpochPart
from headrace.epochs.runtime.publisher import EpochPublisher
from headrace.epochs.runtime.rows import distinct, distinct_of, lone_of, timed, together
from headrace.epochs.runtime.subscription import ROW_BYTES
from headrace.errors import EpochRowsError, InvalidEventError, LateEventError
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.events import Event, encode_blob, layout_of
from headrace.log.given import to_batch
from headrace.log.message import with_column

Epochs = dict[int, list[bytes]]
END = 24


def rows(times: list[int], values: list[bytes]) -> pa.Table:
    return pa.table(
        {
            "subject": [f"a.{number}" for number in range(len(times))],
            "value": pa.array(values, pa.binary()),
            "epoch": pa.array([[time] for time in times], pa.list_(pa.int64())),
        }
    )


async def fill(hr: headrace.Headrace, choose: Random) -> Epochs:
    """Commits of one epoch and of many, some taken back, one as a file; returns what counts."""
    counts: Epochs = defaultdict(list)
    await hr.create_stream("a", ["a.>"], segments=2, epochs=headrace.Epochs())
    async with hr.epoch_publisher("a", "x") as pub, hr.epoch_publisher("a", "y") as other:
        for first in range(0, END, 6):
            for number in range(4):
                size = choose.randrange(1, 9)
                times = [first + choose.choice((0, 1, 3, 5)) for _ in range(size)]
                values = [choose.randbytes(4) for _ in times]
                await pub.append(None, rows(times, values))
                for time, value in zip(times, values, strict=True):
                    counts[time].append(value)
                # What is taken back stands between, at the very same times.
                await other.append(first + choose.choice((0, 3)), rows_without(3))
                if number == 2:
                    await other.rollback()
            await other.rollback()
            if first == 12:
                large = [choose.randbytes(100_000) for _ in range(40)]
                await pub.append(first + 1, rows([first + 1] * 40, large))
                counts[first + 1] += large
            await pub.advance_to(first + 6)
            await other.advance_to(first + 6)
    return counts


def rows_without(count: int) -> pa.Table:
    return pa.table({"subject": ["a.gone"] * count, "value": [b"gone"] * count})


def test_rows_of_many_epochs_are_those_that_count(tmp_path: Path) -> None:
    async def main() -> None:
        async with headrace.open(tmp_path, housekeeping=False) as hr:
            counts = await fill(hr, Random(1))
            for most in (2, 1000):
                found: Epochs = defaultdict(list)
                async with hr.epochs("a", start="earliest", until=END) as epochs:
                    async for step in epochs.steps(max_epochs=most):
                        async for batch in step:
                            for time, value in pairs(batch):
                                found[time].append(value)
                        assert set(found) >= set(step.times)
                assert {time: sorted(each) for time, each in found.items()} == {
                    time: sorted(each) for time, each in counts.items()
                }
            one_by_one: Epochs = {}
            async with hr.epochs("a", start="earliest", until=END) as epochs:
                async for epoch in epochs:
                    told = [pair async for batch in epoch for pair in pairs(batch)]
                    assert {time for time, _ in told} == {epoch.time}
                    one_by_one[epoch.time] = sorted(value for _, value in told)
            assert one_by_one == {time: sorted(each) for time, each in counts.items()}

    asyncio.run(main())


def pairs(batch: pa.RecordBatch) -> list[tuple[int, bytes]]:
    times = [time for (time,) in batch.column("epoch").to_pylist()]
    return list(zip(times, batch.column("value").to_pylist(), strict=True))


def test_a_row_at_the_time_of_another_epoch_of_the_step_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with headrace.open(tmp_path, housekeeping=False) as hr:
            await hr.create_stream("a", ["a.>"], epochs=headrace.Epochs())
            async with hr.epoch_publisher("a", "x") as pub:
                await pub.append(0, rows_without(2))
                await pub.append(1, rows_without(2), advance_to=2)
            async with hr.epochs("a", start="earliest", until=2) as epochs:
                step = await anext(epochs.steps())
                swapped = [
                    type(one)(
                        one.stream, one.line, one.segment, one.start, one.end, one.rows, 1 - time, 1
                    )
                    for time, one in enumerate(step.references)
                ]
                with pytest.raises(EpochRowsError, match="offsets 0 to 2"):
                    async for _ in epochs.read_rows(step.times, swapped):
                        pass

    asyncio.run(main())


@pytest.mark.parametrize("times", [[3], [1, 1, 2, 5, 5], [5, 1, 5, 2, 1], list(range(100))])
def test_distinct_times_and_their_places(times: list[int]) -> None:
    known, places = distinct(INTEGERS, np.array(times, np.int64).reshape(-1, 1))
    assert list(known) == sorted(set(times))
    assert [known[place] for place in places] == times


def test_epochs_of_many_rows_that_are_interleaved_come_one_by_one(tmp_path: Path) -> None:
    """More than are read in one go: a load at a time, put apart as they come."""
    parts, size = 6, 1500

    async def main() -> None:
        async with headrace.open(tmp_path, housekeeping=False) as hr:
            await hr.create_stream("a", ["a.>"], segments=2, epochs=headrace.Epochs())
            async with hr.epoch_publisher("a", "x") as pub, pub.appender() as appender:
                for first in range(0, 9, 3):
                    for part in range(parts):
                        times = [first + row % 3 for row in range(3 * size)]
                        values = [b"%d/%d" % (part, row) for row in range(3 * size)]
                        await appender.append(None, rows(times, values))
                    await appender.advance_to(first + 3)
            async with hr.epochs("a", start="earliest", until=9) as epochs:
                async for epoch in epochs:
                    found = await epoch.table()
                    assert set(found.column("epoch").to_pylist()[0]) == {epoch.time}
                    wanted = range(epoch.time % 3, 3 * size, 3)
                    assert sorted(found.column("value").to_pylist()) == sorted(
                        b"%d/%d" % (part, row) for part in range(parts) for row in wanted
                    )
                    for number in (0, 1):  # in the order of offsets
                        offsets = [
                            at
                            for at, segment in zip(
                                found.column("offset").to_pylist(),
                                found.column("segment").to_pylist(),
                                strict=True,
                            )
                            if segment == number
                        ]
                        assert offsets == sorted(offsets)

    asyncio.run(main())


@pytest.mark.parametrize("parts", [[(3, 2)], [(1, 2), (4, 1), (1, 3)], [(5, 1), (2, 2), (9, 1)]])
def test_parts_of_one_time_each_are_as_their_rows(parts: list[tuple[int, int]]) -> None:
    single = [((time,), rows) for time, rows in parts]
    whole = np.array([[time] for time, rows in parts for _ in range(rows)], np.int64)
    known, places = distinct_of(INTEGERS, single)
    wanted, where = distinct(INTEGERS, whole)
    assert known == wanted
    assert places.tolist() == where.tolist()
    joined = together(single)
    assert joined == (3,) if len(parts) == 1 else np.array_equal(joined, whole)


@pytest.mark.parametrize("size", [4, 100_000], ids=["blobs", "a file"])
def test_commits_that_were_taken_back_lie_between_those_of_an_epoch(
    tmp_path: Path, size: int
) -> None:
    """They are read along; a file among them is a load of nothing else."""

    async def main() -> None:
        async with headrace.open(tmp_path, housekeeping=False) as hr:
            await hr.create_stream("a", ["a.>"], epochs=headrace.Epochs())
            async with hr.epoch_publisher("a", "x") as pub, hr.epoch_publisher("a", "y") as other:
                await pub.append(1, rows_without(1))
                await other.append(1, rows([1] * 40, [b"x" * size] * 40))
                await other.rollback()
                await pub.append(1, rows_without(1), advance_to=2)
                await other.advance_to(2)
            async with hr.epochs("a", start="earliest", until=2) as epochs:
                found = [(epoch.time, (await epoch.table()).num_rows) async for epoch in epochs]
            assert found == [(1, 2)]

    asyncio.run(main())


def test_epochs_of_one_commit_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that ended within a commit would have the next one read it again."""
    monkeypatch.setattr(read_ahead, "FIRST_ROWS", 10)
    monkeypatch.setattr(read_ahead, "AHEAD_ROWS", 10)
    passes: list[list[int]] = []
    by_time = EpochRows.by_time

    def counted(self: EpochRows, references: Any, times: Any, **how: Any) -> Any:
        passes.append(list(times))
        return by_time(self, references, times, **how)

    monkeypatch.setattr(EpochRows, "by_time", counted)

    async def main() -> None:
        async with headrace.open(tmp_path, housekeeping=False) as hr:
            await hr.create_stream("a", ["a.>"], segments=2, epochs=headrace.Epochs())
            async with hr.epoch_publisher("a", "x") as pub:
                for first in range(0, 9, 3):
                    times = [first] * 4 + [first + 1] * 4 + [first + 2] * 4
                    await pub.append(None, rows(times, [b"%d" % time for time in times]))
                await pub.advance_to(9)
            async with hr.epochs("a", start="earliest", until=9) as epochs:
                found = {epoch.time: [batch async for batch in epoch] async for epoch in epochs}
            values = {
                time: [value for batch in each for value in batch.column("value").to_pylist()]
                for time, each in found.items()
            }
            assert values == {time: [b"%d" % time] * 4 for time in range(9)}

    asyncio.run(main())
    assert passes == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_step_ends_where_a_commit_does_if_its_rows_are_too_many(tmp_path: Path) -> None:
    """Else the commit is read twice; the number of epochs that was asked for is kept to."""

    async def main() -> None:
        async with headrace.open(tmp_path, housekeeping=False) as hr:
            await hr.create_stream("a", ["a.>"], segments=2, epochs=headrace.Epochs())
            async with hr.epoch_publisher("a", "x") as pub:
                for first in range(0, 9, 3):
                    times = [first] * 4 + [first + 1] * 4 + [first + 2] * 4
                    await pub.append(None, rows(times, [b"%d" % time for time in times]))
                await pub.advance_to(9)

            async def steps(**limits: int) -> list[tuple[Time, ...]]:
                found = []
                async with hr.epochs("a", start="earliest", until=9) as epochs:
                    async for step in epochs.steps(**limits):
                        values = (await step.table()).column("value").to_pylist()
                        wanted = [str(time).encode() for time in step.times for _ in range(4)]
                        assert sorted(values) == wanted
                        assert step.rows == len(wanted)
                        assert step.resume == (int(str(step.times[-1])) + 1,)
                        found.append(step.times)
                return found

            by_commit: list[tuple[Time, ...]] = [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
            for epochs_that_fit in (3, 4, 5):
                assert await steps(max_bytes=ROW_BYTES * 4 * epochs_that_fit) == by_commit
            # Half of a step and more would be left out.
            assert (await steps(max_bytes=ROW_BYTES * 4 * 2))[:2] == [(0, 1), (2,)]
            assert await steps(max_bytes=1) == [(time,) for time in range(9)]
            assert await steps(max_epochs=4) == [(0, 1, 2, 3), (4, 5, 6, 7), (8,)]
            assert await steps(max_epochs=1) == [(time,) for time in range(9)]

    asyncio.run(main())


def test_an_epoch_is_whole_across_a_split_and_a_half_compacted_one(tmp_path: Path) -> None:
    """One epoch alone, half of it in a file and in three segments; and with others around it."""

    async def part(pub: EpochPublisher, time: int, first: int, count: int) -> None:
        for number in range(first, first + count):
            await pub.publish(time, "a.b", b"%d" % number, key=str(number))

    async def main() -> None:
        async with headrace.open(tmp_path, housekeeping=False) as hr:
            await hr.create_stream("a", ["a.>"], segments=1, epochs=headrace.Epochs())
            policy = CompactionPolicy(min_batches=2, min_age_s=0)
            async with (
                hr.epoch_publisher("a", "x") as pub,
                hr.epochs("a", mode="streaming") as parts,
            ):
                await part(pub, 5, 0, 20)
                assert (await hr.in_thread(hr.log.compact, "a", policy)).files == 1
                await hr.split("a", 0)
                await part(pub, 5, 20, 20)
                await pub.advance_to(6)
                found: list[bytes] = []
                async for item in parts:
                    if isinstance(item, EpochFrontier) and item.frontier == (6,):
                        break
                    if isinstance(item, EpochPart):
                        found += [value async for batch in item for _, value in pairs(batch)]
                assert sorted(map(int, found)) == list(range(40))
                async with hr.epochs("a", start="earliest", until=6) as alone:
                    epoch = await anext(aiter(alone))
                    batches = [batch async for batch in epoch]
                    values = [int(value) for batch in batches for _, value in pairs(batch)]
                    assert sorted(values) == list(range(40))
                    assert len(batches) > 1
                await part(pub, 6, 40, 5)
                await pub.advance_to(7)
            for most in (1, 2):
                async with hr.epochs("a", start="earliest", until=7) as epochs:
                    steps = [await step.table() async for step in epochs.steps(max_epochs=most)]
                assert [step.num_rows for step in steps] == ([40, 5] if most == 1 else [45])

    asyncio.run(main())


@pytest.mark.parametrize(("shape", "time"), [(INTEGERS, 7), (PAIRS, (3, 2**40))])
@pytest.mark.parametrize("key", [None, "k", "ä"])
def test_a_lone_event_is_encoded_as_arrow_encodes_it(
    shape: TimeShape, time: Time, key: str | None
) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    event = Event(subject="a.bü", value=b"v" * 13, key=key, timestamp=when)
    lone = lone_of(shape, event, time)
    assert lone is not None
    single, row = lone
    batch, times = timed(shape, to_batch([event]), time)
    assert (row, single.layout) == (times, layout_of(with_column(batch, row).schema))
    assert single.blob == bytes(encode_blob(with_column(batch, row)))
    assert lone_of(shape, [event], time) is None
    assert lone_of(shape, Event(subject="a.b", value=b"", headers={"h": b"x"}), time) is None
    assert lone_of(shape, event, None) is None


def test_a_lone_event_goes_where_its_key_belongs_and_nowhere_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with headrace.open(tmp_path, housekeeping=False) as hr:
            await hr.create_stream("a", ["a.>", "b.*"], segments=4, epochs=headrace.Epochs())
            async with hr.epoch_publisher("a", "x") as pub:
                for number in range(20):
                    event = Event(subject="b.c", value=b"%d" % number, key=f"k{number}")
                    (lone,) = await pub.append(0, event)
                    (listed,) = await pub.append(0, [event])
                    assert lone.segment == listed.segment
                for subject in ("c.d", "a", "b.c.d"):
                    with pytest.raises(InvalidEventError, match=f"not '{subject}'"):
                        await pub.publish(0, subject, b"v")
                await pub.advance_to(2)
                with pytest.raises(LateEventError, match="1 row"):
                    await pub.publish(1, "b.c", b"late")
                headed = await pub.publish(2, "b.c", b"h", headers={"h": "x"})
                plain = await pub.publish(2, "b.c", b"p")
                await pub.advance_to(3)
            async with hr.epochs("a", start="earliest", until=3) as epochs:
                tables = [await epoch.table() async for epoch in epochs]
            assert [table.num_rows for table in tables] == [40, 2]
            assert {headed.segment, plain.segment} == set(tables[1].column("segment").to_pylist())

    asyncio.run(main())
