"""Making a group that is replicated from its first moment on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.catalog import Tx
from headrace.errors import HeadraceError, QueueNotEmptyError
from headrace.groups.homes import ORIGIN, GroupRecord
from headrace.groups.partitioned.lifecycle import delete
from headrace.groups.partitioned.names import GroupName
from headrace.groups.readers.admin import delete as delete_readers
from headrace.groups.readers.names import ReaderGroupName
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
    return _create(
        log,
        GroupRecord(
            key=name.key,
            family=kinds.ELASTIC if elastic else kinds.STATIC,
            streams=(name.stream,),
            config=b"",
        ),
        home,
        create,
        ORIGIN if mode is None else mode,
        delete=lambda: delete(log, name.stream, name.group),
    )


def create_replicated_readers(
    log: Log, group: str, given: Sequence[str], home: str | None, create: Callable[[Log], T]
) -> T:
    """Make a reader group that is in other regions as well; what is refused leaves nothing."""
    key, read = ReaderGroupName(group).key, tuple(given)
    return _create(
        log,
        GroupRecord(key=key, family=kinds.READER, streams=read, config=b""),
        home,
        create,
        ORIGIN,
        delete=lambda: delete_readers(log, group),
    )


def _create(
    log: Log,
    wanted: GroupRecord,
    home: str | None,
    create: Callable[[Log], T],
    mode: str,
    *,
    delete: Callable[[], object],
) -> T:
    enabling.check_mode(mode)
    kinds.check_home(wanted.family, wanted.key, home, mode)

    def look(tx: Tx) -> tuple[set[str], str, bool]:
        found = [require_link(tx, stream) for stream in wanted.streams]
        me = require_region(tx).name
        known = {me, *(member.region for link in found for member in link.members)}
        return known, me, kinds.exists(tx, wanted)

    regions, me, was_there = log.catalog.read(look, snapshot=True)
    enabling.check_regions(regions, me, home, None)
    neighbours = Neighbours()
    try:
        for attempt in range(ATTEMPTS_MAX):
            made = create(log)
            try:
                enabling.enable(log, wanted.key, neighbours, home=home, mode=mode)
                break
            except HeadraceError as error:
                if not was_there:
                    delete()
                # The pipeline began to fill the work queue before its rows were given places.
                again = isinstance(error, QueueNotEmptyError) and attempt + 1 < ATTEMPTS_MAX
                if was_there or not again:
                    raise
        return made
    finally:
        neighbours.close()
