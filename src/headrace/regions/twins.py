"""Groups of one name that were made in two regions, each on its own."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.catalog import Tx
from headrace.groups.homes import GroupRecord
from headrace.regions import kinds
from headrace.regions.records import get_group, links, name_of


def are_others(tx: Tx, theirs: Mapping[str, GroupRecord]) -> list[str]:
    """Groups of a neighbour whose names were given here to others, made on their own.

    Their progress is not joined: a union would skip what only one of them has acked.  A person says
    whose progress counts.
    """
    here = links(tx).keys()
    return [
        key
        for key, record in theirs.items()
        if not (record.deleted or record.adopted or here.isdisjoint(record.streams))
        and get_group(tx, key) is None
        and kinds.exists(tx, record)
    ]


def made_twice(key: str, region: str) -> str:
    """What to do about a group that was made here and in another region, each on its own."""
    return (
        f"group {name_of(key)!r} was made here on its own, and {region} replicates one of that "
        "name; they are not joined. Say in one of the regions that its progress counts: headrace "
        "region group enable … --adopt REGION; or delete the group here"
    )
