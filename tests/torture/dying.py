"""Places at which a process kills itself, so that the narrow windows are met in every run.

A kill at a random moment seldom falls between a commit and its acknowledgement, or between a
file and the transaction that names it.  ``arm`` wraps the function around such a place; at its
n-th pass the process sends itself a real SIGKILL.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

from headrace.catalog import batches, tiling
from headrace.catalog.postgres_writer import PostgresWriter
from headrace.catalog.sqlite_writer import SqliteWriter
from headrace.host.writes import Writes
from headrace.store import Store

Place = Literal[
    "before-commit",
    "after-commit",
    "in-commit",
    "in-transaction",
    "in-file",
    "after-file",
    "in-checkpoint",
    "in-scale",
]


def places(*, embedded: bool) -> tuple[Place, ...]:
    """Where a writer can die; only the embedded catalog copies its log back itself."""
    absent = {"in-scale"} if embedded else {"in-scale", "in-checkpoint"}
    return tuple(place for place in get_args(Place) if place not in absent)


COMMITS = ((SqliteWriter, "commit"), (PostgresWriter, "commit"), (PostgresWriter, "call"))
"""All that makes something durable."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def die_within(delay_s: float) -> None:
    """Die from another thread, while this one goes on into the place."""

    def wait() -> None:
        time.sleep(delay_s)
        die()

    threading.Thread(target=wait, daemon=True).start()


def arm(place: Place, passes: int, delay_s: float) -> None:
    """Die at the ``passes``-th time the place is reached; ``delay_s`` is for those that last."""
    match place:
        case "before-commit":
            for driver, step in COMMITS:
                _wrap(driver, step, passes, before=die)
        case "after-commit":
            for driver, step in COMMITS:
                _wrap(driver, step, passes, after=die)
        case "in-commit":
            for driver, step in COMMITS:
                _wrap(driver, step, passes, before=lambda: die_within(delay_s))
        case "in-transaction":
            _wrap(batches, "append", passes, after=die)
        case "in-file":
            _wrap(Store, "put", passes, before=lambda: die_within(delay_s))
        case "after-file":
            _wrap(Store, "put", passes, after=die)
        case "in-checkpoint":
            _wrap(
                SqliteWriter,
                "finish_checkpoint",
                passes,
                before=lambda: die_within(delay_s),
            )
        case "in-scale":
            _wrap(tiling, "seal", passes, after=die)


def stall(passes: int, until_s: float) -> None:
    """Stop, as a frozen process does, with the ``passes``-th write in hand and no lock held.

    Whoever lets it go on lets it commit what it had prepared before others took its place.  Past
    ``until_s`` of the monotonic clock it does not stop any more.
    """

    def stop() -> None:
        if time.monotonic() < until_s:
            os.kill(os.getpid(), signal.SIGSTOP)

    _wrap(Writes, "commit", passes, before=stop)


def _wrap(
    owner: Any,
    name: str,
    passes: int,
    *,
    before: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
) -> None:
    original = getattr(owner, name)
    count = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        due = count == passes
        if due and before is not None:
            before()
        result = original(*args, **kwargs)
        if due and after is not None:
            after()
        return result

    setattr(owner, name, wrapped)
