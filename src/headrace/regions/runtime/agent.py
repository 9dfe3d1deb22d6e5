"""The agent of a region: translates local progress, and takes the neighbours' over.

It needs no Spark and keeps nothing that the catalog does not have: killed anywhere it goes on, and
two of them only do the same work twice.  One works at a time, by a lease; the others stand by.
"""

from __future__ import annotations

import logging
import threading
import uuid

import msgspec

from headrace.catalog import Tx, entries, lanes, leases, replicas, streams
from headrace.errors import (
    CatalogUnavailableError,
    HeadraceError,
    LeaseLost,
    RegionUnreachableError,
)
from headrace.groups import homes
from headrace.groups.homes import GROUPS_BUCKET, GroupRecord, HomeProof
from headrace.host.clock import calendar_s, steady_s
from headrace.log.log import Log
from headrace.regions import kinds, twins
from headrace.regions.core.confirming import HomeAnswer, HomeWatch
from headrace.regions.records import (
    AGENT_LEASE,
    LINKS_BUCKET,
    LinkMember,
    MemberState,
    Region,
    get_region,
    groups,
    links,
    put_group,
)
from headrace.regions.runtime import applying, cursors, keeping, writers
from headrace.regions.runtime.applying import Theirs
from headrace.regions.runtime.behind import is_behind
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.roster import Roster, TheirRosters
from headrace.regions.runtime.snapshotting import Snapshotting
from headrace.regions.snapshots import ASKED_BUCKET, FORCED_BUCKET

LEASE_TTL_MS = 5_000
TICK_S = 0.5
"""How often it looks, if nothing is told."""
PAUSE_S = 0.005
"""The least time between two looks, however much news there is."""
FORGET_S = 30.0
KEEP_S = 5.0
"""How often it looks how far other regions have come, for retention."""
RUNS_MAX = 10_000
"""As many runs of a segment are kept of what was trimmed, for acks that are still to come."""

_log = logging.getLogger(__name__)


