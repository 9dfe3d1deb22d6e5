"""``headrace reader ls|info|lag|explain``: looking at reader groups."""

from __future__ import annotations

from headrace.catalog.records import left_out
from headrace.cli import reader_screens, shapes
from headrace.cli.options import NONE, Options
from headrace.cli.reader_common import GroupArgument
from headrace.groups.readers import info as readers_info
from headrace.groups.readers.names import readable_rows


def ls(*, options: Options = NONE) -> None:
    """List the reader groups.

    Example: `headrace reader ls`
    """
    with options.look() as catalog:
        rows = catalog.read(readable_rows)
        found = []
        for row in rows:
            with left_out():
                found.append(readers_info.summary(catalog, row.name))
    options.show(found, reader_screens.groups_table(found))


def info(group: GroupArgument, /, *, options: Options = NONE) -> None:
    """Show who reads what, what waits for whom, and the checkpoints.

    Example: `headrace reader info report`
    """
    with options.look() as catalog:
        found = readers_info.read_info(catalog, group)
    options.show(found, *reader_screens.info_lines(found))


def lag(group: GroupArgument, /, *, options: Options = NONE) -> None:
    """Show how far a group is behind: in all, by reader and by segment.

    Example: `headrace reader lag report`
    """
    with options.look() as catalog:
        found = readers_info.read_lag(catalog, group)
    options.show(found, *reader_screens.lag_lines(found))


def explain(group: GroupArgument, /, *, options: Options = NONE) -> None:
    """Say what a group is doing and why, with its last decisions.

    Example: `headrace reader explain report`
    """
    with options.look() as catalog:
        found = readers_info.explain(catalog, group)
    shown = shapes.ReaderExplanationShape(
        group=found.group,
        lines=found.lines,
        decisions=tuple(shapes.decided(one) for one in found.decisions),
    )
    options.show(shown, *reader_screens.explain_lines(found))
