"""Who writes a stream that one region writes, in the catalog.

The rules are in :mod:`headrace.regions.core.writing`.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.catalog import Tx, entries, lanes, replicas, streams
from headrace.log.log import Log
from headrace.regions.core import writing
from headrace.regions.core.writing import Writing
from headrace.regions.records import (
    ALL,
    LINKS_BUCKET,
    LinkRecord,
    Region,
    get_link,
    links,
    put_link,
)
from headrace.regions.runtime.applying import Theirs


def follow(log: Log, me: Region, theirs: Theirs, *, complete: bool) -> bool:
    """Follow what a neighbour says of who writes; true if this region knows better now."""
    changed = False
    for name, link in log.catalog.read(links).items():
        found = theirs.links.get(name)
        if link.writers == ALL or found is None or found.writers == ALL:
            continue

        def read(mine: Writing, found: LinkRecord = found) -> Writing:
            return writing.follow(me.name, mine, theirs.source, found.writing, complete=complete)

        if read(link.writing) != link.writing:
            changed |= change(log, me, name, read)
    return changed


def change(log: Log, me: Region, stream: str, to: Callable[[Writing], Writing]) -> bool:
    """Change who writes a stream, as this region has it; from then on, it publishes or does not."""

    def run(tx: Tx) -> bool:
        link = get_link(tx, stream)
        if link is None or link.writers == ALL:
            return False
        after = to(link.writing)
        if after == link.writing:
            return False
        changed = link.with_writing(after)
        put_link(tx, changed)
        for segment in streams.require(tx, stream).segments:
            lanes.begin(tx, segment.id, changed.lane_in(me))
        tx.notify(replicas.CHANNEL)
        return True

    locks = ("settings", entries.lock(LINKS_BUCKET), streams.lock(log.stream(stream).id))
    return log.catalog.write(run, locks=locks)
