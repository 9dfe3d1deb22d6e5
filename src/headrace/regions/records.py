"""What is stored of regions: the name of this one, its links, and its replicated groups.

All of it stands in the region's own catalog.  Links and groups are entries, so that whoever shows
or needs them hears of changes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from headrace.catalog import Tx, entries, lane_filters, lanes, schema
from headrace.catalog.keys import undamaged
from headrace.catalog.records import left_out
from headrace.errors import InvalidInputError, LinkError, RegionNameError, UnreadableRecordError
from headrace.groups import names
from headrace.groups.homes import GROUPS_BUCKET as GROUPS_BUCKET
from headrace.groups.homes import GroupRecord as GroupRecord
from headrace.groups.homes import Handing as Handing
from headrace.groups.homes import decode_group as decode_group
from headrace.groups.homes import put_group as put_group
from headrace.groups.homes import this_region
from headrace.groups.partitioned.names import GroupName
from headrace.log.writers import LINKS_BUCKET as LINKS_BUCKET
from headrace.log.writers import SEVERAL
from headrace.regions.core.origins import base_region
from headrace.regions.core.stamps import Stamp
from headrace.regions.core.writing import Writing
from headrace.subjects import check_name

AGENT_LEASE = "region-agent"
"""Held by the agent of a region while it runs."""
ALL = SEVERAL
NONE = "none"
TIMEOUT_S_MAX = 3600.0

T = TypeVar("T")

MemberState = Literal["active", "paused", "lost"]


class Region(msgspec.Struct, frozen=True):
    """A region's name, and which life of its catalog this is."""

    name: str
    incarnation: int = 1

    @property
    def lane(self) -> str:
        """The lane of what is published here for all.

        >>> Region("eu").lane, Region("eu", 2).lane
        ('eu', 'eu~2')
        """
        return self.name if self.incarnation == 1 else f"{self.name}~{self.incarnation}"


class LinkMember(msgspec.Struct, frozen=True, kw_only=True):
    """Another region of a linked stream, and where it is."""

    region: str
    catalog: str
    """Its address, never with a password."""
    store: str | None = None
    credentials: str | None = None
    """Where the password is: ``env:NAME``."""
    state: MemberState = "active"


class LinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that is in other regions as well, as this region has it."""

    stream: str
    members: tuple[LinkMember, ...] = ()
    """The other regions."""
    writers: str = ALL
    """``all``, or the one region in which events are published."""
    backfill: str = ALL
    """``all``, ``none``, or the time (ISO) from which on events are copied."""
    stamp: Stamp = Stamp()
    """Of the regions' words on who writes, the latest counts."""
    wants: Stamp | None = None
    """The stamp under which this region wants to become the one that writes."""
    giver: str = ""
    """The region that wrote before."""
    first_new: int = 0
    """Segments from this number on were opened since the stream was linked."""
    filter: str = ""
    """What events have to pass to go to other regions; empty if all do."""

    @property
    def writing(self) -> Writing:
        """Who writes a stream that one region writes."""
        return Writing(self.writers, self.stamp, self.wants, self.giver)

    def with_writing(self, found: Writing) -> LinkRecord:
        """The same link, with another word on who writes."""
        return msgspec.structs.replace(
            self, writers=found.writer, stamp=found.stamp, wants=found.wants, giver=found.giver
        )

    def lane_in(self, region: Region) -> str:
        """The own lane of the stream's segments in a region."""
        written = self.writers in (ALL, region.name)
        return lane_filters.lane_by(region.lane, self.filter) if written else lanes.NOT_WRITTEN

    def member(self, region: str) -> LinkMember | None:
        """A region of the link."""
        return next((each for each in self.members if each.region == region), None)

    def reads(self, region: str) -> bool:
        """Whether events are copied from a region now."""
        found = self.member(region)
        return found is not None and found.state == "active"


def lost_of(*links: LinkRecord | None) -> set[str]:
    """The regions of a stream that somebody has declared lost."""
    return {
        member.region
        for link in links
        if link is not None
        for member in link.members
        if member.state == "lost"
    }


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_link_decoder = msgspec.json.Decoder(LinkRecord)


def get_region(tx: Tx) -> Region | None:
    """The region that this catalog is."""
    name = this_region(tx)
    if name is None:
        return None
    return Region(name, int(schema.get_setting(tx, "region_incarnation") or 1))


