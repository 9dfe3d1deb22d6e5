"""Whole epochs out of the progress log: starts, ends, tokens, rows taken back, damage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.catalog.streams import Epochs
from headrace.epochs.core.times import TimeShape
from headrace.epochs.runtime import starting
from headrace.epochs.runtime.given import EpochFrontier, EpochPart, EpochTakenBack, WholeEpoch
from headrace.epochs.runtime.looking import SeenEpoch, whole_epochs
from headrace.epochs.runtime.progress_log import epochs_of
from headrace.errors import (
    EpochRowsError,
    EpochsAbortedError,
    InvalidConfigError,
    InvalidPositionError,
    InvalidTokenError,
    NoEpochsError,
    TimeShapeError,
)
from tests.epochs.runtime.writer import Writer


async def stream(hr: headrace.Headrace, name: str = "orders", length: int = 0) -> Writer:
    await hr.create_stream(name, subjects=[f"{name}.>"], segments=3, epochs=Epochs(length=length))
    return Writer(hr.log, name)


async def given(
    hr: headrace.Headrace, *names: str, **options: Any
) -> list[tuple[Any, list[bytes]]]:
    """All that a bounded or closed subscription gives."""
    found = []
    async with hr.epochs(names if len(names) > 1 else names[0], **options) as epochs:
        async for epoch in epochs:
            found.append((epoch.time, sorted((await epoch.table())["value"].to_pylist())))
    if len(names) == 1 and options.keys() <= {"start", "until"}:
        looked = list(look(hr, names[0], **options))
        assert [(one.time, sorted(row.value for row in one.rows)) for one in looked] == found
    return found


def look(
    hr: headrace.Headrace, name: str, start: Any = "open", until: Any = None
) -> Iterator[SeenEpoch]:
    """What a look shows, which needs no event loop."""
    shape = TimeShape(epochs_of(hr.log.stream(name)).length)
    end = () if until is None else starting.frontier_of(shape, until, "until")
    return whole_epochs(hr.log, name, start, end)


async def test_every_epoch_comes_whole_and_once(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        writer.publish("eu", [(1, b"a"), (2, b"early")])
        writer.publish("eu", [(1, b"b")], advance_to=2)
        writer.publish("eu", [(5, b"c"), (2, b"d")], advance_to=9)
        writer.publish("eu", [(9, b"open")])
        wanted = [(1, [b"a", b"b"]), (2, [b"d", b"early"]), (5, [b"c"])]
        assert await given(hr, "orders", start="earliest", until=9) == wanted
        assert await given(hr, "orders", start=2, until=5) == wanted[1:2]
        writer.close("eu")
        assert await given(hr, "orders", start="earliest") == [*wanted, (9, [b"open"])]
        assert await given(hr, "orders", start="open") == []


async def test_a_replay_holds_the_next_epochs_and_not_all_that_was_read(tmp_path: Path) -> None:
    lines, each = 12, 1_000
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        for first in range(0, lines * each, each):
            rows = [(time, b"x") for time in range(first, first + each)]
            writer.publish("eu", rows, advance_to=first + each)
        async with hr.epochs("orders", start="earliest", until=lines * each) as epochs:
            held = [len(epochs._items) async for _ in epochs]
    assert len(held) == lines * each
    assert max(held) < 4 * each


async def test_rows_that_were_taken_back_are_in_no_epoch(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        writer.publish("eu", [(1, b"kept"), (2, b"gone")], advance_to=2)
        writer.publish("us", [(2, b"other")])
        writer.publish("eu", [(3, b"gone")])
        writer.publish("eu", [(2, b"again")], take_back=True)
        for name in ("eu", "us"):
            writer.close(name)
        assert await given(hr, "orders", start="earliest") == [
            (1, [b"kept"]),
            (2, [b"again", b"other"]),
        ]
        for start in (0, 1, 2, 3):
            times = [time for time, _ in await given(hr, "orders", start=start)]
            assert times == [time for time in (1, 2) if time >= start]


@pytest.mark.parametrize("length", [0, 2])
async def test_a_commit_with_kept_and_taken_back_rows_is_read_in_one_pass(
    tmp_path: Path, length: int
) -> None:
    """Both epochs are wanted, and of that commit only one of them."""

    def at(time: int) -> Any:
        return (time, 0) if length else time

    async with headrace.open(tmp_path) as hr:
        await hr.create_stream("orders", subjects=["orders.>"], epochs=Epochs(length=length))
        writer = Writer(hr.log, "orders")
        for first in (1, 3):
            mixed = [(at(first + n % 2), b"%d" % n) for n in range(6)]
            writer.publish("eu", mixed, advance_to=at(first + 1))
            writer.publish("eu", [(at(first + 1), b"again")], take_back=True)
            writer.publish("eu", [], advance_to=at(first + 2))
        async with hr.epochs("orders", start="earliest", until=at(5)) as epochs:
            found = [(step.times, await step.table()) async for step in epochs.steps()]
        ((times, table),) = found
        assert times == (at(1), at(2), at(3), at(4))
        assert table["value"].to_pylist() == [b"0", b"2", b"4", b"again"] * 2


async def test_a_token_of_the_last_epoch_before_until_skips_nothing(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        writer.publish("eu", [(time, b"%d" % time) for time in (3, 4, 6)], advance_to=9)
        async with hr.epochs("orders", start="earliest", until=5) as epochs:
            tokens = [(epoch.time, epoch.token) async for epoch in epochs]
            assert epochs.frontier == (5,)
            assert epochs.end == "reached"
        assert [time for time, _ in tokens] == [3, 4]
        for token in (tokens[-1][1], epochs.token):
            assert await given(hr, "orders", start=token, until=9) == [(6, [b"6"])]


async def test_a_token_goes_on_between_any_two_epochs(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr, length=2)
        writer.publish("eu", [((n % 3, n // 3), b"%d" % n) for n in range(9)])
        writer.close("eu")
        whole = await given(hr, "orders", start="earliest")
        assert len(whole) == 9
        for stop in range(9):
            async with hr.epochs("orders", start="earliest") as epochs:
                given_epochs = [epoch async for epoch in epochs]
            assert await given(hr, "orders", start=given_epochs[stop].token) == whole[stop + 1 :]


async def test_several_streams_are_merged(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        orders, paid = await stream(hr), await stream(hr, "paid")
        orders.publish("a", [(1, b"o1"), (2, b"o2")], advance_to=5)
        async with hr.epochs(["orders", "paid"], start="earliest") as epochs:
            waiting = asyncio.ensure_future(anext(aiter(epochs)))
            await asyncio.sleep(0)
            paid.publish("b", [(1, b"p1")], advance_to=2)
            epoch = await asyncio.wait_for(waiting, 30)
            assert (epoch.time, sorted((await epoch.table())["value"].to_pylist())) == (
                1, [b"o1", b"p1"]
            )  # fmt: skip
            token = epoch.token
            assert epochs.frontier == (2,)
        orders.close("a")
        paid.close("b")
        assert await given(hr, "orders", "paid", start=token) == [(2, [b"o2"])]
        with pytest.raises(InvalidTokenError, match="it is of orders, paid"):
            await given(hr, "orders", start=token)


async def test_what_comes_while_it_waits_is_seen(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr, headrace.open(tmp_path) as other:
        await stream(hr)
        writer = Writer(other.log, "orders")
        async with hr.epochs("orders") as epochs:
            waiting = asyncio.ensure_future(epochs.wait_for(3))
            for time in range(3):
                writer.publish("eu", [(time, b"x")], advance_to=time + 1)
            await asyncio.wait_for(waiting, 30)
            assert epochs.frontier == (3,)
            it = aiter(epochs)
            assert [(await anext(it)).time for _ in range(3)] == [0, 1, 2]
            writer.abort("eu", "the source is broken")
            with pytest.raises(EpochsAbortedError, match="the source is broken") as raised:
                await asyncio.wait_for(anext(it), 30)
            assert (raised.value.frontier, epochs.end) == ([3], "aborted")


async def test_now_leaves_out_what_has_begun_and_open_does_not(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        writer.publish("eu", [(1, b"complete"), (3, b"begun")], advance_to=2)
        async with hr.epochs("orders", start="now") as now, hr.epochs("orders") as from_open:
            writer.publish("eu", [(3, b"rest"), (4, b"new")])
            writer.close("eu")
            assert [epoch.time async for epoch in now] == [4]
            assert [(e.time, e.rows) async for e in from_open] == [(3, 2), (4, 1)]
            assert (now.end, from_open.frontier) == ("closed", ())


async def test_streaming_tells_frontiers_rows_and_what_was_taken_back(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        writer.publish("eu", [(1, b"a")], advance_to=1)
        writer.publish("eu", [(1, b"b")], take_back=True)
        writer.close("eu")
        async with hr.epochs("orders", mode="streaming", start="earliest") as epochs:
            items = [item async for item in epochs]
            first, a, one, back, b, last = items
            assert isinstance(first, EpochFrontier)
            assert isinstance(a, EpochPart)
            assert (first.frontier, a.time, a.publisher) == ((0,), 1, "eu")
            assert isinstance(one, EpochFrontier)
            assert back == EpochTakenBack("orders", "eu", (1,))
            assert (await b.table())["value"].to_pylist() == [b"b"]
            assert isinstance(last, EpochFrontier)
            assert last.frontier == ()


async def test_steps_join_small_epochs_up_to_their_limits(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        for time in range(50):
            writer.publish("eu", [(time, b"%d" % n) for n in range(3)])
        writer.close("eu")
        async with hr.epochs("orders", start="earliest") as epochs:
            steps = [step async for step in epochs.steps(max_epochs=20)]
            assert [len(step.times) for step in steps] == [20, 20, 10]
            assert [(await step.table()).num_rows for step in steps] == [60, 60, 30]
        async with hr.epochs("orders", start=steps[0].token) as epochs:
            first = await anext(epochs.steps(max_bytes=1))
            assert first.times == (20,)
        async with hr.epochs("orders", start="earliest", segments=[0]) as one:
            rows = sum([epoch.rows async for epoch in one])
        async with hr.epochs("orders", start="earliest", segments=[1, 2]) as two:
            assert rows + sum([epoch.rows async for epoch in two]) == 150


async def test_an_epoch_with_other_rows_than_told_is_an_error_that_names_the_place(
    tmp_path: Path,
) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        writer.publish("eu", [(1, b"a"), (2, b"b")])
        wrong = writer.lines[-1].spans[0]
        writer._append([headrace.Event(subject="orders.x", value=b"", epoch=(7,))])
        writer.publish("eu", [(1, b"c"), (2, b"c")])
        span = type(wrong)(wrong.segment, wrong.start, wrong.end, ((0, 1), (1, 5)))
        writer.publishers["eu"], line = writer.publishers["eu"], writer.lines[-1]
        from headrace.epochs.core.commits import Publish, Step

        writer._decide("eu", Publish("eu", 1, (Step((1, 2), 6),), (1, 2), (span,)))
        writer.close("eu")
        assert line is not None
        with pytest.raises(EpochRowsError, match=f"segment {wrong.segment}, offsets"):
            list(look(hr, "orders", start=2))
        async with hr.epochs("orders", start=2) as epochs:
            async for epoch in epochs:
                with pytest.raises(EpochRowsError, match=f"segment {wrong.segment}, offsets"):
                    await epoch.table()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "half"}, InvalidConfigError),
        ({"start": "later"}, InvalidPositionError),
        ({"start": "A" * 40}, InvalidTokenError),
        ({"start": (1, 2)}, InvalidPositionError),
        ({"start": -1}, TimeShapeError),
        ({"start": True}, TimeShapeError),
        ({"start": 5, "until": 4}, InvalidPositionError),
        ({"until": ()}, InvalidPositionError),
        ({"start": (2, 2**63 - 1)}, TimeShapeError),
    ],
)
async def test_a_bad_start_is_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    async with headrace.open(tmp_path) as hr:
        await stream(hr)
        with pytest.raises(error):
            await given(hr, "orders", **options)


async def test_streams_without_epochs_or_of_other_shapes_are_refused(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        writer = await stream(hr)
        await stream(hr, "pairs", length=2)
        await hr.create_stream("plain", subjects=["plain.>"])
        with pytest.raises(NoEpochsError):
            await given(hr, "plain")
        with pytest.raises(TimeShapeError, match="cannot be merged"):
            await given(hr, "orders", "pairs")
        writer.publish("eu", [(1, b"x")])
        writer.close("eu")
        async with hr.epochs("orders", start="earliest") as epochs:
            (epoch,) = [epoch async for epoch in epochs]
        assert isinstance(epoch, WholeEpoch)
        await hr.delete_stream("orders")
        await stream(hr)
        with pytest.raises(InvalidTokenError, match="was deleted"):
            await given(hr, "orders", start=epoch.token)
