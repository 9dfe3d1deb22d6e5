"""``headrace session``: look at sessions, and remove them."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.cli.done_shapes import Deleted
from headrace.cli.options import NONE, Options
from headrace.cli.output import table, with_letters
from headrace.cli.screens import time_text
from headrace.cli.session_shapes import session_shape
from headrace.groups.shared import sessions
from headrace.groups.shared.sessions import SessionInfo

app = App(
    name="session", help="Look at the sessions of workers, and remove them.", help_epilogue=""
)

SessionName = Annotated[str, Parameter(help="The session's name.")]


@app.command
def ls(*, options: Options = NONE) -> None:
    """List the sessions.

    Example: `headrace session ls`
    """
    with options.look() as catalog:
        found = catalog.read(lambda tx: tuple(sessions.all_sessions(tx)), snapshot=True)
    rows = (
        (
            each.record.name,
            ", ".join(one.text for one in each.record.subscriptions),
            each.node or "nobody",
            _until(each),
        )
        for each in found
    )
    shown = table(("session", "subscriptions", "run by", "kept until"), rows)
    none = "no sessions; a worker makes one with hr.session(NAME), or: headrace subscribe"
    options.show([session_shape(each) for each in found], shown if found else none)


@app.command
def info(name: SessionName, /, *, options: Options = NONE) -> None:
    """Show a session.

    Example: `headrace session info worker-1`
    """
    with options.look() as catalog:
        found = catalog.read(lambda tx: sessions.require(tx, name), snapshot=True)
    kind = "persistent" if found.record.persistent else "in memory"
    options.show(
        session_shape(found),
        f"session [bold]{escape(name)}[/bold] ({kind}), run by {escape(found.node or 'nobody')}, "
        f"{_until(found)}",
        *(
            f"  {escape(each.text)} ({'shared' if each.shared else 'private'})"
            for each in found.record.subscriptions
        ),
    )


@app.command
def rm(
    name: SessionName,
    /,
    *,
    force: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Remove a session with the progress and the dead letters of its private subscriptions.

    Example: `headrace session rm worker-1`

    Parameters
    ----------
    force
        Even while a process runs it; that process is told.
    """
    from headrace.groups.shared.admin import Groups

    with options.open() as log:
        dead_letters = Groups(log).remove_session(name, force=force)
    told = f"session [bold]{escape(name)}[/bold] is removed{with_letters(dead_letters)}"
    options.show(Deleted(deleted=name, dead_letters=dead_letters), told)


def _until(info: SessionInfo) -> str:
    if info.expires_us is None:
        return "while it runs"
    return time_text(info.expires_us - info.expires_us % 1_000_000)
