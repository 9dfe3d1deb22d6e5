"""``headrace token``: who gets in to the nodes of a catalog."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import App, Parameter

from headrace.cli.done_shapes import Deleted, NodeLink
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import table
from headrace.cli.values import duration_s
from headrace.errors import HeadraceError

app = App(name="token", help_epilogue="")


class NoNodeError(HeadraceError):
    """No node answers at the address."""


@app.command
def create(
    name: str,
    /,
    *,
    role: Annotated[tuple[str, ...], Parameter(negative="")] = ("view",),
    subjects: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    expires: str | None = None,
    options: Options = NONE,
) -> None:
    """Make a token; its secret is shown this once.

    * `headrace token create grafana --role view`
    * `headrace token create support --role read --subjects 'orders.eu.>' --expires 30d`

    Parameters
    ----------
    name
        What it is called in the record of changes.
    role
        view, read (payloads too), publish, consume or admin; several are possible.
    subjects
        Filters: it sees nothing else.
    expires
        After how long it is no good: 30d.
    """
    from headrace.node.access import tokens

    expires_s = None if expires is None else duration_s(expires, "--expires")
    with options.look() as catalog:
        made = tokens.create(catalog, name, role, subjects, expires_s)
    options.show(made, made.secret)
    if not options.json and sys.stdout.isatty():
        print("keep it: it is stored as a hash, and never shown again", file=sys.stderr)


@app.command
def ls(*, options: Options = NONE) -> None:
    """List tokens, without their secrets.

    Example: `headrace token ls`
    """
    from headrace.node.access import tokens

    with options.look() as catalog:
        found = tokens.listed(catalog)
    rows = (
        (
            each.token,
            ", ".join(each.roles),
            ", ".join(each.subjects) or "all",
            f"{each.created_at:%Y-%m-%d %H:%M}",
            "expired"
            if each.expired
            else ("never" if each.expires_at is None else f"{each.expires_at:%Y-%m-%d %H:%M}"),
        )
        for each in found
    )
    headings = ("token", "roles", "subjects", "created", "expires")
    none = "there are no tokens; make one: headrace token create NAME --role view"
    options.show(found, table(headings, rows) if found else none)


@app.command
def rm(name: str, /, *, options: Options = NONE) -> None:
    """Remove a token: whoever has it is not let in any more.

    Example: `headrace token rm grafana`
    """
    from headrace.node.access import tokens

    with options.look() as catalog:
        tokens.remove(catalog, name)
    options.show(Deleted(deleted=name), f"token {name} is gone")


NODE = "http://127.0.0.1:8470"


def link_command(address: str) -> str:
    """The command that prints a link to the node at an address."""
    return "headrace token link" + ("" if address == NODE else f" --node {address}")


@app.command
def link(*, node: str = NODE, options: Options = NONE) -> None:
    """Print a link that lets a browser in, once and within a minute.

    * `headrace token link`
    * `headrace token link --node http://127.0.0.1:8480`

    Parameters
    ----------
    node
        Where the node is.
    """
    from headrace.node.access.tokens import VARIABLE, own_token

    place = options.place
    folder = None if "://" in place else Path(place).expanduser()
    secret = own_token(folder, create=False)
    if secret is None:
        told = f"give the node and this command one token by {VARIABLE}"
        raise UsageError(f"{place} holds no node's token; start headrace serve first, or {told}")
    found = _asked(node, secret)
    options.show(NodeLink(link=found), found)


def _asked(node: str, secret: str) -> str:
    parts = urlsplit(node)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--node {node}: give an address: http://127.0.0.1:8470")
    made: http.client.HTTPConnection
    if parts.scheme == "https":
        made = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=10, context=ssl.create_default_context()
        )
    else:
        made = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    try:
        made.request("POST", "/api/v1/link", headers={"authorization": f"Bearer {secret}"})
        answer = made.getresponse()
        data = json.loads(answer.read(65_536) or b"{}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoNodeError(
            f"no node answers at {node}: {error}; start one with headrace serve, or say where "
            "it is: headrace token link --node ADDRESS"
        ) from error
    finally:
        made.close()
    if answer.status != 200:
        raise NoNodeError(f"the node at {node} refuses: {data.get('detail', answer.status)}")
    return f"{node.rstrip('/')}{data['path']}"
