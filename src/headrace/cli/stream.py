"""``headrace stream``: create, look at, scale, compact, trim and remove streams."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter
from rich.markup import escape

from headrace.catalog.streams import Retention, Scaling, Stream, StreamConfig
from headrace.cli import policies, screens, values
from headrace.cli.compact import compact
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options, console, print_json
from headrace.errors import StreamInUseError
from headrace.groups.deletion import consumers, delete_stream
from headrace.log import internal
from headrace.log.log import Log, Scaled

app = App(
    name="stream",
    help="Create, look at, scale, compact, trim and remove streams.",
    help_epilogue="",
)

KEEPING = Group("What is kept", sort_key=10)
SCALING = Group("How it scales", sort_key=11)

RetentionKind = Annotated[
    Literal["limits", "consumed", "groups"] | None,
    Parameter(
        group=KEEPING,
        help="limits: what is within the --retention limits (without any, everything); consumed: "
        "a work queue, events go once acked; groups: what subscribed groups still need, at least "
        "the --keep and at most the --retention limits.",
    ),
]
Age = Annotated[str | None, Parameter(group=KEEPING, help="At most this old: 12h, 7d.")]
Size = Annotated[str | None, Parameter(group=KEEPING, help="At most this many bytes: 10GB, 2GiB.")]
Count = Annotated[int | None, Parameter(group=KEEPING, help="At most this many events.")]
KeepAge = Annotated[str | None, Parameter(group=KEEPING, help="With groups: at least this old.")]
KeepSize = Annotated[str | None, Parameter(group=KEEPING, help="With groups: at least this much.")]
KeepCount = Annotated[int | None, Parameter(group=KEEPING, help="With groups: at least so many.")]
ScaleEvents = Annotated[
    int | None, Parameter(group=SCALING, help="Aim at this many events a second in each segment.")
]
ScaleBytes = Annotated[
    str | None, Parameter(group=SCALING, help="Aim at this many bytes a second in each segment.")
]
ScaleFactor = Annotated[
    int | None, Parameter(group=SCALING, help="Most parts one split makes (2 if not given).")
]
ScaleMin = Annotated[int | None, Parameter(group=SCALING, help="Fewest open segments to keep.")]


@app.command
def create(
    name: str,
    /,
    *,
    subjects: str,
    segments: int = 1,
    partitions: int = 0,
    key_tokens: str | None = None,
    retention: RetentionKind = None,
    retention_age: Age = None,
    retention_bytes: Size = None,
    retention_events: Count = None,
    keep_age: KeepAge = None,
    keep_bytes: KeepSize = None,
    keep_events: KeepCount = None,
    scale_events: ScaleEvents = None,
    scale_bytes: ScaleBytes = None,
    scale_factor: ScaleFactor = None,
    scale_min: ScaleMin = None,
    options: Options = NONE,
) -> None:
    """Create a stream, and the catalog if there is none yet.

    Creating it again in the same way changes nothing.

    Example: `headrace stream create orders --subjects 'orders.>' --segments 4`

    Parameters
    ----------
    name
        The stream's name: letters, digits, _ and -.
    subjects
        Subject filters it captures, comma-separated; * stands for one token, > for the rest.
    segments
        How many parts the keys are spread over.
    partitions
        One segment for each of so many partitions, for a static group; never split or merged.
    key_tokens
        Places (from 1) of the subject tokens that make the key of events without one: 2 or 1,2.
    """
    keeping = policies.retention(
        retention,
        policies.limits(retention_age, retention_bytes, retention_events, "--retention"),
        policies.limits(keep_age, keep_bytes, keep_events, "--keep"),
    )
    scaling = policies.scaling(None, scale_events, scale_bytes, scale_factor, scale_min)
    config = StreamConfig(
        subjects=tuple(values.words(subjects)),
        key_tokens=tuple(values.numbers(key_tokens, "--key-tokens")) if key_tokens else (),
        partitions=partitions,
    )
    config = policies.with_policies(config, keeping, scaling)
    with options.open(create=True) as log:
        stream = log.create_stream(name, config, segments)
    if options.json:
        print_json(screens.stream_data(stream))
    else:
        count = len(stream.open_segments)
        console().print(
            f"stream [bold]{escape(name)}[/bold] captures "
            f"{escape(', '.join(stream.config.subjects))} in {count} "
            f"segment{'s' if count != 1 else ''}"
        )


@app.command(name="set")
def configure(
    name: str,
    /,
    *,
    retention: RetentionKind = None,
    retention_age: Age = None,
    retention_bytes: Size = None,
    retention_events: Count = None,
    keep_age: KeepAge = None,
    keep_bytes: KeepSize = None,
    keep_events: KeepCount = None,
    scaling: Annotated[
        Literal["fixed"] | None, Parameter(group=SCALING, help="Scale only on request.")
    ] = None,
    scale_events: ScaleEvents = None,
    scale_bytes: ScaleBytes = None,
    scale_factor: ScaleFactor = None,
    scale_min: ScaleMin = None,
    options: Options = NONE,
) -> None:
    """Change how a stream is kept or scaled; what it captures stays.

    What is given replaces the whole policy of its kind.

    Example: `headrace stream set orders --retention-age 7d --scale-events 5000`
    """
    keeping: Retention | None = policies.retention(
        retention,
        policies.limits(retention_age, retention_bytes, retention_events, "--retention"),
        policies.limits(keep_age, keep_bytes, keep_events, "--keep"),
    )
    scale: Scaling | None = policies.scaling(
        scaling, scale_events, scale_bytes, scale_factor, scale_min
    )
    if keeping is None and scale is None:
        raise UsageError("nothing to change: give a --retention, --scale or --scaling option")
    with options.open() as log:
        stream = log.configure_stream(name, retention=keeping, scaling=scale)
    if options.json:
        print_json(screens.stream_data(stream))
    else:
        console().print(f"stream [bold]{escape(name)}[/bold]: {policies.described(stream.config)}")


@app.command
def ls(
    *,
    internal: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """List all streams.

    Example: `headrace stream ls`

    Parameters
    ----------
    internal
        Also those that belong to groups: work queues and dead letters.
    """
    with options.open() as log:
        found = log.streams(internal=internal)
    if options.json:
        print_json([screens.stream_data(stream) for stream in found])
    elif not found:
        console().print("no streams yet; create one with: headrace stream create")
    else:
        console().print(screens.streams_table(found))


@app.command
def info(name: str, /, *, options: Options = NONE) -> None:
    """Show a stream and its segments.

    Example: `headrace stream info orders`
    """
    with options.open() as log:
        stream = log.stream(name)
    if options.json:
        print_json(screens.stream_data(stream))
    else:
        console().print(screens.stream_head(stream))
        console().print(screens.segments_table(stream))


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
    chosen = [option for option in (split, merge, seal) if option is not None]
    if len(chosen) != 1:
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
            assert seal is not None
            assert ranges is not None
            done = log.retile(
                name, values.numbers(seal, "--seal"), values.key_ranges(ranges, "--ranges")
            )
    if options.json:
        print_json(screens.scaled_data(name, done))
    else:
        console().print(screens.scaled_text(name, done))


@app.command
def autoscale(
    name: str | None = None,
    /,
    *,
    all: Annotated[bool, Parameter(name="--all", negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    watch: float | None = None,
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
        Look again every so many seconds, until Ctrl-C.
    """
    if (name is None) != all:
        raise UsageError("give a stream's name, or --all")
    if watch is not None and not 0.1 <= watch <= 86_400:
        raise UsageError(f"--watch {watch:g}: give 0.1 to 86400 seconds")
    with options.open() as log:
        while True:
            found = _autoscale(log, name, dry_run)
            _print_scaled(found, dry_run, quiet=watch is not None, as_json=options.json)
            if watch is None:
                return
            sys.stdout.flush()
            time.sleep(watch)


