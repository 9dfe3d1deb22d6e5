"""``headrace group static`` and ``headrace group elastic``: create, look at and remove groups."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.cli import group_screens as screens
from headrace.cli import values
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options, console, print_json
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.admin import GroupInfo
from headrace.groups.partitioned.core.config import MemberMapping
from headrace.groups.partitioned.explain import filling_finding
from headrace.groups.partitioned.runtime.units import GroupKind
from headrace.log.read import Place

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


def mapping(text: str, option: str = "MAPPING") -> MemberMapping:
    """A member and its partitions.

    >>> mapping("m1:0,1")
    MemberMapping(member='m1', partitions=(0, 1))
    """
    member, colon, partitions = text.partition(":")
    if not colon or not member:
        raise UsageError(f"{option}: {text!r} is not a mapping; write member:partitions, m1:0,1")
    return MemberMapping(member, tuple(values.numbers(partitions, option)) if partitions else ())


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
    given = [_mapping(text) for text in mapping]
    with options.open() as log:
        made = admin.create_static(
            log,
            stream,
            group,
            max_members=max_members,
            filter=filter,
            members=values.words(members),
            mappings=given,
            start=_start(start),
        )
    _show(made, options)


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
    given = [_mapping(text) for text in mapping]
    with options.open() as log:
        made = admin.create_elastic(
            log,
            stream,
            group,
            max_members=max_members,
            filter=filter,
            wildcards=values.numbers(wildcards, "--wildcards") if wildcards else [],
            max_buffered=max_buffered,
            members=values.words(members),
            mappings=given,
            distribution=distribution,
            start=_start(start),
        )
    _show(made, options)


_mapping = mapping


def _show(info: GroupInfo, options: Options) -> None:
    if options.json:
        print_json(screens.group_data(info))
    else:
        console().print(screens.group_line(info))
        console().print(screens.members_table(info))


def show_change(info: GroupInfo, options: Options) -> None:
    """What a group is after a change."""
    _show(info, options)


# --- the same for both kinds -----------------------------------------------------------------


def _info(kind: GroupKind, stream: str, group: str, options: Options) -> None:
    with options.open() as log:
        found = admin.get(log, stream, group, kind)
        wanting = filling_finding(log, found.name)
    if options.json:
        print_json({**screens.group_data(found), "findings": [wanting] if wanting else []})
        return
    _show(found, options)
    if wanting:
        console().print(escape(wanting))


def _ls(kind: GroupKind, stream: str | None, options: Options) -> None:
    with options.open() as log:
        found = admin.list_groups(log, stream, kind)
    if options.json:
        print_json([screens.group_data(info) for info in found])
    elif not found:
        console().print(f"no {kind.value} groups yet; create one with: headrace group {kind.value}")
    else:
        console().print(screens.groups_table(found))


def _rm(kind: GroupKind, stream: str, group: str, yes: bool, options: Options) -> None:
    with options.open() as log:
        found = admin.get(log, stream, group, kind)
        if not yes and not _confirmed(found):
            raise UsageError(f"group {group!r} was left alone")
        admin.delete(log, stream, group, kind)
    if options.json:
        print_json({"deleted": group, "stream": stream})
    else:
        console().print(f"{kind.value} group [bold]{escape(group)}[/bold] is deleted")


def _confirmed(info: GroupInfo) -> bool:
    name = info.name.group
    if not sys.stdin.isatty():
        raise UsageError(f"deleting group {name!r} needs a yes: add --yes")
    sys.stderr.write(f"delete group {name!r} with its progress and its work queue? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@static.command(name="info")
def static_info(stream: str, group: str, /, *, options: Options = NONE) -> None:
    """Show a static group and who is given which partitions.

    Example: `headrace group static info orders audit`
    """
    _info(GroupKind.STATIC, stream, group, options)


@elastic.command(name="info")
def elastic_info(stream: str, group: str, /, *, options: Options = NONE) -> None:
    """Show an elastic group and who is given which partitions.

    Example: `headrace group elastic info orders billing`
    """
    _info(GroupKind.ELASTIC, stream, group, options)


@static.command(name="ls")
def static_ls(stream: str | None = None, /, *, options: Options = NONE) -> None:
    """List the static groups of a stream, or of all.

    Example: `headrace group static ls orders`
    """
    _ls(GroupKind.STATIC, stream, options)


@elastic.command(name="ls")
def elastic_ls(stream: str | None = None, /, *, options: Options = NONE) -> None:
    """List the elastic groups of a stream, or of all.

    Example: `headrace group elastic ls orders`
    """
    _ls(GroupKind.ELASTIC, stream, options)


Yes = Annotated[bool, Parameter(negative="", help="Do not ask.")]


@static.command(name="rm")
def static_rm(stream: str, group: str, /, *, yes: Yes = False, options: Options = NONE) -> None:
    """Delete a static group with its progress; the events stay.

    Example: `headrace group static rm orders audit --yes`
    """
    _rm(GroupKind.STATIC, stream, group, yes, options)


@elastic.command(name="rm")
def elastic_rm(stream: str, group: str, /, *, yes: Yes = False, options: Options = NONE) -> None:
    """Delete an elastic group with its work queue and its progress; the stream stays.

    Example: `headrace group elastic rm orders billing --yes`
    """
    _rm(GroupKind.ELASTIC, stream, group, yes, options)
