"""A stream that leaves other regions.

What is known of its lanes and places is kept, so that it can be linked again and goes on exactly
where it ended.  Its groups belong to the regions that have them from then on.
"""

from __future__ import annotations

import msgspec

from headrace.catalog import Tx, entries, lanes, replicas, streams
from headrace.errors import UnreadableRecordError
from headrace.log.log import Log
from headrace.regions.linking import LOCKS, require_link
from headrace.regions.records import GROUPS_BUCKET, LINKS_BUCKET, LinkRecord, groups, put_group


class Unlinked(msgspec.Struct, frozen=True):
    """A stream that is in this region alone now."""

    stream: str
    regions: tuple[str, ...] = ()
    """The regions that it was in."""
    groups: tuple[str, ...] = ()
    """Groups that are consumed here on their own from now on."""


def unlink(log: Log, stream: str) -> Unlinked:
    """Take a stream out of all other regions, on this side; also by a link that is damaged.

    What is known of its lanes is kept: linked again, it goes on where it ended, and nothing comes
    twice.
    """
    found = log.catalog.read(lambda tx: streams.id_of(tx, stream))

    def run(tx: Tx) -> Unlinked:
        try:
            record = require_link(tx, stream)
        except UnreadableRecordError:
            record = LinkRecord(stream=stream)
        for segment in streams.removable(tx, stream).segments if found is not None else ():
            lanes.drop_cursors(tx, segment.id)
            lanes.end(tx, segment.id)
        entries.delete(tx, LINKS_BUCKET, stream)
        regions = tuple(member.region for member in record.members)
        return Unlinked(stream, regions, _release(tx, stream))

    locks = {*LOCKS, entries.lock(GROUPS_BUCKET), replicas.LOCK}
    done = log.catalog.write(run, locks=sorted(locks | ({streams.lock(found)} if found else set())))
    log.routes.forget(stream)
    return done


def _release(tx: Tx, stream: str) -> tuple[str, ...]:
    """A stream leaves its replicated groups; one without any other belongs to this region alone."""
    released = []
    for key, record in groups(tx).items():
        if stream not in record.streams:
            continue
        left = tuple(name for name in record.streams if name != stream)
        if left:
            put_group(tx, msgspec.structs.replace(record, streams=left))
        else:
            entries.delete(tx, GROUPS_BUCKET, key)
            released += [] if record.deleted else [key]
    tx.notify(replicas.CHANNEL)
    return tuple(sorted(released))
