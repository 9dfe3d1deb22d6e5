"""``headrace reader checkpoint``, ``cut`` and ``reset``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from headrace.cli import done_shapes, values
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import approve
from headrace.cli.reader_common import GroupArgument, from_file, place_of, with_group

if TYPE_CHECKING:
    from headrace.groups.readers.positions import StreamCut


def checkpoint(
    group: GroupArgument,
    name: Annotated[str, Parameter(help="The checkpoint's name.")],
    /,
    *,
    wait: Annotated[str, Parameter(help="How long to wait for readers: 30s.")] = "30s",
    cancel: Annotated[
        bool, Parameter(negative="", help="Give it up instead, if readers block it.")
    ] = False,
    options: Options = NONE,
) -> None:
    """Take a checkpoint of a group, and print its text, which can be kept anywhere.

    * `headrace reader checkpoint report nightly --wait 30s > nightly.checkpoint`
    * `headrace reader checkpoint report nightly --cancel`
    """
    if cancel:
        with_group(options, group, lambda found: found.cancel_checkpoint(name))
        gone = done_shapes.CancelledCheckpoint(group=group, cancelled=name)
        options.show(gone, f"checkpoint {escape(repr(name))} is cancelled")
        return
    wait_s = values.duration_s(wait, "--wait")
    taken = with_group(options, group, lambda found: found.checkpoint(name, timeout_s=wait_s))
    data = done_shapes.TakenCheckpoint(
        group=group, checkpoint=name, positions=taken.positions, text=str(taken)
    )
    options.show(data, escape(str(taken)))


def cut(
    group: GroupArgument,
    /,
    *,
    wait: Annotated[str, Parameter(help="How long to wait for readers: 30s.")] = "30s",
    options: Options = NONE,
) -> None:
    """Print where all readers of a group are now, as a text; it moves nothing.

    Example: `headrace reader cut report > here.cut`
    """
    wait_s = values.duration_s(wait, "--wait")
    taken = _at_rest(options, group)
    if taken is None:
        taken = with_group(options, group, lambda found: found.cut(timeout_s=wait_s))
    data = done_shapes.TakenCut(group=group, positions=taken.positions, text=str(taken))
    options.show(data, escape(str(taken)))


def _at_rest(options: Options, group: str) -> StreamCut | None:
    """The cut of a group that nobody reads now; nothing that runs is loaded for it."""
    from headrace.groups.readers import operations
    from headrace.groups.readers.names import ReaderGroupName

    with options.open() as log:
        return operations.cut_at_rest(log, ReaderGroupName(group))


def reset(
    group: GroupArgument,
    /,
    *,
    checkpoint: Annotated[str | None, Parameter(help="To a checkpoint, by its name.")] = None,
    cut: Annotated[
        Path | None, Parameter(help="To the text of a cut or a checkpoint, in this file.")
    ] = None,
    start: Annotated[str | None, Parameter(help="To earliest, latest, or a time.")] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Only say what would happen.")] = False,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    options: Options = NONE,
) -> None:
    """Put a group back, or forward; its readers go on from there.

    Without a place it goes to the last checkpoint, else to where the group began.

    * `headrace reader reset report --checkpoint nightly --yes`
    * `headrace reader reset report --start 2026-01-01T00:00:00Z --dry-run`
    """
    if sum(each is not None for each in (checkpoint, cut, start)) > 1:
        raise UsageError("give one of --checkpoint, --cut and --start")
    to: object = checkpoint
    if cut is not None:
        to = from_file(cut)
    elif start is not None:
        to = place_of(start)

    done = _planned(options, group, to)
    if not dry_run:
        if online := ", ".join(done.readers):
            approve(
                f"reset {group}? readers are online: {online}",
                f"reader group {group!r}",
                refusal=f"readers of {group!r} are online ({online}): a reset takes what they "
                "hold; add --yes",
                yes=yes,
            )
        with_group(options, group, lambda found: found.reset(to))  # type: ignore[arg-type]
        done = msgspec.structs.replace(done, dry_run=False)
    what = "would begin again at" if dry_run else "begins again at"
    lines = (f"  {escape(segment)}  {offset}" for segment, offset in done.positions.items())
    options.show(done, f"reader group [bold]{escape(group)}[/bold] {what}:", *lines)


def _planned(options: Options, group: str, to: object) -> done_shapes.ResetGroup:
    """Where a reset would put a group, and who reads it now; nothing that runs is loaded for it."""
    from headrace.groups.readers import info, operations
    from headrace.groups.readers.names import ReaderGroupName

    with options.open() as log:
        readers = tuple(each.reader for each in info.read_info(log.catalog, group).readers)
        positions = operations.plan_reset(log, ReaderGroupName(group), to)
    return done_shapes.ResetGroup(group=group, dry_run=True, positions=positions, readers=readers)
