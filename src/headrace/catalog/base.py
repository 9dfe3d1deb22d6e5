"""The catalog: transactions, group commit and waiting, whatever database lies under it.

``read`` runs a function on a connection of the calling thread; ``write`` hands one to the
committer and returns when it is durable.  Both are thread-safe and synchronous; ``submit`` takes a
callback instead, for event loops.  ``locks`` name what a write depends on: SQLite has one write
lock and ignores them, PostgreSQL takes them as advisory locks, in sorted order, before the function
runs, so that no two writes that share a name interleave and none deadlock.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from headrace.catalog import forks
from headrace.catalog.bell import Bell
from headrace.catalog.calls import Saying
from headrace.catalog.claims import Claims
from headrace.catalog.committer import Committer, Done, Operation
from headrace.catalog.entries import Entries
from headrace.catalog.frequent import Frequent
from headrace.catalog.leases import Leases
from headrace.catalog.notifier import Notifier
from headrace.catalog.transaction import FREQUENT, CatalogClock, Tx
from headrace.errors import LookedAtError

if TYPE_CHECKING:
    import asyncio  # slow to load, and nothing for whoever only looks

T = TypeVar("T")


class Catalog(ABC):
    """A SQL catalog; see the module's text for the rules."""

    where: str
    """How errors name this catalog; holds no password."""

    address: str
    """Where it is, good on all machines that can reach it; holds no password."""

    shared: bool
    """Whether other machines can reach it."""

    locking: bool
    """Whether it uses the names of locks; otherwise callers need not build them."""

    quick: bool
    """Whether it is on this machine, where a read or commit can cost less than a thread switch."""

    acks_need_sync = False
    """Whether a commit that was not synced is lost when the database's own process dies."""

    looked = False
    """Whether it is another region's, and only read."""

    turns = 0
    """How often its history turned out to be another one: then what was read of it before may never
    have been (:mod:`headrace.catalog.lineage`).  Every append compares it."""

    _mark_query = _size_query = ""

    def __init__(self) -> None:
        self.notifier = Notifier()
        self.entries = Entries(self)
        self.leases = Leases(self)
        self.claims = Claims(self)
        self._frequent = Frequent(self._tell)
        self._clock = CatalogClock()
        self._committer: Committer
        self._aside = threading.local()
        self._closed = False

    @abstractmethod
    def read(self, fn: Callable[[Tx], T], *, snapshot: bool = False) -> T:
        """Run ``fn`` now; with ``snapshot`` all its queries see one snapshot of the database."""

    def submit(
        self,
        fn: Callable[[Tx], object],
        done: Done,
        *,
        locks: Iterable[str] = (),
        sync: bool = True,
        saying: Saying | None = None,
    ) -> None:
        """Queue a write; ``done(result, error)`` is called from the committer's thread.

        ``saying`` tells what ``fn`` would do, for drivers that can do it in one round trip.
        """
        self._refuse_if_looked()
        self._committer.submit(Operation(fn, tuple(locks), sync, done, saying))

    def attempt(self, operations: list[Operation]) -> bool:
        """Commit writes now, on this thread, if no lock has to be waited for.

        False means that nothing was done and that they have to be queued.  It does wait for the
        disk; whether that is quick enough for an event loop is for the caller to judge.
        """
        return self._committer.attempt(operations)

    def write(
        self,
        fn: Callable[[Tx], T],
        *,
        locks: Iterable[str] = (),
        sync: bool = True,
        saying: Saying | None = None,
    ) -> T:
        """Run ``fn`` in a write transaction and return its result once it is durable.

        With ``sync=False`` the commit survives the death of every process, and a power failure
        only once a later commit was synced.
        """
        self._refuse_if_looked()
        aside = getattr(self._aside, "now", False)
        return self._committer.run(fn, tuple(locks), sync, saying, aside=aside)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread writes here is no news to whoever looks now and then (:meth:`mark`)."""
        self._aside.now = True
        try:
            yield
        finally:
            self._aside.now = False

    def _refuse_if_looked(self) -> None:
        if self.looked:
            raise LookedAtError(self.where)

    def subscribe(self, channel: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` after every commit that notified ``channel``, in any process.

        Wake-ups may be spurious.  The callback runs on a thread of the catalog and must not block:
        let it set a flag.  To lose nothing, subscribe first and look second.
        """
        self._listen(frequent=channel.startswith(FREQUENT))
        return self.notifier.subscribe(channel, callback)

    @abstractmethod
    def serve_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let this event loop receive notifications itself, as all subscribers live on it.

        It has to run until :meth:`leave_loop`, which is called on it before it ends.
        """

    @abstractmethod
    def leave_loop(self) -> None:
        """The loop stops receiving notifications."""

    @property
    def heard(self) -> int | None:
        """A number that grows with news of any stream, once something is subscribed.

        None if news may be lost without a trace: nothing receives it while a test drives the clock.
        """
        return None if self._committer.inline else self.notifier.heard

    @contextmanager
    def waiting(self, *channels: str) -> Iterator[Callable[[float | None], bool]]:
        """For threads: yields ``wait(timeout_s)``, true if notified since the last call."""
        bell = Bell()
        unsubscribe = [self.subscribe(channel, bell.ring) for channel in channels]
        try:
            yield bell.wait
        finally:
            for stop in unsubscribe:
                stop()

    def drive(self, now_us: Callable[[], int]) -> None:
        """For tests: take the time from ``now_us``, and commit every write on the calling thread.

        What happens is then deterministic: it depends on no clock and no thread.
        """
        self._clock.driven_us = now_us
        self._committer.inline = True

    @abstractmethod
    def _listen(self, *, frequent: bool) -> None:
        """Begin to receive notifications of other processes; with ``frequent`` those as well."""

    @abstractmethod
    def _tell(self, channels: set[str]) -> None:
        """Wake whoever waits on ``FREQUENT`` channels, in any process, without a commit."""

    def mark(self, *, aside: bool = True) -> tuple[int, ...]:  # noqa: ARG002
        """Numbers that differ after anybody has committed anything; costs next to nothing.

        Without ``aside`` they may be the same after what this program has written aside.
        """
        return (int(self.read(lambda tx: tx.rows(self._mark_query))[0][0]),)

    def size_bytes(self) -> int:
        """What the catalog takes on its disk, without the files of large batches."""
        return int(self.read(lambda tx: tx.rows(self._size_query))[0][0])

    def own_address(self) -> str | None:
        """This machine's address as the catalog's server sees it; None if there is no network."""
        return None

    def shrink(self) -> bool:
        """Give the space of what was deleted back to the system; whether there was much."""
        return False

    def close(self) -> None:
        """Finish queued writes and release everything."""
        if self._closed:
            return
        self._committer.close()
        self._frequent.close()
        self._closed = True
        self._release()
        # Those who wait look again, and learn that the catalog is closed.
        self.notifier.everybody()
        forks.unwatch(self)

    @abstractmethod
    def _release(self) -> None:
        """Close connections and sockets; there are no more writes."""

    def forked(self) -> None:
        """In a forked child: refuse every call; ``close`` does nothing there."""
        self._closed = True
        self.notifier.forked()
        if hasattr(self, "_committer"):
            self._committer.forked()

    def statistics(self) -> dict[str, int]:
        """Counters since this catalog was opened."""
        return {"commits": self._committer.commits, "operations": self._committer.operations}
