"""Replicated groups: whether the members in this region may consume, or wait, and why.

A replicated group is consumed in every region, or has a *home* and members elsewhere wait.  It also
waits where its progress has not arrived yet: a group begins here at its exact place or not at all.
The record is an entry in the catalog, so members hear of a change as they hear of a new config.
"""

from __future__ import annotations

import msgspec

from headrace.catalog import Query, Tx, entries, replicas, schema
from headrace.errors import UnreadableRecordError

GROUPS_BUCKET = "region-groups"


class HomeStamp(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Which of two homes counts: the later one, and of two at once the one of the later name."""

    counter: int = 0
    region: str = ""


class Handing(msgspec.Struct, frozen=True):
    """A group that is on its way to another region."""

    source: str
    drained: bool = False
    """Whether everything that its members had acked there is in its cursors."""


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A replicated group, as one region knows it."""

    key: str
    """As the kind of group keeps it: ``orders.billing``, ``audit:orders.>``."""
    family: str
    """``static`` or ``shared``."""
    streams: tuple[str, ...]
    """The linked streams whose progress is exchanged."""
    config: bytes
    """What the group is made of in a region that does not have it."""
    home: str | None = None
    stamp: HomeStamp = HomeStamp()
    handing: Handing | None = None
    eager: bool = False
    """Whether acks count elsewhere before the events that were published by then arrived."""
    ready: bool = True
    """Whether its progress has arrived here; of one that was deleted, whether it is gone here."""
    deleted: bool = False
    """Kept after a deletion, so that it reaches the other regions."""
    adopted: bool = False
    """Whether its progress replaces what a group of this name has in other regions."""
    life: HomeStamp = HomeStamp()
    """Since when the group is there; what was acked before it does not count."""

    def waits(self, region: str) -> str:
        """Why members in a region wait; nothing if they may consume."""
        if not self.ready:
            return "its progress has not arrived from the other regions yet"
        if self.home is not None and self.home != region:
            return f"the group is at home in {self.home}"
        if self.handing is not None and self.handing.source != region:
            return f"it is on its way here from {self.handing.source}"
        return ""


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_group_decoder = msgspec.msgpack.Decoder(GroupRecord)


def this_region(tx: Tx) -> str | None:
    """The name of the region that a catalog is."""
    return schema.get_setting(tx, "region")


def asking(key: str) -> Query:
    """The query of :func:`waits_here`."""
    return entries.asking(GROUPS_BUCKET, key)


def waits_here(tx: Tx, key: str) -> str:
    """Why the members of a group wait in this region; nothing if they may consume."""
    entry = entries.get(tx, GROUPS_BUCKET, key)
    if entry is None or entry.value is None:
        return ""
    return decode_group(key, entry.value).waits(this_region(tx) or "")


def deleted_here(tx: Tx, key: str) -> None:
    """A group was deleted: it goes in the other regions as well; holds the bucket's lock."""
    entry = entries.get(tx, GROUPS_BUCKET, key)
    if entry is None or entry.value is None:
        return
    found = decode_group(key, entry.value)
    if not found.deleted:
        stamp = HomeStamp(found.stamp.counter + 1, this_region(tx) or "")
        put_group(
            tx,
            msgspec.structs.replace(
                found, deleted=True, ready=True, stamp=stamp, handing=None, home=None
            ),
        )
        tx.notify(replicas.CHANNEL)


def put_group(tx: Tx, record: GroupRecord) -> None:
    """Store a group; holds the bucket's lock."""
    entries.put(tx, GROUPS_BUCKET, record.key, msgspec.msgpack.encode(record))


def decode_group(key: str, data: bytes) -> GroupRecord:
    """A group as it was stored."""
    try:
        return _group_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise UnreadableRecordError(
            f"the record of replicated group {key!r} cannot be read ({error}); restore the catalog "
            "from a backup",
            key,
        ) from None
