"""Deleting a stream that groups consume.

A stream is not taken away from under its groups: that is refused, with their names.  By force the
static and elastic groups of the stream are deleted first, each whole with its work queue, since
they are nothing without it; shared groups go on with the other streams that they match,
reader groups drop it, and named subscriptions to its epochs are forgotten with it.
"""

from __future__ import annotations

from headrace.catalog import Tx, epoch_subscriptions
from headrace.catalog.streams import Stream
from headrace.errors import StreamInUseError
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.runtime.units import GroupKind
from headrace.groups.readers import dropping as readers
from headrace.groups.shared import properties
from headrace.log.log import Log
from headrace.subjects import overlaps

ATTEMPTS_MAX = 10


def consumers(tx: Tx, stream: Stream, *, shared: bool = True) -> list[str]:
    """The groups that consume a stream, in words."""
    found = [
        f"{kind.value} group {name.group!r}"
        for kind in GroupKind
        for name in admin.names(tx, kind)
        if name.stream == stream.name
    ]
    found += [f"reader group {group!r}" for group in readers.reading(tx, stream)]
    if shared:
        found += [
            f"shared group {group.key!r}"
            for group in properties.all_groups(tx)
            if any(overlaps(group.filter, subject) for subject in stream.config.subjects)
        ]
        found += [
            f"epoch subscription {each!r}" for each in epoch_subscriptions.of_stream(tx, stream.id)
        ]
    return found


def _partitioned(tx: Tx, stream: str) -> list[str]:
    """The static and elastic groups of a stream."""
    names = (name for kind in GroupKind for name in admin.names(tx, kind))
    return [name.group for name in names if name.stream == stream]


def delete_stream(log: Log, name: str, *, force: bool = False) -> None:
    """Delete a stream with all its events; one that groups consume only by ``force``."""

    def check(tx: Tx, stream: Stream) -> None:
        if found := consumers(tx, stream, shared=not force):
            raise StreamInUseError(name, found)

    for left in range(ATTEMPTS_MAX, 0, -1):
        if force:
            for group in log.catalog.read(lambda tx: _partitioned(tx, name), snapshot=True):
                admin.delete(log, name, group)
            readers.drop_stream(log, name)
        try:
            log.delete_stream(name, check=check)
        except StreamInUseError:  # by force: another group was made meanwhile
            if not force or left == 1:
                raise
        else:
            return
