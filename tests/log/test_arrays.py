"""Arrow arrays from lists: the same as Arrow's own, and without pandas."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import AppendTooLargeError
from headrace.log import arrays, limits
from headrace.log.events import Event, batch_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(st.none() | TEXTS))
def test_texts_are_those_of_arrow(values: list[str | None]) -> None:
    found = arrays.texts(values, pa.string())
    found.validate(full=True)
    assert found.equals(pa.array(values, pa.string()))


@given(st.lists(st.none() | st.binary(max_size=12)))
def test_binaries_are_those_of_arrow(values: list[bytes | None]) -> None:
    found = arrays.binaries(values, pa.binary())
    found.validate(full=True)
    assert found.equals(pa.array(values, pa.binary()))


@given(st.lists(st.none() | st.lists(st.integers(0, 2**63 - 1), max_size=4)))
def test_lists_are_those_of_arrow(values: list[list[int] | None]) -> None:
    items = arrays.integers([one for each in values if each for one in each], pa.int64())
    counts = [None if each is None else len(each) for each in values]
    found = arrays.lists(counts, items, pa.list_(pa.int64()))
    found.validate(full=True)
    assert found.equals(pa.array(values, pa.list_(pa.int64())))


def test_a_batch_of_events_has_all_that_was_given() -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    events = [
        Event(
            subject="a.b", value=b"1", key="ä", headers={"h": "text", "i": b"\x00"}, timestamp=when
        ),
        Event(subject="a.c", value=b"", key="", epoch=(1, 2)),
        Event(subject="a.d", value=b"3"),
    ]
    batch = batch_of(events, 7)
    batch.validate(full=True)
    assert batch.column("key").to_pylist() == ["ä", "", None]
    assert batch.column("epoch").to_pylist() == [None, [1, 2], None]
    both = [{"key": "h", "value": b"text"}, {"key": "i", "value": b"\x00"}]
    assert batch.column("headers").to_pylist() == [both, None, None]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1767312000000000, 7, 7]


def test_what_offsets_cannot_hold_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "APPEND_BYTES_MAX", 3)
    with pytest.raises(AppendTooLargeError):
        arrays.texts(["ab", "cd"], pa.string())


PROGRAM = """
import asyncio, sys, tempfile
import headrace
from headrace import Event

async def events(consumer, count):
    async for delivery in consumer:
        await delivery.ack()
        count -= 1
        if not count:
            return

async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with headrace.open(folder) as hr:
            await hr.create_stream("s", ["*.s.>"], partitions=8)
            rows = [Event(subject=f"{n % 8}.s.{n}", value=b"x", key=f"{n}" if n % 2 else None,
                          headers={"h": b"1"} if n % 3 else None) for n in range(500)]
            await hr.append("s", rows)
            async for batch in hr.read("s"):
                await hr.append("s", batch.drop_columns(["segment", "offset"]))
            await hr.groups.create_static("s", "g", max_members=8, members=["m"], filter="*.s.*")
            async with hr.join("s", "g", member="m") as member:
                await events(member, 50)
            async with hr.session("w") as session:
                await session.subscribe("$share/a/*.s.*")
                await hr.append("s", rows)
                await events(session, 50)
            group = await hr.reader_groups.create("r", streams=["s"])
            async with group.reader("r1") as reader:
                await events(reader, 50)

asyncio.run(main())
print("pandas" in sys.modules)
"""


def test_appending_reading_and_consuming_load_no_pandas() -> None:
    """Where it is installed, that would stop the event loop for half a second."""
    pytest.importorskip("pandas")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("False", "")