def _autoscale(log: Log, name: str | None, dry_run: bool) -> list[tuple[str, Scaled]]:
    names = [stream.name for stream in log.streams()] if name is None else [name]
    return [(each, done) for each in names for done in log.autoscale(each, dry_run=dry_run)]


def _print_scaled(
    found: list[tuple[str, Scaled]], dry_run: bool, *, quiet: bool, as_json: bool
) -> None:
    if as_json:
        for name, done in found:
            print_json(screens.scaled_data(name, done) | {"dry_run": dry_run})
        return
    if not found and not quiet:
        console().print("nothing to scale")
    for name, done in found:
        console().print(screens.scaled_text(name, done, dry_run=dry_run))


@app.command
def trim(
    name: str,
    /,
    *,
    before: str | None = None,
    options: Options = NONE,
) -> None:
    """Remove what the stream's policy lets go, or all before a place.

    Only whole batches are removed, so a little more than asked may stay.

    * `headrace stream trim orders`
    * `headrace stream trim orders --before 2026-01-01`
    * `headrace stream trim orders --before 0:1000,1:800`

    Parameters
    ----------
    before
        A time, or segment:offset positions, comma-separated; overrides the policy.
    """
    cut = None if before is None else values.place(before, "--before")
    if isinstance(cut, str | int):
        raise UsageError(
            f"--before: {before!r} is neither a time nor positions; write 2026-01-01, 7d for 7 "
            "days ago, or 0:1000,1:800"
        )
    with options.open() as log:
        stream = log.stream(name)
        _check_within(stream, cut)
        tails = {segment.number: segment.tail for segment in stream.segments}
        firsts = log.trim(name, cut)
    removed = {number: first - tails.get(number, 0) for number, first in firsts.items()}
    if options.json:
        print_json(
            [
                {"segment": number, "first": first, "removed": removed[number]}
                for number, first in sorted(firsts.items())
            ]
        )
        return
    total = sum(removed.values())
    console().print(f"stream [bold]{escape(name)}[/bold]: removed {total:,} events")
    for number, count in sorted(removed.items()):
        if count:
            console().print(f"  segment {number}: {count:,}, it starts at {firsts[number]:,} now")


