"""``headrace epoch status``, ``explain`` and ``subscriptions``: looks at epoch streams."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

from headrace.cli import epoch_shapes, shapes
from headrace.cli.epoch_times import StreamArgument
from headrace.cli.group_looks import checked, decision_line
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, table
from headrace.epochs.core import ledger
from headrace.epochs.runtime import recorded
from headrace.epochs.runtime import status as standing
from headrace.epochs.runtime import subscriptions as named
from headrace.epochs.runtime.status import EpochStatus


def status(stream: StreamArgument, /, *, options: Options = NONE) -> None:
    """Show what is complete, what is open, and how far publishers and subscriptions are.

    Example: `headrace epoch status orders`
    """
    with options.open() as log:
        found = standing.status(log, stream)
    publishers = [
        (
            one.name,
            ledger.shown(one.held),
            one.state,
            "yes" if one.holds_back else "",
            _ago(found, one.last_commit_us),
        )
        for one in found.publishers
    ]
    readers = [
        (
            one.name,
            "choosing its start" if one.frontier is None else ledger.shown(one.frontier),
            one.epochs,
            one.rows,
            _span(one.behind_us),
        )
        for one in found.subscriptions
    ]
    shown: list[Any] = [_head(found)]
    if publishers:
        shown.append(table(("publisher", "holds", "is", "holds back", "last commit"), publishers))
    if readers:
        headings = ("subscription", "acked before", ">epochs behind", ">rows", "for")
        shown.append(table(headings, readers))
    options.show(epoch_shapes.stream_shape(found), *shown)


def explain(stream: StreamArgument, /, *, options: Options = NONE) -> None:
    """Say why the frontier stands where it does, and what to do.

    Example: `headrace epoch explain orders`
    """
    with options.open() as log:
        found = standing.status(log, stream)
    lines = standing.explained(found)
    options.show(epoch_shapes.explained(found, lines), *map(escape, lines))


def decisions(
    stream: StreamArgument,
    /,
    *,
    limit: Annotated[int, Parameter(help="How many of the latest to show.")] = 20,
    options: Options = NONE,
) -> None:
    """Show the latest decisions about a stream's publishers and subscriptions, oldest first.

    Example: `headrace epoch decisions orders --limit 10`
    """
    with options.open() as log:
        found = recorded.read(log.catalog, stream, checked(limit))
    none = f"nothing is recorded about the epochs of {escape(stream)} yet"
    lines = [escape(decision_line(one)) for one in found] or [none]
    options.show([shapes.decided(one) for one in found], *lines)


def subscriptions(*, options: Options = NONE) -> None:
    """List named subscriptions, and before which frontier all is acked.

    Example: `headrace epoch subscriptions`
    """
    with options.open() as log:
        found = named.listed(log.catalog)
    rows = [
        (
            one.name,
            ", ".join(one.streams),
            one.mode,
            "choosing its start" if one.frontier is None else ledger.shown(one.frontier),
            "yes" if one.held else "no",
            "never" if one.expiry_ms is None else _span(one.expiry_ms * 1000),
        )
        for one in found
    ]
    headings = ("subscription", "streams", "mode", "acked before", "held now", "forgotten after")
    none = "no named subscriptions; make one with: headrace epoch read STREAM --name NAME"
    data = [epoch_shapes.subscription_shape(one) for one in found]
    options.show(data, table(headings, rows) if rows else none)


def _head(found: EpochStatus) -> str:
    least = "at least " if found.open_at_least else ""
    return (
        f"stream [bold]{escape(found.stream)}[/bold] is {found.status}"
        f"{escape(f' ({found.reason})') if found.reason else ''}: frontier "
        f"{ledger.shown(found.frontier)}, readable from {ledger.shown(found.since)}; {least}"
        f"{counted(found.open_epochs, 'open epoch')} with {counted(found.open_rows, 'row')}"
    )


def _ago(found: EpochStatus, us: int | None) -> str:
    return "never" if us is None else f"{_span(found.now_us - us)} ago"


def _span(us: int) -> str:
    return standing.span_text(us)
