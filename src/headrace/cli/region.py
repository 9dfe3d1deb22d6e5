"""``headrace region``: name this region, link streams to others, move groups between them."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Annotated

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.cli import region_looks
from headrace.cli import region_shapes as shapes
from headrace.cli.failures import EXIT_FAILED, UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import tell_log
from headrace.cli.region_looks import (
    PlainGroup,
    ReplicatedArgument,
    StreamName,
    key_of,
    near,
    opened,
)
from headrace.cli.values import duration_s, pair

PROMOTE = "Write a stream in this region from now on, of those that one region writes."
REMOVE = "Take a region out of all streams that it shares with this one; its events stay here."
SNAPSHOT = "Snapshots, of groups that are replicated by them."

app = App(name="region", help_epilogue="")
group = App(name="group", help="Let groups follow their consumers to other regions.")
app.command(group)
app.command("headrace.cli.region_snapshots:app", name="snapshot", help=SNAPSHOT)
for _command in (region_looks.status, region_looks.check, region_looks.explain):
    app.command(_command)
app.command("headrace.cli.region_leaving:promote", name="promote", help=PROMOTE)
app.command("headrace.cli.region_leaving:remove", name="remove", help=REMOVE)

RegionName = Annotated[str, Parameter(help="The other region's name.")]


@app.command
def name(name: str, /, *, options: Options = NONE) -> None:
    """Give this catalog a region's name, once and for all; made if it does not exist.

    Example: `headrace region name eu --catalog ./eu`
    """
    from headrace.regions.linking import name_region

    with options.open(create=True) as log:
        made = name_region(log, name)
    options.show(
        shapes.region_shape(made), f"this catalog is region [bold]{escape(made.name)}[/bold]"
    )


@app.command
def renew(
    *,
    force: Annotated[
        bool, Parameter(negative="", help="Without regions that do not answer.")
    ] = False,
    options: Options = NONE,
) -> None:
    """After this catalog was restored from a copy: what is published from now on is new.

    Run it before anything is published here. What others have more of this region's events comes
    back from them.

    Example: `headrace region renew`
    """
    from headrace.regions.renewing import renew_region

    made = near(options, lambda log, others: renew_region(log, others, force=force))
    options.show(
        shapes.region_shape(made), f"region {escape(made.name)} begins its life {made.incarnation}"
    )


@app.command
def link(
    stream: StreamName,
    other: Annotated[str, Parameter(help="The other region: NAME=CATALOG.")],
    /,
    *,
    other_store: Annotated[
        str | None, Parameter(help="The other catalog's store, if it is not beside it.")
    ] = None,
    credentials: Annotated[
        str | None, Parameter(help="Where its password is: env:NAME. It is never stored.")
    ] = None,
    writers: Annotated[str, Parameter(help="'all', or the one region that publishes.")] = "all",
    backfill: Annotated[str, Parameter(help="'all', 'none', or a time.")] = "all",
    filter: Annotated[
        str | None, Parameter(help="Only events whose subject passes it go to other regions.")
    ] = None,
    one_sided: Annotated[
        bool, Parameter(negative="", help="Only here; the other side links it too.")
    ] = False,
    here: Annotated[str | None, Parameter(help="How the others reach this catalog.")] = None,
    options: Options = NONE,
) -> None:
    """Link a stream to another region; it is made there if it is missing.

    * `headrace region link orders us=./us --filter 'orders.world.>' --catalog ./eu`
    * `headrace region link orders us=postgresql://app@us/db --credentials env:HEADRACE_US`
    """
    from headrace.regions import linking

    region, catalog = pair(other, "the other region")
    with options.open() as log:
        made = linking.link(
            log,
            stream,
            region,
            here=here or log.catalog.address,
            catalog=catalog,
            store=other_store,
            credentials=credentials,
            writers=writers,
            backfill=backfill,
            filter=filter,
            one_sided=one_sided,
        )
    created = f"; it was made in {', '.join(made.created_in)}" if made.created_in else ""
    rest = f"; link it from {', '.join(made.one_sided)} as well" if made.one_sided else ""
    options.show(
        shapes.linked_shape(made),
        f"stream [bold]{escape(stream)}[/bold] is in {', '.join(made.regions)}{created}{rest}",
    )


@app.command
def unlink(stream: StreamName, /, *, options: Options = NONE) -> None:
    """Take a stream out of the other regions, on this side; its events stay.

    Linked again, it goes on where it ended, with what was published meanwhile.

    Example: `headrace region unlink orders`
    """
    from headrace.regions import leaving

    with options.open() as log:
        done = leaving.unlink(log, stream)
    names = [shapes.named(key) for key in done.groups]
    rest = f"; so are its groups {', '.join(names)}" if names else ""
    options.show(
        shapes.UnlinkedStream(unlinked=stream, groups=tuple(names)),
        f"stream {escape(stream)} is in this region alone{escape(rest)}",
    )


@app.command
def pause(region: RegionName, /, *, options: Options = NONE) -> None:
    """Copy nothing from a region for the time being.

    Example: `headrace region pause us`
    """
    _set_state(options, region, "paused", "nothing is copied from")


@app.command
def resume(region: RegionName, /, *, options: Options = NONE) -> None:
    """Copy from a region again.

    Example: `headrace region resume us`
    """
    _set_state(options, region, "active", "events are copied from")


@app.command
def rejoin(region: RegionName, /, *, options: Options = NONE) -> None:
    """A region that was declared lost is back: its tail comes over, nothing twice.

    Example: `headrace region rejoin eu`
    """
    _set_state(options, region, "active", "events are copied again from")


def _set_state(options: Options, region: str, state: str, said: str) -> None:
    from headrace.regions import losing

    with options.open() as log:
        changed = losing.set_state(log, region, state)
    done = shapes.RegionState(region=region, state=state, streams=tuple(changed))
    options.show(done, f"{said} {escape(region)}")


# --- groups ----------------------------------------------------------------------------------


@group.command
def enable(
    stream: ReplicatedArgument,
    name: PlainGroup = None,
    /,
    *,
    home: Annotated[str | None, Parameter(help="The region in which it is consumed.")] = None,
    eager: Annotated[
        bool, Parameter(negative="", help="Acks do not wait for the data behind them.")
    ] = False,
    adopt: Annotated[str | None, Parameter(help="Whose progress counts, if both have it.")] = None,
    mode: Annotated[
        str, Parameter(help="How progress is exchanged: origin (exact), or snapshot.")
    ] = "origin",
    options: Options = NONE,
) -> None:
    """Let a group's progress follow its consumers to the other regions.

    * `headrace region group enable orders billing --home eu`
    * `headrace region group enable '$share/audit/orders.>'`
    """
    from headrace.regions import enabling

    key = key_of(stream, name)
    made = near(
        options,
        lambda log, others: enabling.enable(
            log, key, others, home=home, eager=eager, adopt=adopt, mode=mode
        ),
    )
    where = f"at home in {made.home}" if made.home else "consumed in every region"
    options.show(
        shapes.replicated_shape(made),
        f"group [bold]{escape(shapes.named(key))}[/bold] is replicated, {where}",
    )


@group.command
def disable(
    stream: ReplicatedArgument, name: PlainGroup = None, /, *, options: Options = NONE
) -> None:
    """Exchange a group's progress no longer, on this side.

    Example: `headrace region group disable orders billing`
    """
    from headrace.regions import enabling

    key = key_of(stream, name)
    with options.open() as log:
        found = enabling.disable(log, key)
    options.show(
        shapes.replicated_shape(found),
        f"group {escape(shapes.named(key))} is no longer replicated from here",
    )


@app.command
def switch(
    stream: ReplicatedArgument,
    name: PlainGroup = None,
    /,
    *,
    to: Annotated[str, Parameter(help="The region that it moves to.")],
    timeout: Annotated[str, Parameter(help="How long it may take.")] = "30s",
    dry_run: Annotated[
        bool, Parameter(negative="", help="Only see whether it can be done.")
    ] = False,
    options: Options = NONE,
) -> None:
    """Move a group to another region: its members there begin exactly where it was.

    * `headrace region switch orders billing --to us --catalog ./eu`
    * `headrace region switch orders billing --to us --dry-run --catalog ./eu`
    """
    from headrace.regions import moving

    key, limit_s = key_of(stream, name), duration_s(timeout, "--timeout")
    done = near(
        options,
        lambda log, others: moving.switch(log, key, to, others, timeout_s=limit_s, dry_run=dry_run),
    )
    said = "can move" if dry_run else f"moved within {done.took_s:.2f} s"
    shown = escape(shapes.named(key))
    options.show(
        shapes.switch_shape(done),
        f"group [bold]{shown}[/bold] {said} from {done.source} to {done.target}",
    )


@app.command
def synced(
    stream: ReplicatedArgument,
    name: PlainGroup = None,
    /,
    *,
    wait: Annotated[str | None, Parameter(help="Wait this long for it.")] = None,
    options: Options = NONE,
) -> int:
    """Whether the other regions know all that was acked here; exit status 1 if they do not.

    Example: `headrace region synced orders billing --wait 10s`
    """
    from headrace.regions import moving
    from headrace.regions.records import TIMEOUT_S_MAX

    key, wait_s = key_of(stream, name), duration_s(wait, "--wait") if wait is not None else 0
    if wait_s > TIMEOUT_S_MAX:
        raise UsageError(f"--wait {wait}: give {TIMEOUT_S_MAX:g} seconds at most")
    until_s = time.monotonic() + wait_s
    with opened(options) as (log, others):
        missing = moving.unsynced(log, key, others)
        while missing and time.monotonic() < until_s:
            time.sleep(moving.POLL_S)
            missing = moving.unsynced(log, key, others)
    said = ", ".join(f"{region} misses {count}" for region, count in missing.items())
    options.show(
        shapes.SyncedShape(group=shapes.named(key), synced=not missing, missing=missing),
        f"{escape(said)} cursors of {escape(shapes.named(key))}"
        if missing
        else f"{escape(shapes.named(key))} is in step",
    )
    return EXIT_FAILED if missing else 0


@app.command(name="fail-over")
def fail_over(
    *,
    lost: Annotated[str, Parameter(help="The region that is gone.")],
    force: Annotated[bool, Parameter(negative="", help="Even if it answers.")] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Only tell what would happen.")] = False,
    options: Options = NONE,
) -> None:
    """A region is gone: its groups are at home here, at the last place that is known of them.

    Example: `headrace region fail-over --lost eu --dry-run --catalog ./us`
    """
    from headrace.regions import losing

    done = near(
        options,
        lambda log, others: losing.fail_over(log, lost, others, force=force, dry_run=dry_run),
    )
    verb = "would be" if dry_run else "are"
    ages = [f"{name}: last heard {age_s:.1f} s ago" for name, age_s in done.streams]
    moved = ", ".join(map(shapes.named, done.groups)) or "no group"
    options.show(
        shapes.fail_over_shape(done),
        f"{escape(moved)} {verb} at home in {done.region}",
        *map(escape, ages),
    )


@app.command
def run(*, options: Options = NONE) -> int:
    """Run this region's agent, and copy from the others; until it is stopped. Needs no Spark.

    Example: `headrace region run --catalog ./us`
    """
    import logging

    from headrace.regions.records import get_region
    from headrace.regions.runtime.runner import RegionRunner

    tell_log("%(asctime)s %(message)s").setLevel(logging.INFO)
    stop, asked = threading.Event(), threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        asked.set()
        stop.set()

    with options.open() as log:
        if log.catalog.read(get_region) is None:
            raise UsageError("this catalog is no region yet; name it: headrace region name NAME")
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, end)
        runner = RegionRunner(log)
        worker = threading.Thread(target=runner.run, args=(stop,), name="region", daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(0.2)
    return 0 if asked.is_set() else EXIT_FAILED
