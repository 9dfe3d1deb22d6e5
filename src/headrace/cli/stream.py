"""``headrace stream``: create, look at, scale, compact, trim and remove streams."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.catalog import streams
from headrace.catalog.streams import Epochs, Fixed, Limits, StreamConfig
from headrace.cli import policies, screens, values
from headrace.cli import stream_shapes as shapes
from headrace.cli.done_shapes import Deleted
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import confirm, counted, until_ctrl_c
from headrace.cli.policies import NO_POLICIES, Policies
from headrace.errors import StreamInUseError

if TYPE_CHECKING:
    from headrace.catalog import Tx
    from headrace.catalog.streams import Stream
    from headrace.groups.shapes import GroupView
    from headrace.log.log import Log, Scaled

app = App(
    name="stream",
    help="Create, look at, scale, compact, trim and remove streams.",
    help_epilogue="",
)

Flag = Annotated[bool, Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True)
class ByEpochs:
    """Whether a stream is published by epochs."""

    epochs: Annotated[
        str | None,
        Parameter(
            help="It is published by epochs, whose times are integers (int), pairs (pair), or "
            "tuples of 1 to 8 integers (3); see headrace epoch."
        ),
    ] = None
    publishers: Annotated[
        str | None,
        Parameter(
            help="With --epochs: publishers, comma-separated, before whose coming nothing is "
            "complete."
        ),
    ] = None
    live: Annotated[
        bool,
        Parameter(
            negative="",
            help="With --epochs: nothing is stored, publishers serve those who listen now.",
        ),
    ] = False

    def config(self) -> Epochs | None:
        if self.epochs is None:
            if self.publishers is not None:
                raise UsageError("--publishers goes with --epochs")
            if self.live:
                raise UsageError("--live goes with --epochs")
            return None
        length = {"int": "0", "pair": "2"}.get(self.epochs, self.epochs)
        if length not in ["0", "1", "2", "3", "4", "5", "6", "7", "8"] or self.epochs == "0":
            raise UsageError(
                f"--epochs {self.epochs}: write int, pair, or how many integers: 1 to 8"
            )
        publishers = tuple(values.words(self.publishers or ""))
        return Epochs(length=int(length), publishers=publishers, stored=not self.live)


PLAIN = ByEpochs()


@app.command
def create(
    name: str,
    /,
    *,
    subjects: str,
    segments: int | None = None,
    partitions: int = 0,
    key_tokens: str | None = None,
    by_epochs: ByEpochs = PLAIN,
    given: Policies = NO_POLICIES,
    options: Options = NONE,
) -> None:
    """Create a stream, and the catalog if there is none yet.

    Creating it again in the same way changes nothing.

    * `headrace stream create orders --subjects 'orders.>' --segments 4`
    * `headrace stream create days --subjects 'days.>' --epochs int`

    Parameters
    ----------
    name
        The stream's name: letters, digits, _ and -.
    subjects
        Subject filters it captures, comma-separated; * stands for one token, > for the rest.
    segments
        How many parts the keys are spread over (1 if not given).
    partitions
        The number of partitions of a static group: one segment each, never split or merged.
    key_tokens
        Places (from 1) of the subject tokens that make the key of events without one: 2 or 1,2.
    """
    config = StreamConfig(
        subjects=tuple(values.words(subjects)),
        key_tokens=tuple(values.numbers(key_tokens, "--key-tokens")) if key_tokens else (),
        partitions=partitions,
        retention=given.kept() or Limits(),
        scaling=given.scaled() or Fixed(),
        epochs=by_epochs.config(),
    )
    with options.open(create=True) as log:
        stream = log.create_stream(name, config, segments)
    captured = escape(", ".join(stream.config.subjects))
    count = counted(len(stream.open_segments), "segment")
    told = f"stream [bold]{escape(name)}[/bold] captures {captured} in {count}"
    options.show(shapes.stream_shape(stream), told)


@app.command(name="set")
def configure(
    name: str,
    /,
    *,
    given: Policies = NO_POLICIES,
    scaling: Annotated[
        Literal["fixed"] | None, Parameter(group=policies.SCALING, help="Scale only on request.")
    ] = None,
    options: Options = NONE,
) -> None:
    """Change how a stream is kept or scaled; what it captures stays.

    What is given replaces the whole policy of its kind.

    Example: `headrace stream set orders --retention-age 7d --scale-events 5000`
    """
    kept, scaled = given.kept(), given.scaled(scaling)
    if kept is None and scaled is None:
        raise UsageError("nothing to change: give a --retention, --scale or --scaling option")
    with options.open() as log:
        stream = log.configure_stream(name, retention=kept, scaling=scaled)
    told = f"stream [bold]{escape(name)}[/bold]: {policies.described(stream.config)}"
    options.show(shapes.stream_shape(stream), told)


@app.command
def ls(
    *,
    internal: Flag = False,
    options: Options = NONE,
) -> None:
    """List all streams.

    Example: `headrace stream ls`

    Parameters
    ----------
    internal
        Also those that belong to groups: work queues and dead letters.
    """
    with options.look() as catalog:
        found = catalog.read(lambda tx: streams.all_streams(tx, internal=internal), snapshot=True)
    none = "no streams yet; create one with: headrace stream create"
    listed = [shapes.stream_shape(stream) for stream in found]
    options.show(listed, screens.streams_table(found) if found else none)


@app.command
def info(name: str, /, *, options: Options = NONE) -> None:
    """Show a stream, its segments, and the groups that consume it with their lag.

    Example: `headrace stream info orders`
    """
    from headrace.groups import status, view

    def look(tx: Tx) -> tuple[Stream, list[GroupView]]:
        return streams.require(tx, name), status.consumers(view.all_groups(tx), name)

    with options.look() as catalog:
        stream, groups = catalog.read(look, snapshot=True)
    data = shapes.consumed(stream, tuple(shapes.consumer(group) for group in groups))
    shown = (screens.stream_head(stream), screens.segments_table(stream))
    nobody = "no group consumes it"
    options.show(data, *shown, screens.consumers_table(groups) if groups else nobody)


@app.command
def scale(
    name: str,
    /,
    *,
    split: int | None = None,
    into: int | None = None,
    merge: str | None = None,
    seal: str | None = None,
    ranges: str | None = None,
    options: Options = NONE,
) -> None:
    """Split a segment, merge neighbours, or lay the key ranges anew; in one step.

    * `headrace stream scale orders --split 0 --into 3`
    * `headrace stream scale orders --merge 1,2`
    * `headrace stream scale orders --seal 0,1 --ranges 0-500000000,500000000-2147483648`

    Parameters
    ----------
    split
        The segment to split.
    into
        How many equal parts to make of it (2 if not given).
    merge
        Neighbouring segments to merge, comma-separated.
    seal
        Segments to seal, comma-separated; with --ranges.
    ranges
        Key ranges of the segments that replace them, low-high, the high end not included.
    """
    if sum(option is not None for option in (split, merge, seal)) != 1:
        raise UsageError("choose one of --split SEGMENT, --merge A,B and --seal A,B --ranges …")
    if into is not None and split is None:
        raise UsageError("--into goes with --split")
    if (seal is None) != (ranges is None):
        raise UsageError("--seal and --ranges go together")
    with options.open() as log:
        if split is not None:
            done = log.split(name, split, 2 if into is None else into)
        elif merge is not None:
            done = log.merge(name, values.numbers(merge, "--merge"))
        else:
            sealed = values.numbers(seal or "", "--seal")
            done = log.retile(name, sealed, values.key_ranges(ranges or "", "--ranges"))
    options.show(_scaled(name, done), screens.scaled_text(name, done))


@app.command
def autoscale(
    name: str | None = None,
    /,
    *,
    all: Annotated[bool, Parameter(name="--all", negative="")] = False,
    dry_run: Flag = False,
    watch: Annotated[float | None, Parameter(converter=values.some_seconds)] = None,
    options: Options = NONE,
) -> None:
    """Apply scaling policies: split what is hot, merge what is cold.

    Example: `headrace stream autoscale --all --watch 60`

    Parameters
    ----------
    name
        The stream.
    all
        Every stream that has a policy.
    dry_run
        Only say what would be done.
    watch
        Time between looks (60s, or a number of seconds); goes on until Ctrl-C.
    """
    if (name is None) != all:
        raise UsageError("give a stream's name, or --all")
    if watch is not None and not 0.1 <= watch <= 86_400:
        raise UsageError(f"--watch {watch:g}: give 0.1 to 86400 seconds")
    if watch is not None:
        until_ctrl_c()
    with options.open() as log:
        while True:
            found = _autoscale(log, name, dry_run)
            _print_scaled(found, dry_run, quiet=watch is not None, options=options)
            if watch is None:
                return
            sys.stdout.flush()
            time.sleep(watch)


def _autoscale(log: Log, name: str | None, dry_run: bool) -> list[tuple[str, Scaled]]:
    names = [stream.name for stream in log.streams()] if name is None else [name]
    return [(each, done) for each in names for done in log.autoscale(each, dry_run=dry_run)]


def _print_scaled(
    found: list[tuple[str, Scaled]], dry_run: bool, *, quiet: bool, options: Options
) -> None:
    if not found and not quiet and not options.json:
        options.show(None, "nothing to scale")
    for name, done in found:
        told = screens.scaled_text(name, done, dry_run=dry_run)
        options.show(_scaled(name, done, dry_run), told)


def _scaled(name: str, done: Scaled, dry_run: bool = False) -> shapes.ScaledShape:
    return shapes.ScaledShape(
        stream=name,
        dry_run=dry_run,
        sealed=tuple(done.sealed),
        opened=tuple(done.opened),
        reason=done.reason,
    )


TRIM = "Remove events by the retention policy, or all before a place or a time."
COMPACT = "Join small batches into files, or set a policy for it."
app.command("headrace.cli.trim:trim", name="trim", help=TRIM)
app.command("headrace.cli.compact:compact", name="compact", help=COMPACT)


@app.command
def rm(
    name: str,
    /,
    *,
    yes: Flag = False,
    force: Flag = False,
    options: Options = NONE,
) -> None:
    """Delete a stream with all its events; one that groups consume only by force.

    Example: `headrace stream rm orders --yes`

    Parameters
    ----------
    yes
        Do not ask.
    force
        Even if groups consume it: static and elastic ones go with it, shared ones go on without.
    """
    from headrace.groups.deletion import consumers, delete_stream
    from headrace.log import internal

    with options.open() as log:
        stream = log.catalog.read(lambda tx: streams.removable(tx, name), snapshot=True)
        internal.refuse(stream, "deleted")
        groups = log.catalog.read(lambda tx: consumers(tx, stream), snapshot=True)
        if groups and not force:
            raise StreamInUseError(name, groups)
        events = sum(segment.events for segment in stream.segments)
        consumed = f", consumed by {', '.join(groups)}" if groups else ""
        confirm(f"stream {name!r}", f"{events:,} events{consumed}", yes=yes)
        delete_stream(log, name, force=force)
    told = f"stream [bold]{escape(name)}[/bold] is deleted"
    options.show(Deleted(deleted=name), told)
