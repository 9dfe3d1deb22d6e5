"""What a program that reads epochs has to load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import headrace
from headrace import Event

_READER = """
import asyncio, sys
import headrace

async def main():
    async with headrace.open(sys.argv[1]) as hr:
        for steps in (False, True):
            async with hr.epochs("s", start="earliest", until=3) as epochs:
                async for found in epochs.steps() if steps else epochs:
                    print((await found.table()).num_rows)
    print("pandas" in sys.modules)

asyncio.run(main())
"""


async def test_reading_epochs_loads_no_pandas(tmp_path: Path) -> None:
    """It takes the better part of a second, on the event loop, before the first epoch is there."""
    async with headrace.open(tmp_path / "log") as hr:
        await hr.create_stream("s", ["s.>"], segments=2, epochs=headrace.Epochs())
        async with hr.epoch_publisher("s", "p") as pub:
            await pub.append(0, [Event(subject=f"s.{row}", value=b"x") for row in range(100)])
            mixed = [Event(subject=f"s.{row}", value=b"x", epoch=(row % 3,)) for row in range(100)]
            await pub.append(None, mixed, advance_to=3)
    done = subprocess.run(
        [sys.executable, "-c", _READER, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["134", "33", "33", "200", "False"], done.stdout + done.stderr
