"""What all readers of one process share: replicas, news, updates, renewals and the detector.

Theory of operation
-------------------
*Following.*  Each group that somebody here reads or waits for is followed once.  News of it makes
one look at the catalog, whose outcomes all readers and waiters of the group are told.  What this
process wrote itself is followed as soon as its commit is answered, without a look.

*Updates.*  An update is one transaction.  Those of one turn of the event loop, of all readers,
share a commit, since all writes of a program do.  They are decided on a replica of their own (see
:mod:`.replicas`), because that code runs on another thread and its commit may fail.

*Renewals* that are due at one time go into one transaction that does not wait for the disk.

*Dead readers.*  One detector looks for all readers here (:mod:`.detector`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.catalog import Tx, reader_groups
from headrace.errors import CatalogClosedError, HeadraceError, UnknownReaderGroupError
from headrace.groups import decisions
from headrace.groups.readers import names
from headrace.groups.readers.core.changes import ReaderAdded
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.synchronizer import Followed
from headrace.groups.readers.core.updates import RecordPositions, ReportLag, Update
from headrace.groups.readers.names import ReaderGroupName, ReaderGroupRecord
from headrace.groups.readers.runtime import liveness, record
from headrace.groups.readers.runtime.at_home import GroupHome
from headrace.groups.readers.runtime.detector import Detector
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.readers.runtime.resets import Exact
from headrace.groups.readers.runtime.transaction import Committed, GroupCommit
from headrace.host import Host

if TYPE_CHECKING:
    from headrace.groups.readers.runtime.life import ReaderLife

RETRY_S = 0.2

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Follower(Protocol):
    """Somebody who hears of a group; called on the event loop."""

    def followed(self, news: Followed | None) -> None:
        """The state went on by these outcomes; None if it was read anew, or the home moved."""
        ...

    def group_gone(self, error: HeadraceError) -> None:
        """The group was deleted, or cannot be read."""
        ...


class Following:
    """One group, followed for all who want to know of it here."""

    def __init__(
        self, host: Host, name: ReaderGroupName, joined: Callable[[Following], None]
    ) -> None:
        self._host = host
        self._joined = joined
        self.name = name
        self.record: ReaderGroupRecord | None = None
        self.followers: dict[Follower, None] = {}
        self._replica = StampedReplica(name.group)
        self._config: bytes | None = None
        self._stop: Callable[[], None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._wanted = False
        self.closed = False
        self.home = GroupHome(host, name, self._home_moved)
        self.joins = 0
        """Grows whenever somebody has joined."""

    @property
    def state(self) -> ReaderGroupState:
        """The state as far as it is known here."""
        return self._replica.state

    @property
    def version(self) -> reader_groups.Version:
        """What is known here."""
        replica = self._replica
        revision = -1 if replica.is_new else replica.replica.revision
        return reader_groups.Version(replica.stamp, revision, self._config)

    async def start(self) -> None:
        """Listen, then look: nothing is missed in between."""
        if self._stop is None:
            channel = reader_groups.channel(self.name.group)
            self._stop = lambda: None
            self._stop = await self._host.listen(channel, self.look)
        if self.record is None:
            await self.refresh()
        await self.home.start()

    def stop(self) -> None:
        """Nobody wants to know any more."""
        self.closed = True
        self.home.stop()
        if self._stop is not None:
            self._stop()

    def look(self) -> None:
        """There is news: look soon, once for all of it."""
        self._wanted = True
        if self._looking is None and not self.closed:
            self._looking = self._host.spawn(self._look())

    async def _look(self) -> None:
        try:
            while self._wanted and not self.closed:
                self._wanted = False
                try:
                    await self.refresh()
                except CatalogClosedError:
                    return
                except UnknownReaderGroupError:
                    pass  # they were told
                except HeadraceError as error:
                    _log.warning("reader group %s: %s", self.name.group, error)
                    self._wanted = True
                    await self._host.sleep(RETRY_S)
        finally:
            self._looking = None

    async def refresh(self) -> None:
        """Read what is new and tell everybody; raises if the group is gone."""
        known = self.version

        def look(tx: Tx) -> tuple[bytes | None, ReaderGroupRecord, object]:
            row, found = names.require(tx, self.name.group)
            if (row.stamp, row.revision) == (known.stamp, known.revision):
                return row.config, found, None
            if row.snapshot_revision <= known.revision < row.revision:
                entries = reader_groups.log_after(tx, row.name, known.revision)
                return row.config, found, (entries, row.stamp)
            fresh = StampedReplica(row.name)
            fresh.catch_up(tx, row)
            return row.config, found, fresh

        catalog = self._host.log.catalog
        try:
            looking = self._host.in_thread(catalog.read, look, snapshot=True)
            self._config, self.record, news = await looking
        except UnknownReaderGroupError as error:
            self.record = None
            for follower in list(self.followers):
                follower.group_gone(error)
            raise
        match news:
            case (list() as entries, int() as stamp):
                self._take(entries, stamp)
            case StampedReplica():
                self._replace(news)

    def took(self, committed: Committed) -> None:
        """Follow what this process has written."""
        if committed.entry and not self._replica.is_new:
            self._take([committed.entry], committed.stamp)

    def _take(self, entries: list[bytes], stamp: int) -> None:
        if self._replica.stamp == stamp:
            return  # followed meanwhile
        news = self._replica.take(entries, stamp)
        if news is None:
            self.look()  # there is something in between
        else:
            self._tell(news)

    def _replace(self, fresh: StampedReplica) -> None:
        known = self._replica
        if (
            known.is_new
            or known.replica.revision < fresh.replica.revision
            or (known.replica.revision == fresh.replica.revision and known.stamp != fresh.stamp)
        ):
            self._replica = fresh
            self._tell(None)

    def _home_moved(self) -> None:
        for follower in list(self.followers):
            follower.followed(None)

    def _tell(self, news: Followed | None) -> None:
        if news is None or any(
            isinstance(change, ReaderAdded) for each in news.outcomes for change in each.changes
        ):
            self.joins += 1
            self._joined(self)
        for follower in list(self.followers):
            follower.followed(news)


class ReaderHub:
    """See the module's text; made by :func:`hub_of`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._following: dict[str, Following] = {}
        self._writers: dict[str, StampedReplica] = {}
        self._renewals: dict[ReaderLife, tuple[str, int, int]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._detector = Detector(host, self.transact)
        self._due: dict[str, Following] = {}
        """Groups that are to be looked at."""
        self._refreshing: asyncio.Task[None] | None = None

    # -- following ------------------------------------------------------------------------

    async def follow(self, name: ReaderGroupName, follower: Follower) -> Following:
        """Have a group followed; raises if there is none."""
        found = self._following.get(name.group)
        if found is None or found.closed:
            found = self._following[name.group] = Following(self._host, name, self._detector.joined)
        found.followers[follower] = None
        try:
            await found.start()
        except BaseException:
            self.leave(found, follower)
            raise
        return found

    def leave(self, following: Following, follower: Follower) -> None:
        """Somebody does not want to know of a group any more."""
        following.followers.pop(follower, None)
        if not following.followers:
            following.stop()
            self._detector.forget(following)
            if self._following.get(following.name.group) is following:
                del self._following[following.name.group]

    def refresh(self, following: Following) -> None:
        """Look at a group whether there was news or not; those of one moment share a look."""
        self._due[following.name.group] = following
        if self._refreshing is None:
            self._refreshing = self._host.spawn(self._refresh())

    async def _refresh(self) -> None:
        try:
            while self._due:
                await asyncio.sleep(0)
                due, self._due = self._due, {}
                changed: Iterable[str] = due
                if len(due) > 1:
                    known = {name: each.version for name, each in due.items()}
                    look = partial(_changed, known=known)
                    try:
                        changed = await self._host.in_thread(self._host.log.catalog.read, look)
                    except HeadraceError:
                        pass  # each look of its own says what is wrong
                for name in changed:
                    due[name].look()
        finally:
            self._refreshing = None

    # -- updates --------------------------------------------------------------------------

    async def update(
        self, name: ReaderGroupName, update: Update, exact: Exact | None = None
    ) -> Committed:
        """Put an update to a group; raises if it is refused."""
        light = isinstance(update, ReportLag | RecordPositions)
        return await self.transact(name, lambda commit: commit.put(update, exact), sync=not light)

    async def transact(
        self,
        name: ReaderGroupName,
        work: Callable[[GroupCommit], T],
        *,
        locks: Sequence[str] = (),
        sync: bool = True,
    ) -> T:
        """Do something to a group in one transaction, and follow what it came to."""
        made: list[Committed] = []

        def run(tx: Tx) -> T:
            made.clear()
            writer = self._writers.setdefault(name.group, StampedReplica(name.group))
            commit = GroupCommit(tx, name, writer, made)
            result = work(commit)
            record.put(commit, made)
            return result

        held = (reader_groups.lock(name.group), *decisions.locks(str(name)), *locks)
        result = await self._host.in_transaction(run, held, sync=sync, small=True)
        following = self._following.get(name.group)
        if following is not None:
            for committed in made:
                following.took(committed)
        return result

    # -- liveness -------------------------------------------------------------------------

    def begins(self, lease: str) -> None:
        """The life of a reader begins here."""
        self._detector.ours.add(lease)

    def ends(self, lease: str) -> None:
        """The life of a reader is over, or another one of it has begun."""
        self._detector.ours.discard(lease)

    def renew(self, life: ReaderLife, lease: str, token: int, ttl_ms: int) -> None:
        """Have a reader's lease renewed, together with others."""
        self._renewals[life] = (lease, token, ttl_ms)
        if self._renewing is None:
            self._renewing = self._host.spawn(self._renew())

    async def _renew(self) -> None:
        try:
            while self._renewals:
                await asyncio.sleep(0)  # all that are due at this moment go together
                batch, self._renewals = self._renewals, {}
                asked_ms = self._host.now_ms()
                try:
                    run = partial(liveness.renew, due=list(batch.values()))
                    kept = await self._host.in_transaction(run, sync=False, small=True)
                except HeadraceError as error:
                    if not isinstance(error, CatalogClosedError):
                        _log.warning("reader groups: leases were not renewed: %s", error)
                    continue
                answers = list(zip(batch.items(), kept, strict=True))
                renewed = {
                    lease: (token, asked_ms + ttl_ms if is_kept else 0)
                    for (_, (lease, token, ttl_ms)), is_kept in answers
                }
                self._detector.renewed(renewed, asked_ms)
                for (life, (_, token, _)), is_kept in answers:
                    life.renewed(token, asked_ms if is_kept else None)
        finally:
            self._renewing = None

    async def detect(self, following: Following) -> int | None:
        """Look for dead readers and put them offline; when the next lease runs out, in ms."""
        return await self._detector.detect(following)

    def known_ms(self, following: Following) -> int | None:
        """For how long nobody can be dead, as far as that is known without a look."""
        return self._detector.known_ms(following)


def _changed(tx: Tx, known: Mapping[str, reader_groups.Version]) -> list[str]:
    """The groups that are not as they are known, or gone."""
    found = reader_groups.versions(tx, list(known))
    return [name for name in known if found.get(name) != known[name]]


def hub_of(host: Host) -> ReaderHub:
    """The hub of a program."""
    found: ReaderHub | None = host.parts.get(ReaderHub)
    if found is None:
        found = host.parts[ReaderHub] = ReaderHub(host)
    return found
