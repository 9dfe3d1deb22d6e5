"""A region that was restored from a copy begins a new life.

Its catalog would use sequences a second time, for other events.  So what it publishes from then on
is a new lane; what others have more of its old ones comes back from them
(:mod:`headrace.regions.core.evening`).
"""

from __future__ import annotations

from headrace.catalog import Tx, lanes, streams
from headrace.errors import LinkError, RegionUnreachableError
from headrace.log.log import Log
from headrace.regions.core.evening import lives_of
from headrace.regions.linking import LOCKS
from headrace.regions.records import ALL, Region, links, put_region, require_region
from headrace.regions.runtime.neighbours import Neighbours


def renew_region(log: Log, neighbours: Neighbours, *, force: bool = False) -> Region:
    """After a restore from a copy: what is published from now on is a new lane.

    The other regions are asked which lives of this one they know: the copy may be older than one.
    """
    me = log.catalog.read(require_region)
    known = _lives_elsewhere(log, me, neighbours, force=force)

    def run(tx: Tx) -> Region:
        found = require_region(tx)
        region = Region(found.name, max(found.incarnation, known) + 1)
        put_region(tx, region)
        for name, link in links(tx).items():
            if link.writers in (ALL, region.name):
                for segment in streams.require(tx, name).segments:
                    lanes.begin(tx, segment.id, link.lane_in(region))
        return region

    linked = [s.id for s in log.streams() if any(x.lane is not None for x in s.segments)]
    return log.catalog.write(run, locks=[*LOCKS, *(streams.lock(each) for each in linked)])


def _lives_elsewhere(log: Log, me: Region, neighbours: Neighbours, *, force: bool) -> int:
    """The latest life of this region that another one knows of."""
    found = me.incarnation
    members = {
        (member.region, name): member
        for name, link in log.catalog.read(links).items()
        for member in link.members
    }
    for (region, name), member in members.items():

        def look(tx: Tx, name: str = name) -> int:
            stream = streams.get(tx, name)
            ends = [lanes.ends(tx, s.id) for s in stream.segments] if stream is not None else []
            return max((lives_of(each, {}).get(me.name, 1) for each in ends), default=1)

        try:
            found = max(found, neighbours.log(member).catalog.read(look, snapshot=True))
        except RegionUnreachableError as error:
            if not force:
                raise LinkError(
                    f"{error}; it may know a later life of {me.name!r} than this catalog does. Try "
                    f"again when {region!r} answers, or give it up with --force"
                ) from error
    return found
