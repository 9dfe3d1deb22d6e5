"""``headrace group static`` and ``headrace group elastic``: create, look at and remove groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.cli import group_screens as screens
from headrace.cli import group_shapes, values
from headrace.cli.done_shapes import Deleted
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import confirm
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.admin import GroupInfo
from headrace.groups.partitioned.core.config import MemberMapping
from headrace.groups.partitioned.entry import removable
from headrace.groups.partitioned.explain import filling_finding
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.units import GroupKind
from headrace.log.log import Log
from headrace.log.query import Place

static = App(
    name="static",
    help="Groups whose members are fixed, on a stream that has partitions.",
    help_epilogue="",
)
elastic = App(
    name="elastic",
    help="Groups whose members come and go, on any stream.",
    help_epilogue="",
)

elastic.command("headrace.cli.group_admin:members_app", name="members")
elastic.command("headrace.cli.group_admin:mapping_app", name="mapping")


def mappings(texts: Sequence[str], option: str) -> list[MemberMapping]:
    """Members and their partitions.

    >>> mappings(["m1:0,1"], "--mapping")
    [MemberMapping(member='m1', partitions=(0, 1))]
    """
    found = []
    for text in texts:
        member, colon, numbers = text.partition(":")
        if not colon or not member:
            raise UsageError(
                f"{option}: {text!r} is not a mapping; write member:partitions, m1:0,1"
            )
        partitions = values.numbers(numbers, option) if numbers else ()
        found.append(MemberMapping(member, tuple(partitions)))
    return found


def _start(text: str) -> Place:
    place = values.place(text, "--start")
    if isinstance(place, int):
        raise UsageError(
            f"--start: {text!r} is not a place for a group; write earliest, latest, a time, 15m "
            "for 15 minutes ago, or 0:1000,1:800"
        )
    return place


Members = Annotated[
    str, Parameter(help="Members, comma-separated; partitions are distributed over them.")
]
MappingOption = Annotated[
    tuple[str, ...],
    Parameter(negative="", help="Instead of members: m1:0,1 (once for each member)."),
]
StartOption = Annotated[
    str,
    Parameter(
        help="Where in the stream to begin: earliest, latest, a time, 15m for 15 minutes ago, or "
        "segment:offset,…"
    ),
]
ReplicatedOption = Annotated[
    bool, Parameter(negative="", help="In the other regions of its stream as well.")
]
HomeOption = Annotated[str | None, Parameter(help="Replicated, and consumed in this region alone.")]
ModeOption = Annotated[str | None, Parameter(help="Replicated by origin (exact), or by snapshot.")]
Yes = Annotated[bool, Parameter(negative="", help="Do not ask.")]


@static.command(name="create")
def create_static(
    stream: str,
    group: str,
    /,
    *,
    max_members: int,
    filter: str = "",
    members: Members = "",
    mapping: MappingOption = (),
    start: StartOption = "earliest",
    replicated: ReplicatedOption = False,
    home: HomeOption = None,
    mode: ModeOption = None,
    options: Options = NONE,
) -> None:
    """Create a static group; its members stay as they are until it is deleted.

    The stream was made with --partitions, or its subjects begin with the partition's number.

    * `headrace group static create orders audit --max-members 4 --members m1,m2`
    * `headrace group static create orders audit --max-members 3 --mapping m1:0,1 --mapping m2:2`

    Parameters
    ----------
    max_members
        The number of partitions.
    filter
        Only these subjects (without the partition's number).
    """
    given = mappings(mapping, "--mapping")

    def create(log: Log) -> GroupInfo:
        return admin.create_static(
            log,
            stream,
            group,
            max_members=max_members,
            filter=filter,
            members=values.words(members),
            mappings=given,
            start=_start(start),
        )

    with options.open() as log:
        plain = not replicated and home is None and mode is None
        name = GroupName(stream, group)
        made = create(log) if plain else _replicated(log, name, home, create, mode)
    show(made, options)


def _replicated(
    log: Log,
    name: GroupName,
    home: str | None,
    create: Callable[[Log], GroupInfo],
    mode: str | None,
) -> GroupInfo:
    from headrace.regions.creating import create_replicated

    return create_replicated(log, name, home, create, mode)


def _elastic(
    log: Log, name: GroupName, home: str | None, create: Callable[[Log], GroupInfo]
) -> GroupInfo:
    if home is None:
        return create(log)
    from headrace.regions.creating import create_replicated

    return create_replicated(log, name, home, create, elastic=True)


@elastic.command(name="create")
def create_elastic(
    stream: str,
    group: str,
    /,
    *,
    max_members: int,
    filter: str,
    wildcards: str = "",
    max_buffered: int = 0,
    members: Members = "",
    mapping: MappingOption = (),
    distribution: Literal["blocks", "sticky"] = "blocks",
    start: StartOption = "earliest",
    home: HomeOption = None,
    options: Options = NONE,
) -> None:
    """Create an elastic group and its work queue; the pipeline fills the queue.

    Example: `headrace group elastic create orders billing --max-members 16
    --filter 'orders.*.*' --wildcards 2 --members m1,m2`

    Parameters
    ----------
    max_members
        The number of partitions, and so of members that can work at a time.
    filter
        The subjects it consumes, with at least one *.
    wildcards
        Numbers (from 1) of the * that make the key, comma-separated; none: the whole subject.
    max_buffered
        Events that wait in the work queue at most (0: no limit).
    distribution
        blocks: by the names alone; sticky: a change moves as little as possible.
    """
    create = partial(
        admin.create_elastic,
        stream=stream,
        group=group,
        max_members=max_members,
        filter=filter,
        wildcards=values.numbers(wildcards, "--wildcards") if wildcards else [],
        max_buffered=max_buffered,
        members=values.words(members),
        mappings=mappings(mapping, "--mapping"),
        distribution=distribution,
        start=_start(start),
    )
    with options.open() as log:
        made = _elastic(log, GroupName(stream, group), home, create)
    show(made, options)


def show(info: GroupInfo, options: Options) -> None:
    """What a group is, or is after a change."""
    options.show(
        group_shapes.partitioned(info), screens.group_line(info), screens.members_table(info)
    )


def _commands(app: App, kind: GroupKind, example: str, goes: str) -> None:
    """What both kinds have: info, ls and rm."""
    a_group = f"{'an' if kind is GroupKind.ELASTIC else 'a'} {kind.value} group"

    def helped(text: str, usage: str) -> str:
        return f"{text}\n\nExample: `headrace group {kind.value} {usage}`"

    show_help = f"Show {a_group} and who is given which partitions."

    @app.command(help=helped(show_help, f"info orders {example}"))
    def info(stream: str, group: str, /, *, options: Options = NONE) -> None:
        with options.open() as log:
            found = admin.get(log, stream, group, kind)
            wanting = filling_finding(log, found.name)
        if options.json:
            options.show(group_shapes.partitioned(found, wanting or ""))
            return
        show(found, options)
        if wanting:
            options.show(None, escape(wanting))

    @app.command(help=helped(f"List the {kind.value} groups of a stream, or of all.", "ls orders"))
    def ls(stream: str | None = None, /, *, options: Options = NONE) -> None:
        with options.open() as log:
            found = admin.list_groups(log, stream, kind)
        none = f"no {kind.value} groups yet; create one with: headrace group {kind.value}"
        listed = [group_shapes.partitioned(info) for info in found]
        options.show(listed, screens.groups_table(found) if found else none)

    @app.command(help=helped(f"Delete {a_group} with {goes}.", f"rm orders {example} --yes"))
    def rm(stream: str, group: str, /, *, yes: Yes = False, options: Options = NONE) -> None:
        with options.open() as log:
            log.catalog.read(lambda tx: removable(tx, GroupName(stream, group), kind))
            confirm(f"group {group!r}", "its progress and its work queue", yes=yes)
            admin.delete(log, stream, group, kind)
        gone = f"{kind.value} group [bold]{escape(group)}[/bold] is deleted"
        options.show(Deleted(deleted=group_shapes.full_name(stream, group)), gone)


_commands(static, GroupKind.STATIC, "audit", "its progress; the events stay")
_commands(
    elastic, GroupKind.ELASTIC, "billing", "its work queue and its progress; the stream stays"
)