def require_region(tx: Tx) -> Region:
    """The region that this catalog is, or what to do about it."""
    found = get_region(tx)
    if found is None:
        raise RegionNameError(
            "this catalog is no region yet; give it a name with: headrace region name NAME"
        )
    return found


def check_region_name(name: str) -> str:
    """A name for a region; what is no name is refused."""
    return check_name(name, "region")


def put_region(tx: Tx, region: Region) -> None:
    schema.put_setting(tx, "region", region.name)
    schema.put_setting(tx, "region_incarnation", str(region.incarnation))


def links(tx: Tx) -> dict[str, LinkRecord]:
    """All links, by stream."""
    return _readable(tx, LINKS_BUCKET, decode_link)


def get_link(tx: Tx, stream: str) -> LinkRecord | None:
    """The link of a stream."""
    entry = entries.get(tx, LINKS_BUCKET, stream)
    return None if entry is None or entry.value is None else decode_link(stream, entry.value)


def require_link(tx: Tx, stream: str) -> LinkRecord:
    """The link of a stream, or an error that names those there are."""
    found = get_link(tx, stream)
    if found is None:
        known = ", ".join(sorted(links(tx))) or "none is"
        raise LinkError(f"stream {stream!r} is not linked to other regions; linked are: {known}")
    return found


def put_link(tx: Tx, link: LinkRecord) -> None:
    """Store a link; holds the bucket's lock."""
    entries.put(tx, LINKS_BUCKET, link.stream, msgspec.json.encode(link))


def decode_link(stream: str, data: bytes) -> LinkRecord:
    """A link as it was stored; raises an error that says how to be rid of it."""
    try:
        found = _link_decoder.decode(data)
        if found.stream == stream:
            return found
        why = f"it is that of {found.stream!r}"
    except (msgspec.MsgspecError, UnicodeError) as error:
        why = str(error)
    raise UnreadableRecordError(
        f"the link of stream {stream!r} cannot be read ({why}); restore the catalog from a "
        f"backup, or remove it and link the stream again: headrace region unlink {stream}",
        stream,
    ) from None


def groups(tx: Tx) -> dict[str, GroupRecord]:
    """All replicated groups, by key."""
    return _readable(tx, GROUPS_BUCKET, decode_group)


def _readable(tx: Tx, bucket: str, decode: Callable[[str, bytes], T]) -> dict[str, T]:
    """The records of a bucket; one that cannot be read is left out, with a warning."""
    found = {}
    for entry in entries.changes(tx, bucket, 0).entries:
        if entry.value is not None:
            with left_out():
                key = undamaged(bucket, entry.key)
                found[key] = decode(key, entry.value)
    return found


def get_group(tx: Tx, key: str) -> GroupRecord | None:
    """A replicated group."""
    entry = entries.get(tx, GROUPS_BUCKET, key)
    return None if entry is None or entry.value is None else decode_group(key, entry.value)


def require_group(tx: Tx, key: str) -> GroupRecord:
    """A replicated group, or an error that lists those there are."""
    found = get_group(tx, key)
    if found is None or found.deleted:
        known = [name_of(k) for k, r in sorted(groups(tx).items()) if not r.deleted]
        rest = f"; replicated are: {', '.join(known)}" if known else "; no group is"
        name = name_of(key)
        raise LinkError(
            f"group {name!r} is not replicated{rest}; enable it with: headrace region group enable "
            f"{shlex.quote(name)}"
        )
    return found


def name_of(key: str) -> str:
    """The full name of a group, as every command takes it.

    >>> name_of("orders.billing")
    'orders/billing'
    """
    return str(names.of_key(key))


def check_timeout(timeout_s: float) -> None:
    """Refuse a time to wait that is none, or for ever."""
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise InvalidInputError(
            f"timeout_s={timeout_s!r}: give more than 0, {TIMEOUT_S_MAX:g} seconds at most"
        )


def group_key(stream: str, group: str | None = None) -> str:
    """The key of a group: ``("orders", "billing")``, or one name such as ``orders/billing``."""
    if group is not None:
        return GroupName(stream, group).key
    found = names.parse(stream)
    if found is None:
        raise InvalidInputError(
            f"{stream!r} is not the full name of a group; write STREAM/GROUP or $share/GROUP/FILTER"
        )
    return found.key


def is_from(lane: str, region: str) -> bool:
    """Whether the events of a lane were published in a region, in any life of it."""
    return base_region(lane) == region
