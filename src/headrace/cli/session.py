"""``headrace session``: look at sessions, and remove them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.markup import escape
from rich.table import Table

from headrace.cli.group_shared import with_letters
from headrace.cli.options import NONE, Options, console, print_json
from headrace.cli.screens import time_text
from headrace.groups.shared.admin import Groups
from headrace.groups.shared.sessions import SessionInfo

app = App(
    name="session", help="Look at the sessions of workers, and remove them.", help_epilogue=""
)


@app.command
def ls(*, options: Options = NONE) -> None:
    """List the sessions.

    Example: `headrace session ls`
    """
    with options.open() as log:
        found = Groups(log).sessions()
    if options.json:
        print_json([data(each) for each in found])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("session", "subscriptions", "run by", "kept until"):
        table.add_column(heading)
    for each in found:
        table.add_row(
            escape(each.record.name),
            escape(", ".join(one.text for one in each.record.subscriptions)),
            escape(each.node or "nobody"),
            _until(each),
        )
    console().print(table)


@app.command
def info(name: str, /, *, options: Options = NONE) -> None:
    """Show a session.

    Example: `headrace session info worker-1`

    Parameters
    ----------
    name
        The session's name.
    """
    with options.open() as log:
        found = Groups(log).session(name)
    if options.json:
        print_json(data(found))
        return
    kind = "persistent" if found.record.persistent else "in memory"
    screen = console()
    screen.print(
        f"session [bold]{escape(name)}[/bold] ({kind}), run by {escape(found.node or 'nobody')}, "
        f"{_until(found)}"
    )
    for each in found.record.subscriptions:
        screen.print(f"  {escape(each.text)} ({'shared' if each.shared else 'private'})")


@app.command
def rm(
    name: str,
    /,
    *,
    force: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Remove a session with the progress and the dead letters of its private subscriptions.

    Example: `headrace session rm worker-1`

    Parameters
    ----------
    name
        The session's name.
    force
        Even while a process runs it; that process is told.
    """
    with options.open() as log:
        dead_letters = Groups(log).remove_session(name, force=force)
    if options.json:
        print_json({"removed": name, "dead_letters": dead_letters})
    else:
        console().print(
            f"session [bold]{escape(name)}[/bold] is removed{with_letters(dead_letters)}"
        )


def _until(info: SessionInfo) -> str:
    if info.expires_us is None:
        return "while it runs"
    return time_text(info.expires_us - info.expires_us % 1_000_000)


def data(info: SessionInfo) -> dict[str, Any]:
    """A session for programs."""
    found: dict[str, Any] = msgspec.to_builtins(info.record)
    expires = None if info.expires_us is None else time_text(info.expires_us)
    return {**found, "node": info.node, "token": info.token, "kept_until": expires}