class RegionAgent:
    """One region's agent; ``step`` does everything once, ``run`` until told to stop."""

    def __init__(self, log: Log, neighbours: Neighbours) -> None:
        self._log = log
        self._neighbours = neighbours
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._pending: dict[str, tuple[Theirs, int]] = {}
        self.away: dict[str, tuple[float, str]] = {}
        """Neighbours that cannot be read or understood: since when, and why."""
        self.synced_s: dict[str, float] = {}
        """When a neighbour's progress was last known to be here."""
        self._forget_due_s = self._keep_due_s = 0.0
        self._watch = HomeWatch()
        self._lease: leases.Lease | None = None
        self._others: set[str] = set()
        self._roster = Roster(log.catalog)
        self._theirs = TheirRosters(neighbours)
        self._listens_to: frozenset[str] = frozenset()
        self.snapshots = Snapshotting(log, neighbours, self._roster, self._theirs)

    # -- once ---------------------------------------------------------------------------

    def step(self) -> bool:
        """Translate, and take over; true if something moved."""
        me = self._log.catalog.read(get_region)
        if me is None:
            return False
        moved = self.translate(me)
        self.confirm_homes(me)
        for member in self.members():
            try:
                moved |= self.take_over(me, member)
                self.away.pop(member.region, None)
            except HeadraceError as error:  # away, or what it says makes no sense: the others do
                self._is_away(member, error)
        moved |= self.snapshots.step(me, self._lease)
        if steady_s() >= self._keep_due_s:
            self._keep_due_s = steady_s() + KEEP_S
            keeping.keep_for_others(self._log, me, self._neighbours)
        self._forget()
        return moved

    def members(self, *states: MemberState) -> list[LinkMember]:
        """The other regions in a state, each once; active ones unless others are wanted."""
        found: dict[str, LinkMember] = {}
        for link in self._log.catalog.read(links).values():
            for member in link.members:
                if member.state in (states or ("active",)):
                    found.setdefault(member.region, member)
        return [found[name] for name in sorted(found)]

    def confirm_homes(self, me: Region) -> None:
        """Ask the other regions where groups are at home, if a program here waits for that."""
        waiting = self._log.catalog.read(homes.proof)
        if waiting.asked <= waiting.answered:
            return
        counted, heard = self.members("active", "paused"), []
        lost = [each for each in self.members("lost") if each not in counted]
        for member in (*counted, *lost):
            try:
                found = self._neighbours.log(member).catalog.read(groups, snapshot=True)
            except HeadraceError as error:
                self._is_away(member, error)
            else:
                applying.take_over_groups(self._log, me, found, self._roster)
                heard.append(member.region)
        self._answer(
            self._watch.answer(
                waiting.asked, [each.region for each in counted], heard, [x.region for x in lost]
            )
        )

    def _answer(self, answer: HomeAnswer) -> None:
        def run(tx: Tx) -> bool:
            if self._lease is not None:
                leases.check(tx, AGENT_LEASE, self._lease.token)
            known = homes.proof(tx)
            answered = max(known.answered, answer.upto or 0)
            proof = HomeProof(known.asked, answered, answer.silent)
            if proof != known:
                homes.put_proof(tx, proof)
            return proof != known

        changed = self._log.catalog.write(run, locks=(entries.lock(homes.PROOF_BUCKET),))
        if changed and answer.silent:
            _log.warning(
                "members of this region wait: %s cannot be asked whether groups are still at home "
                "here; if it is gone, give it up with: headrace region fail-over --lost %s",
                ", ".join(answer.silent),
                answer.silent[0],
            )
        elif changed and answer.cut_off:
            _log.warning(
                "members of this region begin although %s cannot be asked: it was cut off while "
                "this region went on",
                ", ".join(answer.cut_off),
            )

    def _is_away(self, member: LinkMember, error: HeadraceError) -> None:
        """A neighbour cannot be read or understood; it is opened anew, and named once."""
        since, before = self.away.get(member.region, (calendar_s(), ""))
        self.away[member.region] = since, str(error)
        if isinstance(error, RegionUnreachableError | CatalogUnavailableError):
            self._neighbours.drop(member)
            self._pending.pop(member.region, None)
        elif before != str(error):
            _log.warning("agent of the region: %s: %s", member.region, error)

    def translate(self, me: Region) -> bool:
        """Bring this region's cursors up to date, and hand groups over that nobody holds."""
        roll = self._roster.read()
        known = roll.records
        if not known:
            return False

        def look(tx: Tx) -> tuple[set[str], set[str]]:
            found = known.values()
            untaken = {r.key for r in found if not r.deleted and kinds.is_untaken(tx, r)}
            return replicas.untranslated(tx, roll.by_origin), untaken

        due, untaken = self._log.catalog.read(look)
        leaving = {key for key, record in known.items() if _is_leaving(record, me)}
        if not (due or untaken or leaving):
            return False

        locks = {replicas.LOCK, entries.lock(GROUPS_BUCKET)}
        for record in known.values():
            if record.key in untaken:
                locks |= kinds.take_in_locks(record)
            if record.key in leaving:
                locks |= self._log.catalog.read(lambda tx, r=record: kinds.fence_locks(tx, r))  # type: ignore[misc]

        def run(tx: Tx) -> bool:
            now = self._roster.within(tx)
            records = now.records
            left = [r for key, r in records.items() if key in leaving and _is_leaving(r, me)]
            anew = {record.key for record in left} | untaken
            for record in left:
                kinds.fence_absent(tx, record)
            for record in records.values():
                if record.key in untaken or record in left:
                    kinds.take_in(tx, record)
            readers = {n: r for n, r in now.readers.items() if n in due or r.key in anew}
            moved = cursors.translate(tx, me, readers) > 0
            for record in left:
                if kinds.is_drained(tx, record):
                    assert record.handing is not None
                    kinds.leave(tx, record)
                    handing = msgspec.structs.replace(record.handing, drained=True)
                    put_group(tx, msgspec.structs.replace(record, handing=handing))
                    tx.notify(replicas.CHANNEL)
                    moved = True
            return moved

        return self._log.catalog.write(run, locks=sorted(locks), sync=False)

    def take_over(self, me: Region, member: LinkMember) -> bool:
        """Read a neighbour and apply what it says, as soon as its events are here."""
        source = member.region
        theirs = self._waiting_for(member)
        if theirs is None:
            theirs = self._look(member)
            if theirs is None:
                self._watch.heard(source)
                self.synced_s[source] = calendar_s()
                return False
            here = applying.take_over_groups(self._log, me, theirs.groups, self._roster)
            self._tell_others(source, here)
            self._watch.heard(source)
            writers.follow(self._log, me, theirs, complete=False)
            applying.apply(self._log, me, theirs, eager_only=True, roster=self._roster)
        if self._log.catalog.read(lambda tx: is_behind(tx, theirs), snapshot=True):
            self._pending[source] = theirs, self._log.catalog.read(_own_links)
            return False
        applying.apply(self._log, me, theirs, eager_only=False, roster=self._roster)
        writers.follow(self._log, me, theirs, complete=True)
        self._pending.pop(source, None)
        self._seen[source] = theirs.seen
        self.synced_s[source] = calendar_s()
        return True

    def _waiting_for(self, member: LinkMember) -> Theirs | None:
        """What was read of a neighbour and waits for its data; not if groups or links changed.

        Progress alone is no reason to read it again: its data would be waited for again as well.
        """
        theirs, links_then = self._pending.get(member.region, (None, 0))
        if theirs is None:
            return None
        news = self._neighbours.log(member).catalog.read(applying.has_news, snapshot=True)
        if news[1:] == theirs.seen[1:] and self._log.catalog.read(_own_links) == links_then:
            return theirs
        del self._pending[member.region]
        return None

    def _tell_others(self, source: str, groups: list[str]) -> None:
        """Name groups that are here on their own and in another region too, once."""
        for key in groups:
            if key not in self._others:
                self._others.add(key)
                _log.warning("agent of the region: %s", twins.made_twice(key, source))

    def _look(self, member: LinkMember) -> Theirs | None:
        source_log = self._neighbours.log(member)
        seen = self._seen.get(member.region, (-1, -1, -1))
        news = source_log.catalog.read(applying.has_news, snapshot=True)
        if news == seen:
            return None
        since = seen[0] if seen[0] <= news[0] else -1
        linked = self._log.catalog.read(links)
        roster = self._theirs.of(member)
        roster.read()
        return source_log.catalog.read(
            lambda tx: applying.look(tx, member.region, since, linked, roster), snapshot=True
        )

    def _forget(self) -> None:
        """Forget runs of what was trimmed, once nobody needs them to translate acks."""
        if steady_s() < self._forget_due_s:
            return
        self._forget_due_s = steady_s() + FORGET_S

        def run(tx: Tx) -> None:
            for name in links(tx):
                stream = streams.get(tx, name)
                for segment in stream.segments if stream is not None else ():
                    needed = replicas.has_trims(tx, segment.id)
                    if segment.tail and not (
                        needed and lanes.few_below(tx, segment.id, segment.tail, RUNS_MAX)
                    ):
                        lanes.forget(tx, segment.id, segment.tail)

        self._log.catalog.write(run, locks=(replicas.LOCK,), sync=False)

    def close(self) -> None:
        """Close what it read of other regions."""
        self._neighbours.close()

    # -- on and on ----------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Work while it has the lease; failures are logged and tried again."""
        owner = uuid.uuid4().hex
        while not stop.is_set():
            try:
                lease = self._log.catalog.leases.acquire(AGENT_LEASE, owner, LEASE_TTL_MS)
                if lease is not None:
                    try:
                        self._work(stop, lease)
                    finally:
                        self._log.catalog.leases.release(lease)
            except LeaseLost:
                continue
            except HeadraceError as error:
                _log.warning("agent of the region: %s", error)
            except Exception:  # whatever it is, the next attempt may do better
                _log.exception("agent of the region")
            stop.wait(1.0)

    def _work(self, stop: threading.Event, lease: leases.Lease) -> None:
        bell = threading.Event()
        subscribed: dict[object, object] = {}
        self._lease = lease
        self._watch.began()
        renew_s = steady_s() + LEASE_TTL_MS / 3000
        try:
            while not stop.is_set():
                if steady_s() >= renew_s:
                    self._log.catalog.leases.renew(lease, LEASE_TTL_MS)
                    renew_s = steady_s() + LEASE_TTL_MS / 3000
                self._listen(bell, subscribed)
                bell.clear()
                if self.step():
                    continue
                bell.wait(TICK_S)
                stop.wait(PAUSE_S)
        finally:
            for end in subscribed.values():
                end()  # type: ignore[operator]

    def _listen(self, bell: threading.Event, subscribed: dict[object, object]) -> None:
        """Hear of progress, groups and links here, and of cursors there."""
        own = self._log.catalog
        buckets = (GROUPS_BUCKET, LINKS_BUCKET, homes.PROOF_BUCKET, FORCED_BUCKET, ASKED_BUCKET)
        wanted = {replicas.CHANNEL, *map(entries.channel, buckets)}
        told = self._roster.read().channels
        if told is not self._listens_to or not subscribed:
            self._listens_to = told
            wanted |= told
        for channel in wanted:
            if (own, channel) not in subscribed:
                subscribed[own, channel] = own.subscribe(channel, bell.set)
        for member in self.members():
            try:
                other = self._neighbours.log(member).catalog
            except RegionUnreachableError:
                continue
            if (other, replicas.CHANNEL) not in subscribed:
                subscribed[other, replicas.CHANNEL] = other.subscribe(replicas.CHANNEL, bell.set)


def _own_links(tx: Tx) -> int:
    return entries.latest(tx, LINKS_BUCKET)


def _is_leaving(record: GroupRecord, me: Region) -> bool:
    handing = record.handing
    return (
        handing is not None
        and handing.source == me.name
        and not handing.drained
        and record.home != me.name
    )
