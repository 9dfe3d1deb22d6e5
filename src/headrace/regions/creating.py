"""Making a group that is replicated from its first moment on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.catalog import Tx
from headrace.errors import HeadraceError, QueueNotEmptyError
from headrace.groups.homes import ORIGIN
from headrace.groups.partitioned.lifecycle import delete
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.ownership import read_config
from headrace.log.log import Log
from headrace.regions import enabling, kinds
from headrace.regions.records import require_link, require_region
from headrace.regions.runtime.neighbours import Neighbours

T = TypeVar("T")

ATTEMPTS_MAX = 5


def create_replicated(
    log: Log,
    name: GroupName,
    home: str | None,
    create: Callable[[Log], T],
    mode: str | None = None,
    *,
    elastic: bool = False,
) -> T:
    """Make a group and let it follow its consumers; what is refused leaves nothing behind."""
    mode = ORIGIN if mode is None else mode
    enabling.check_mode(mode)
    kinds.check_home(kinds.ELASTIC if elastic else kinds.STATIC, name.key, home, mode)

    def look(tx: Tx) -> tuple[set[str], str, bool]:
        link = require_link(tx, name.stream)
        me = require_region(tx).name
        known = {me, *(member.region for member in link.members)}
        return known, me, read_config(tx, name) is not None

    regions, me, was_there = log.catalog.read(look, snapshot=True)
    enabling.check_regions(regions, me, home, None)
    neighbours = Neighbours()
    try:
        for attempt in range(ATTEMPTS_MAX):
            made = create(log)
            try:
                enabling.enable(log, name.key, neighbours, home=home, mode=mode)
                break
            except HeadraceError as error:
                if not was_there:
                    delete(log, name.stream, name.group)
                # The pipeline began to fill the work queue before its rows were given places.
                again = isinstance(error, QueueNotEmptyError) and attempt + 1 < ATTEMPTS_MAX
                if was_there or not again:
                    raise
        return made
    finally:
        neighbours.close()
