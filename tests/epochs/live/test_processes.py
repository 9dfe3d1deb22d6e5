"""A publisher in a process of its own, killed for real."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.epochs.live.items import LiveEpoch
from headrace.errors import EpochsAbortedError
from tests.epochs.live.support import programs, run, values
from tests.net.certificates import Authority
from tests.support import ROOT, SOURCES


def test_a_killed_publisher_is_aborted_by_name_and_no_epoch_was_half(tmp_path: Path) -> None:
    async def work() -> None:
        async with programs(tmp_path, 1) as (reader,):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.epochs.live.source", str(tmp_path / "data")],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": SOURCES},
            )
            found: list[Any] = []

            async def take() -> None:
                async for epoch in epochs:
                    assert isinstance(epoch, LiveEpoch)
                    found.append((epoch.time, await values(epoch)))
                    if len(found) == 20:
                        process.kill()

            try:
                async with reader.subscription() as epochs:
                    with pytest.raises(EpochsAbortedError, match="partition eu"):
                        await take()
            finally:
                process.kill()
                process.wait()
            first = found[0][0]
            assert [time for time, _ in found] == list(range(first, first + len(found)))
            assert all(got == [f"a{day}", f"b{day}", f"c{day}"] for day, got in found)

    run(work())


def test_a_publisher_that_is_silent_is_aborted_and_not_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen, it keeps its connection: only its silence tells."""
    monkeypatch.setattr("headrace.epochs.live.subscription.SILENCE_MS", 1500)

    async def work() -> None:
        async with programs(tmp_path, 1) as (reader,):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.epochs.live.source", str(tmp_path / "data")],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": SOURCES},
            )
            times: list[Any] = []

            async def take() -> None:
                async for epoch in epochs:
                    assert isinstance(epoch, LiveEpoch)
                    times.append(epoch.time)
                    if len(times) == 5:
                        process.send_signal(signal.SIGSTOP)

            try:
                async with reader.subscription() as epochs:
                    with pytest.raises(EpochsAbortedError, match=r"eu: .*nothing was heard for"):
                        await take()
                    assert (epochs.end, len(times) >= 5) == ("aborted", True)
            finally:
                process.kill()
                process.wait()

    run(work())


def test_epochs_are_published_over_tls_to_another_process_and_to_no_plain_one(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    own, theirs = authority.certify("reader"), authority.certify("source")
    files = [str(path) for path in (theirs.certificate, theirs.key, theirs.authority)]

    async def work() -> None:
        async with (
            programs(tmp_path, 1) as (plain,),
            headrace.open(tmp_path / "data", tls=own) as hr,
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.epochs.live.source", str(tmp_path / "data"), *files],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": SOURCES},
            )
            outside: list[Any] = []

            async def listen() -> None:
                async with plain.subscription() as epochs:
                    async for epoch in epochs:
                        outside.append(epoch)

            try:
                listening = asyncio.create_task(listen())
                async with hr.live_epochs("days") as epochs:
                    found = [(epoch.time, await values(epoch)) async for epoch in first(epochs, 20)]
                listening.cancel()
                await asyncio.wait([listening])
            finally:
                process.kill()
                process.wait()
            assert all(got == [f"a{day}", f"b{day}", f"c{day}"] for day, got in found)
            assert not outside

    run(work())


async def first(epochs: AsyncIterable[Any], count: int) -> AsyncIterator[Any]:
    async for epoch in epochs:
        yield epoch
        count -= 1
        if not count:
            return