def _check_within(stream: Stream, cut: object) -> None:
    """Refuse a place beyond the end: most likely a typo, it would remove everything."""
    for segment in stream.segments:
        offset = cut.get(segment.number, 0) if isinstance(cut, dict) else 0
        if offset > segment.head:
            raise UsageError(
                f"--before: offset {offset} is beyond segment {segment.number}, which ends at "
                f"{segment.head}; give that to remove all of it"
            )


app.command(compact)


@app.command
def rm(
    name: str,
    /,
    *,
    yes: Annotated[bool, Parameter(negative="")] = False,
    force: Annotated[bool, Parameter(negative="")] = False,
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
    with options.open() as log:
        stream = log.stream(name)
        internal.refuse(stream, "deleted")
        groups = log.catalog.read(lambda tx: consumers(tx, stream), snapshot=True)
        if groups and not force:
            raise StreamInUseError(name, groups)
        if not yes and not _confirmed(stream, groups):
            raise UsageError(f"stream {name!r} was left alone")
        delete_stream(log, name, force=force)
    if options.json:
        print_json({"deleted": name})
    else:
        console().print(f"stream [bold]{escape(name)}[/bold] is deleted")


def _confirmed(stream: Stream, groups: list[str]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"deleting stream {stream.name!r} needs a yes: add --yes")
    events = sum(segment.events for segment in stream.segments)
    consumed = f", consumed by {', '.join(groups)}" if groups else ""
    sys.stderr.write(f"delete stream {stream.name!r} with {events:,} events{consumed}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
