"""A publisher in a process of its own, killed for real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.epochs.live.items import LiveEpoch
from headrace.errors import EpochsAbortedError
from tests.epochs.live.support import programs, run, values
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
