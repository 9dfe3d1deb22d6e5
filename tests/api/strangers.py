"""Programs of one user of the machine, beside another one; each prints what it saw as JSON.

They are started by root, and the other user is ``nobody``: a child that gives up its rights.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from websockets.sync.client import connect

import headrace.sync
from headrace.catalog.sqlite import FILE
from tests.api.forking import in_child, show

NOBODY = 65534


def as_nobody(work: Callable[[], Any]) -> Any:
    """What work returns when the user ``nobody`` does it."""

    def without_rights() -> Any:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return work()

    return in_child(without_rights)


def outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except BaseException as error:
        return type(error).__name__
    return "done"


def files_of(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def looking(url: str) -> None:
    """Another user tries all files and sockets of a catalog, and to take part in a group."""
    os.umask(0o022)
    folder = Path(url)
    with headrace.sync.open(url) as hr:
        hr.create_stream("s", ["s.>"])
        hr.publish("s.x", b"secret")
        large = pa.table({"subject": ["s.x"] * 3, "value": [os.urandom(1 << 20)] * 3})
        hr.append("s", large)
        with hr.session("worker") as session:
            session.subscribe("$share/g/s.>", start="earliest")
            delivery = next(iter(session))
            files = files_of(folder)
            opened = as_nobody(lambda: try_files(folder, files))
            host, port, secret = node_of(folder)
            known = try_group(host, port, secret)
            joined = as_nobody(lambda: try_group(host, port))
            delivery.ack()
    show(files=files, opened=opened, joined=joined, known=known)


def try_files(folder: Path, files: list[str]) -> dict[str, Any]:
    def query() -> None:
        with sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True) as connection:
            connection.execute("SELECT * FROM meta").fetchall()

    def log() -> None:
        with headrace.sync.open(folder, create=False) as other:
            list(other.read("s"))

    return {
        "read": [path for path in files if outcome(partial(open_any, path)) == "done"],
        "listed": outcome(lambda: os.listdir(folder)),
        "query": outcome(query),
        "log": outcome(log),
        "wrote": outcome(lambda: (folder / "planted").touch()),
    }


def open_any(path: str) -> None:
    """Read a file, list a folder or send to a socket."""
    if os.path.isdir(path):
        os.listdir(path)
    elif path.endswith((".db", "-wal", "-shm", ".lock", ".parquet", ".often")):
        with open(path, "rb") as file:
            file.read(1)
    else:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.sendto(b"*", path)


def node_of(folder: Path) -> tuple[str, int, str]:
    """Where this program listens, and the secret of the catalog; for its owner to read."""
    with sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True) as connection:
        (node,) = connection.execute(
            "SELECT value FROM entries WHERE bucket = 'nodes' AND value IS NOT NULL"
        ).fetchone()
        found = connection.execute("SELECT value FROM meta WHERE key = 'shared_secret'").fetchone()
    record = json.loads(node)
    return record["host"], record["port"], str(found[0])


def try_group(host: str, port: int, *secrets: str) -> list[str]:
    """How connections to the group's port end: without a secret, and with those given."""
    found = []
    for secret in secrets or ("", "guess", "0" * 64):
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}

        def dial(headers: dict[str, str] = headers) -> None:
            connect(f"ws://{host}:{port}/shared", additional_headers=headers).close()

        found.append(outcome(dial))
    return found


def planting(url: str, victim: str, how: str) -> None:
    """Another user was first with a name in the temporary folder; commits go on all the same.

    The name is the one under which sockets once stood there: anybody could compute it.
    """
    digest = hashlib.sha256(os.fsencode(Path(url).resolve() / "wake")).hexdigest()[:16]
    place = Path(tempfile.gettempdir()) / f"headrace-wake-{os.getuid()}-{digest}"

    def plant() -> str:
        if how == "link":
            place.symlink_to(victim)
        else:
            place.mkdir(0o777)
            place.chmod(0o777)
            for name in ("1-aa", "2-bb"):
                (place / name).symlink_to(Path(victim) / "important")
        return str(place)

    planted = as_nobody(plant)
    try:
        with headrace.sync.open(url) as hr:
            hr.create_stream("s", ["s.>"])
            following = hr.read("s", follow=True)
            hr.publish("s.x", b"1")
            rows = next(following).num_rows
            with headrace.sync.open(url) as other:
                other.publish("s.x", b"2")
            rows += next(following).num_rows
            foreign = [path for path in files_of(place) if Path(path).is_socket()]
    finally:
        remove(place)
    show(planted=planted, rows=rows, foreign=foreign, left=files_of(Path(victim)))


def remove(place: Path) -> None:
    if place.is_symlink():
        place.unlink()
    elif place.is_dir():
        for path in place.iterdir():
            path.unlink()
        place.rmdir()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
