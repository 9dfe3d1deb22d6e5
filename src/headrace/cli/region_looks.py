"""``headrace region status``, ``check`` and ``explain``, and what the commands of regions share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from headrace.cli import region_shapes as shapes
from headrace.cli.failures import EXIT_FAILED, UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import table, until_ctrl_c

if TYPE_CHECKING:
    from headrace.log.log import Log
    from headrace.regions.runtime.neighbours import Neighbours
    from headrace.regions.status import (
        LinkStatus,
        RegionsStatus,
        ReplicatedGroup,
        SnapshotStatus,
    )

T = TypeVar("T")

StreamName = Annotated[str, Parameter(help="The stream.")]
ReplicatedArgument = Annotated[
    str, Parameter(help="A full name, as STREAM/GROUP or reader/GROUP, or the group's stream.")
]
PlainGroup = Annotated[str | None, Parameter(help="The group's name, after its stream.")]


@contextmanager
def opened(options: Options) -> Iterator[tuple[Log, Neighbours]]:
    """The log, and the other regions' as far as they are looked at."""
    from headrace.regions.runtime.neighbours import Neighbours

    neighbours = Neighbours()
    with options.open() as log:
        try:
            yield log, neighbours
        finally:
            neighbours.close()


def near(options: Options, call: Callable[[Log, Neighbours], T]) -> T:
    """Do something that looks at other regions as well."""
    with opened(options) as (log, neighbours):
        return call(log, neighbours)


def key_of(name: str, plain: str | None) -> str:
    """The key of the group that was named."""
    from headrace.regions.records import group_key

    return group_key(name, plain)


def status(
    *,
    watch: Annotated[bool, Parameter(negative="", help="Again and again, until Ctrl-C.")] = False,
    options: Options = NONE,
) -> None:
    """How links and groups are doing: lag, who waits and why, what is behind.

    * `headrace region status`
    * `headrace region status --watch --catalog ./us`
    """
    from headrace.regions.status import status as look

    if watch:
        until_ctrl_c()
    with opened(options) as (log, others):
        while True:
            found = look(log, others)
            options.show(shapes.region_status(found), *_screens(found))
            if not watch:
                return
            time.sleep(1.0)


def _screens(found: RegionsStatus) -> list[str | Table]:
    if found.region is None:
        return ["this catalog is no region yet; name it with: headrace region name NAME"]
    agent = "an agent runs" if found.agent else "no agent runs; start one with: headrace region run"
    shown: list[str | Table] = [f"region [bold]{escape(found.region)}[/bold]; {agent}"]
    if found.links:
        headings = ("stream", "from", "state", ">lag", "last copied", ">missed", "error")
        rows = [
            (
                *(_crossing(each), each.region, each.state),
                "?" if each.lag_events is None else each.lag_events,
                "" if each.moved_s is None else f"{each.moved_s:.1f} s ago",
                *(each.missed, each.error),
            )
            for each in found.links
        ]
        shown.append(table(headings, rows))
    if found.groups:
        lines = [
            (one.group, one.home or "everywhere", one.waits or "consumes", _behind(one))
            for one in found.groups
        ]
        shown.append(table(("group", "home", "here", "others"), lines))
    if found.snapshots:
        columns = ("stream", ">segment", "last snapshot", "now", ">complete", ">given up", "why")
        shown.append(table(columns, [_snapshot(each) for each in found.snapshots]))
    return shown + [escape(each) for each in found.findings]


def _crossing(link: LinkStatus) -> str:
    return f"{link.stream} ({link.filter})" if link.filter else link.stream


def _snapshot(one: SnapshotStatus) -> tuple[str | int, ...]:
    now = one.phase.replace("_", " ")
    if one.waiting_for:
        now += f" for {one.pending_s or 0:.1f} s, waits for {', '.join(one.waiting_for)}"
    elif one.last_skip:
        now = f"none: {one.last_skip}"
    age = "none yet" if one.age_s is None else f"{one.age_s:.1f} s ago"
    return one.stream, one.segment, age, now, one.completed, one.aborted, one.last_abort


def _behind(group: ReplicatedGroup) -> str:
    if group.absent:
        return f"not in {', '.join(group.absent)} yet"
    if group.mode == "snapshot":
        return "as of a snapshot"
    known = [
        f"{region} cannot be read" if count is None else f"{region} misses {count}"
        for region, count in group.behind.items()
        if count != 0
    ]
    return ", ".join(known) or "in step"


def check(
    stream: StreamName,
    /,
    *,
    deep: Annotated[bool, Parameter(negative="", help="Read and compare all events.")] = False,
    master: Annotated[
        str | None, Parameter(help="With --deep: read them in Spark tasks, on local[*] say.")
    ] = None,
    options: Options = NONE,
) -> int:
    """Whether the regions of a stream hold the same events, lane by lane; status 1 if not.

    * `headrace region check orders`
    * `headrace region check orders --deep`
    * `headrace region check orders --deep --master local[*]`
    """
    from headrace.regions.checking import check as compare

    if master is None:
        found = near(options, lambda log, others: compare(log, stream, others, deep=deep))
    elif deep:
        from headrace.spark.checking import check_regions
        from headrace.spark.connection import connection_of
        from headrace.spark.session import session

        place = connection_of(options.spark)
        spark = session("headrace region check", master)
        found = check_regions(place, stream, spark)
    else:
        raise UsageError("--master goes with --deep: without it no event is read")
    rows = [
        (each.segment, each.lane, each.region, each.here, each.there, _verdict(each.agrees))
        for each in found.lanes
    ]
    headings = (">segment", "lane", "region", ">here", ">there", "")
    options.show(shapes.region_check(found), table(headings, rows), *map(escape, found.differences))
    return 0 if found.agrees else EXIT_FAILED


def _verdict(agrees: bool) -> str:
    return "same" if agrees else "DIFFERS"


def explain(
    stream: ReplicatedArgument, name: PlainGroup = None, /, *, options: Options = NONE
) -> None:
    """Where a group is consumed, why its members here wait, and what is behind.

    Example: `headrace region explain orders billing`
    """
    from headrace.regions.records import require_group
    from headrace.regions.status import status as look

    key = key_of(stream, name)
    with opened(options) as (log, others):
        log.catalog.read(lambda tx: require_group(tx, key))
        whole = look(log, others)
    found = next(each for each in whole.groups if each.key == key)
    options.show(shapes.region_group(found), *map(escape, _reasons(whole, found)))


def _reasons(whole: RegionsStatus, found: ReplicatedGroup) -> list[str]:
    home = f"at home in {found.home}" if found.home else "consumed in every region"
    lines = [f"group {found.group} is {home}"]
    lines.append(f"members here wait: {found.waits}" if found.waits else "members here consume")
    if found.moving_to:
        lines.append(f"it is being handed over to {found.moving_to}")
    for region in found.absent:
        lines.append(
            f"{region} does not have it yet: an agent there makes it (headrace region run)"
        )
    for region, count in found.behind.items():
        if count is None:
            lines.append(f"{region} cannot be read now, and may know less")
        elif count:
            lines.append(f"{region} does not know {count} of its cursors yet")
    for each in whole.links:
        if each.stream in found.streams and (each.lag_events or each.error):
            lag = "?" if each.lag_events is None else each.lag_events
            lines.append(f"{each.stream} from {each.region}: {lag} events behind {each.error}")
    if not whole.agent:
        lines.append("no agent runs here; start one with: headrace region run")
    return lines
