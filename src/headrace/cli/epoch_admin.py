"""``headrace epoch rollback``, ``release``, ``abort`` and ``forget``: for what will not go on."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from headrace.cli.done_shapes import Deleted
from headrace.cli.epoch_shapes import EndedPublisher
from headrace.cli.epoch_times import PublisherArgument, StreamArgument
from headrace.cli.options import NONE, Options
from headrace.epochs import operators
from headrace.epochs.runtime import subscriptions


def rollback(
    stream: StreamArgument, publisher: PublisherArgument, /, *, options: Options = NONE
) -> None:
    """Take back what a publisher put into epochs it still holds, and do without it; fences it.

    Example: `headrace epoch rollback orders eu`
    """
    with options.open() as log:
        operators.roll_back(log, stream, publisher)
    options.show(
        EndedPublisher(stream=stream, publisher=publisher, ended="rolled back"),
        f"what [bold]{escape(publisher)}[/bold] left unfinished is taken back; "
        f"{escape(stream)} goes on without it",
    )


def release(
    stream: StreamArgument, publisher: PublisherArgument, /, *, options: Options = NONE
) -> None:
    """Do without a publisher; what it left counts as complete. Fences it.

    Example: `headrace epoch release orders eu`
    """
    with options.open() as log:
        operators.release(log, stream, publisher)
    options.show(
        EndedPublisher(stream=stream, publisher=publisher, ended="released"),
        f"what [bold]{escape(publisher)}[/bold] left counts; {escape(stream)} goes on without it",
    )


def abort(
    stream: StreamArgument,
    publisher: PublisherArgument,
    /,
    *,
    reason: Annotated[str, Parameter(help="What those who read the stream are told.")],
    options: Options = NONE,
) -> None:
    """End a stream as aborted, for good, in the name of a publisher; fences it.

    Example: `headrace epoch abort orders eu --reason 'the source is broken'`
    """
    with options.open() as log:
        operators.abort(log, stream, publisher, reason)
    options.show(
        EndedPublisher(stream=stream, publisher=publisher, ended="aborted", reason=reason),
        f"stream [bold]{escape(stream)}[/bold] is aborted",
    )


def forget(
    name: Annotated[str, Parameter(help="The subscription's name.")],
    /,
    *,
    options: Options = NONE,
) -> None:
    """Forget a named subscription; a program that holds it is fenced.

    Example: `headrace epoch forget report`
    """
    with options.open() as log:
        subscriptions.forget(log.catalog, name)
    options.show(Deleted(deleted=name), f"subscription [bold]{escape(name)}[/bold] is forgotten")
