"""What the commands of ``headrace reader`` share: a group, and what people type for places."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from cyclopts import Parameter

from headrace.cli import values
from headrace.cli.failures import UsageError
from headrace.cli.options import Options
from headrace.errors import InvalidCutTextError

if TYPE_CHECKING:
    from headrace.groups.readers.group import ReaderGroup
    from headrace.groups.readers.positions import GroupCheckpoint, StreamCut

T = TypeVar("T")

GroupArgument = Annotated[str, Parameter(help="The reader group's name.")]
TEXT_BYTES_MAX = 64 * 1024 * 1024


def with_group(options: Options, group: str, work: Callable[[ReaderGroup], Awaitable[T]]) -> T:
    """Do something to a group."""

    import asyncio

    async def run() -> T:
        async with options.open_async() as hr:
            return await work(await hr.reader_groups.get(group))

    return asyncio.run(run())


def place_of(text: str) -> object:
    """A place that is no cut."""
    return text if text in ("earliest", "latest") else values.moment(text, "--start")


def every_s(text: str | None) -> float | None:
    """How often checkpoints are taken; None: it was not said."""
    if text is None:
        return None
    return 0.0 if text in ("0", "0s") else values.duration_s(text, "--checkpoint-every")


def from_file(path: Path) -> StreamCut | GroupCheckpoint:
    """The text of a cut or a checkpoint, or the JSON that --json printed of one."""
    if str(path) == "-":
        text = sys.stdin.read(TEXT_BYTES_MAX)
    else:
        if not path.exists():
            raise UsageError(
                f"there is no file {path}; give one with the text of a cut, or - for the input"
            )
        if path.stat().st_size > TEXT_BYTES_MAX:
            raise UsageError(f"{path}: it is too large for the text of a cut")
        text = path.read_text(errors="replace")
    if text.lstrip().startswith("{"):
        try:
            text = msgspec.json.decode(text, type=_Printed).text
        except msgspec.MsgspecError as error:
            raise InvalidCutTextError("cut", str(error)) from error
    from headrace.groups.readers.positions import GroupCheckpoint, StreamCut

    kind = GroupCheckpoint if text.lstrip().startswith("headrace-checkpoint:") else StreamCut
    return kind.parse(text)


class _Printed(msgspec.Struct):
    text: str
