"""Units that are over for a group, and what is forgotten with a group."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.catalog import Query, Tx, claims, entries, progress
from headrace.groups import decisions
from headrace.groups.decisions.keys import record_key
from headrace.groups.shared.keys import finished_bucket


def put_finished(tx: Tx, group: str, unit: str, segment_id: int) -> None:
    """A unit is over for the group."""
    entries.store(tx, finished_bucket(group), unit, str(segment_id).encode())


def asking_finished(group: str) -> tuple[Query, Query]:
    """The queries of :func:`finished`."""
    return entries.asking_changes(finished_bucket(group), 0)


def finished(tx: Tx, group: str) -> dict[str, int]:
    """The finished units of a group, with the segments they were."""
    found = entries.changes(tx, finished_bucket(group), 0).entries
    return {entry.key: int(entry.value) for entry in found if entry.value is not None}


def forget(tx: Tx, group: str, units: Iterable[str]) -> None:
    """Units whose segments are deleted are not finished, they are gone."""
    for unit in units:
        entries.delete(tx, finished_bucket(group), unit)


def handed_bucket(group: str) -> str:
    """Where the latest hand-overs of a group are kept."""
    return f"shared-handed:{group}"


def forget_group(tx: Tx, group: str) -> None:
    """Delete everything about where a group stands; whoever owned something of it is fenced."""
    decisions.forget(tx, record_key(group))
    entries.drop_bucket(tx, handed_bucket(group))
    entries.drop_bucket(tx, finished_bucket(group))
    progress.forget(tx, group)
    claims.retire(tx, group)
