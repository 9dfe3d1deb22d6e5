"""Every call of reader groups has an example in its docstring, and each of them runs."""

from __future__ import annotations

import asyncio
import textwrap
from itertools import takewhile
from pathlib import Path

import pytest

import headrace
from headrace.errors import CheckpointTimeoutError
from headrace.groups.readers.group import ReaderGroup, ReaderGroups
from headrace.groups.readers.runtime.segment_reader import SegmentReader
from tests.groups.readers.runtime.support import run, send

CALLS = [
    *((each, name) for each in (ReaderGroups, ReaderGroup) for name in vars(each)),
    *((SegmentReader, name) for name in ("next", "status", "batches", "consume", "flush")),
]
ENDLESS = {"watch", "batches", "consume", "reader"}


def example(of: type, name: str) -> str | None:
    """The example of a call, as it stands there."""
    _, found, rest = (getattr(of, name).__doc__ or "").partition("::\n\n")
    if not found:
        return None
    lines = rest.split("\n")
    margin = " " * (len(lines[0]) - len(lines[0].lstrip()))
    whole = takewhile(lambda line: not line.strip() or line.startswith(margin), lines)
    return textwrap.dedent("\n".join(whole))


PUBLIC = [(each, name) for each, name in CALLS if name[0] != "_" and name != "streams"]


@pytest.mark.parametrize(("of", "name"), PUBLIC, ids=lambda each: getattr(each, "__name__", each))
def test_the_example_of_a_call_runs(
    tmp_path: Path, of: type, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = example(of, name)
    assert code is not None, f"{of.__name__}.{name} has no example"

    async def work(hr: headrace.Headrace) -> None:
        for stream in ("orders", "clicks", "returns"):
            await hr.create_stream(stream, [f"{stream}.>"])
        groups = hr.reader_groups
        given: dict[str, object] = {"hr": hr, "headrace": headrace}
        if name != "create":
            group = await groups.create("report", streams=["orders", "clicks"])
            given["group"] = group
        if name == "drop_streams":
            await group.add_streams(["returns"])
        await send(hr, *range(10))
        if name == "cancel_checkpoint":
            busy = group.reader("busy")
            await busy.open()
            assert await busy.next(timeout_s=30)
            with pytest.raises(CheckpointTimeoutError):
                await group.checkpoint("nightly", timeout_s=1)
        if of is SegmentReader:
            reader = group.reader("r1")
            await reader.open()
            given["reader"], given["handler"] = reader, headrace_handler
            if name == "flush":
                given["delivery"] = await reader.next(timeout_s=30)
        body = textwrap.indent(code, "    ")
        exec(f"async def example():\n{body}\n", given)
        running = asyncio.ensure_future(given["example"]())  # type: ignore[operator]
        if name in ENDLESS:
            await hr.host.sleep(2)
            if name == "watch":
                await group.offline("nobody")
                async with group.reader("r9"):
                    await hr.host.sleep(2)
            assert not running.done()
            running.cancel()
            await asyncio.wait([running])
        else:
            await running
        if name in ("batches", "consume", "reader"):
            assert (await group.lag()).events < 10
        if of is SegmentReader:
            await reader.close()

    run(str(tmp_path / "data"), work)
    if name == "watch":
        assert "r9" in capsys.readouterr().out


async def headrace_handler(delivery: headrace.Delivery) -> None:
    """What an application does with an event."""
