"""Finding groups: their entries in the buckets of both kinds, and the forms they come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.catalog import Tx, entries, streams
from headrace.catalog.streams import Stream
from headrace.errors import InvalidGroupConfigError, UnknownGroupError
from headrace.groups.partitioned import deciding
from headrace.groups.partitioned.core.config import (
    GroupConfig,
    MemberMapping,
    salvaged,
)
from headrace.groups.partitioned.names import ELASTIC_BUCKET, STATIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime.units import GroupKind, kind_of
from headrace.groups.partitioned.stored import elastic_config, static_config

BUCKETS = {GroupKind.STATIC: STATIC_BUCKET, GroupKind.ELASTIC: ELASTIC_BUCKET}

Mappings = Mapping[str, Iterable[int]] | Iterable[MemberMapping]
"""Partitions by member, or the records that hold them."""


class GroupInfo(msgspec.Struct, frozen=True):
    """A group as it stands."""

    name: GroupName
    config: GroupConfig
    revision: int
    """The revision of its config, which grows with every change."""

    @property
    def kind(self) -> GroupKind:
        """Static or elastic."""
        return kind_of(self.config)


def require(tx: Tx, name: GroupName, kind: GroupKind | None) -> GroupInfo:
    """A group, of the given kind or of either; an unknown one is an error."""
    for each in GroupKind if kind is None else (kind,):
        entry = entries.get(tx, BUCKETS[each], name.key)
        if entry is not None and entry.value is not None:
            return GroupInfo(name, decode(name, each, entry.value), entry.revision)
    found = [key for each in BUCKETS.values() for key in entries.keys(tx, each, f"{name.stream}.")]
    groups = ", ".join(key.partition(".")[2] for key in sorted(found)[:10])
    hint = f"its groups are: {groups}" if groups else "it has no groups yet"
    raise UnknownGroupError(name.stream, name.group, "" if kind is None else kind.value, hint)


def removable(tx: Tx, name: GroupName, kind: GroupKind | None) -> GroupInfo:
    """A group to delete; of one whose config cannot be read, the members that can be."""
    try:
        return require(tx, name, kind)
    except InvalidGroupConfigError:
        for each in GroupKind if kind is None else (kind,):
            entry = entries.get(tx, BUCKETS[each], name.key)
            if entry is not None and entry.value is not None:
                return GroupInfo(
                    name, salvaged(entry.value, elastic=each is GroupKind.ELASTIC), entry.revision
                )
        raise


def decode(name: GroupName, kind: GroupKind, data: bytes) -> GroupConfig:
    """A stored config of a kind."""
    read = elastic_config if kind is GroupKind.ELASTIC else static_config
    return read(name, data)


def locks_of(name: GroupName, kind: GroupKind, source: Stream | None) -> list[str]:
    """The locks for a change of the group."""
    locks = [name.lock, entries.lock(BUCKETS[kind]), *deciding.locks(name)]
    if source is not None:
        locks += [streams.LOCK_ALL, streams.lock(source.id)]
    return locks


def mapping_records(mappings: Mappings) -> tuple[MemberMapping, ...]:
    """Mappings as records, whatever form they came in."""
    if isinstance(mappings, Mapping):
        return tuple(MemberMapping(m, tuple(owned)) for m, owned in mappings.items())
    return tuple(mappings)
