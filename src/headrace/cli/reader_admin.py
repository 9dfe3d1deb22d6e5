"""``headrace reader create|rm|offline|configure|streams``: what people do to reader groups."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.cli import done_shapes, reader_screens, values
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import confirm
from headrace.cli.reader_common import GroupArgument, every_s, from_file, place_of, with_group
from headrace.errors import UnreadableRecordError
from headrace.groups.readers import admin
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.group import ReaderGroup
from headrace.groups.readers.info import ReaderGroupInfo
from headrace.groups.readers.names import ReaderGroupRecord
from headrace.log.log import Log

streams_app = App(name="streams", help="Let a reader group read more streams, or fewer.")


@Parameter(name="*")
@dataclass(frozen=True)
class Kept:
    """What a group keeps, and how."""

    retain: Annotated[
        str | None,
        Parameter(help="What retention keeps: positions, checkpoint, manual or nothing."),
    ] = None
    checkpoint_every: Annotated[
        str | None, Parameter(help="Take a checkpoint by itself this often: 30s, 5m; 0s: never.")
    ] = None
    checkpoints_kept: Annotated[
        int | None, Parameter(help="Complete checkpoints that can be gone back to by name.")
    ] = None
    checkpoints_outstanding: Annotated[
        int | None, Parameter(help="Checkpoints that may wait for readers at a time.")
    ] = None


AS_USUAL = Kept()


# --- making and removing ---------------------------------------------------------------------


def create(
    group: GroupArgument,
    /,
    *,
    streams: Annotated[str, Parameter(help="The streams it reads, comma-separated.")],
    start: Annotated[
        str, Parameter(help="earliest, latest, or a time; or --start-cut FILE.")
    ] = "earliest",
    start_cut: Annotated[Path | None, Parameter(help="Begin at the cut in this file.")] = None,
    end_cut: Annotated[Path | None, Parameter(help="End at the cut in this file.")] = None,
    filter: Annotated[str | None, Parameter(help="Only subjects that match.")] = None,
    home: Annotated[
        str | None, Parameter(help="In all regions of its streams, and read in this one.")
    ] = None,
    keep: Kept = AS_USUAL,
    options: Options = NONE,
) -> None:
    """Create a reader group; doing it again in the same way changes nothing.

    * `headrace reader create report --streams orders,clicks`
    * `headrace reader create report --streams orders --start latest --retain checkpoint`
    * `headrace reader create report --streams orders --home eu`
    """
    place: object = place_of(start) if start_cut is None else from_file(start_cut)
    stop = None if end_cut is None else from_file(end_cut)
    given, config = values.words(streams), _config(keep)

    def make(log: Log) -> ReaderGroupRecord:
        return admin.create(
            log, group, given=given, start=place, end=stop, filter=filter, config=config
        )

    with options.open() as log:
        if home is None:
            record = make(log)
        else:
            from headrace.regions.creating import create_replicated_readers

            record = create_replicated_readers(log, group, given, home, make)
    listed = ", ".join(stream.name for stream in record.streams)
    options.show(
        done_shapes.CreatedReaderGroup(
            group=group, streams=tuple(s.name for s in record.streams), start=record.start
        ),
        f"reader group [bold]{escape(group)}[/bold] reads {escape(listed)} from "
        f"{escape(record.start)}; read with: headrace reader read {escape(group)} NAME",
    )


def _config(keep: Kept) -> GroupConfig:
    return admin.group_config(
        retain=keep.retain or "positions",
        checkpoint_every_s=every_s(keep.checkpoint_every),
        checkpoints_kept=3 if keep.checkpoints_kept is None else keep.checkpoints_kept,
        checkpoints_outstanding=(
            3 if keep.checkpoints_outstanding is None else keep.checkpoints_outstanding
        ),
    )


def rm(
    group: GroupArgument,
    /,
    *,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    options: Options = NONE,
) -> None:
    """Delete a reader group with its progress, checkpoints and dead letters.

    Example: `headrace reader rm report --yes`
    """
    with options.open() as log:
        with suppress(UnreadableRecordError):  # which can be removed, too
            admin.get(log, group)
        confirm(f"reader group {group!r}", "its progress and checkpoints", yes=yes)
        admin.delete(log, group)
    options.show(
        done_shapes.Deleted(deleted=group), f"reader group [bold]{escape(group)}[/bold] is deleted"
    )


# --- readers, streams, config ----------------------------------------------------------------


def offline(
    group: GroupArgument,
    reader: Annotated[str, Parameter(help="The reader.")],
    /,
    *,
    position: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="Others go on here: orders/3=1200; else where it acked to."),
    ] = (),
    rewind: Annotated[bool, Parameter(negative="", help="Positions may take acks back.")] = False,
    options: Options = NONE,
) -> None:
    """Put a reader offline; others read what it had.

    Example: `headrace reader offline report r1`
    """
    given = {}
    for each in position:
        segment, offset = values.pair(each, "--position")
        if not offset.isdecimal():
            raise UsageError(f"--position {each}: {offset!r} is not an offset; write orders/3=1200")
        given[segment] = int(offset)
    was = with_group(
        options, group, lambda found: found.offline(reader, positions=given or None, rewind=rewind)
    )
    told = "is offline" if was else "was not online; nothing changed"
    options.show(
        done_shapes.OfflineReader(group=group, reader=reader, was_online=was),
        f"reader [bold]{escape(reader)}[/bold] {told}",
    )


def configure(
    group: GroupArgument,
    /,
    *,
    keep: Kept = AS_USUAL,
    options: Options = NONE,
) -> None:
    """Change what a group keeps, and how; what is not given stays as it is.

    Example: `headrace reader configure report --retain checkpoint`
    """

    async def work(found: ReaderGroup) -> ReaderGroupInfo:
        await found.configure(
            retain=keep.retain,
            checkpoint_every_s=every_s(keep.checkpoint_every),
            checkpoints_kept=keep.checkpoints_kept,
            checkpoints_outstanding=keep.checkpoints_outstanding,
        )
        return await found.info()

    after = with_group(options, group, work)
    options.show(after, *reader_screens.info_lines(after))


@streams_app.command
def add(
    group: GroupArgument,
    streams: Annotated[str, Parameter(help="Streams, comma-separated.")],
    /,
    *,
    start: Annotated[str, Parameter(help="earliest, latest, or a time.")] = "earliest",
    options: Options = NONE,
) -> None:
    """Let a group read more streams; nobody is interrupted.

    Example: `headrace reader streams add report returns --start latest`
    """
    names, place = values.words(streams), place_of(start)
    with_group(options, group, lambda found: found.add_streams(names, start=place))  # type: ignore[arg-type]
    done = done_shapes.ReaderStreams(group=group, added=tuple(names))
    options.show(done, f"{escape(group)} reads {escape(', '.join(names))} as well")


@streams_app.command
def drop(
    group: GroupArgument,
    streams: Annotated[str, Parameter(help="Streams, comma-separated.")],
    /,
    *,
    options: Options = NONE,
) -> None:
    """Have a group read streams no longer; what it knew of them is forgotten.

    Example: `headrace reader streams drop report returns`
    """
    names = values.words(streams)
    with_group(options, group, lambda found: found.drop_streams(names))
    done = done_shapes.ReaderStreams(group=group, dropped=tuple(names))
    options.show(done, f"{escape(group)} reads {escape(', '.join(names))} no longer")
