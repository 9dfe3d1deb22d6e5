"""Group commit: one thread per process turns many small writes into few transactions.

Callers queue operations; the thread takes all that have gathered while the last commit was
under way, runs each inside its own savepoint and commits them together, so that one ``fsync``
serves them all.  There is no delay to gather more.  An operation that raises is rolled back
alone.  Callers are told of success only after the commit has returned.

A caller that blocks anyway (``run``) commits on its own thread if the committer is idle, which
spares two thread switches.  So does an event loop with something small (``attempt``), if nobody
else wants to write: a thread switch takes longer than such a commit.  ``_turn`` is the lock that
whoever commits holds.

On the main thread a signal's handler may raise between any two steps.  So what is taken here is
given back by a single call into C, first thing in a ``finally``, and is safe to give back twice.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from headrace.catalog.bell import Bell
from headrace.catalog.calls import AppendCall, Call, Saying
from headrace.catalog.frequent import Frequent
from headrace.catalog.transaction import Tx
from headrace.catalog.write_driver import LONG_WAY, Done, Operation, WriteDriver, nobody
from headrace.errors import CatalogClosedError, CatalogError, ForkedError

__all__ = ["Committer", "Done", "Operation", "WriteDriver", "nobody"]

GROUP_MAX = 512

_log = logging.getLogger(__name__)

T = TypeVar("T")


def _given_up(_: Tx) -> None:
    raise CatalogClosedError("whoever waited for this write was interrupted")


class Committer:
    """The thread and its queue."""

    def __init__(self, driver: Callable[[], WriteDriver], name: str, frequent: Frequent) -> None:
        self._queue: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._open_driver = driver
        self._frequent = frequent
        self._driver: WriteDriver
        self._turn = threading.RLock()
        self._closed = False
        self._forked = False
        self._stopping = False
        self._queued = 0
        """Operations queued and not committed; ``attempt`` must not overtake them."""
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.commits = 0
        self.asides = 0
        """Commits of nothing but what was written aside."""
        self.operations = 0
        self.inline = False
        """Whether every write is committed on its caller's thread (driven tests)."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        try:
            error = self._ready.get()
        except BaseException:
            self._queue.put(None)
            raise
        if error is not None:
            self._closed = True
            raise error

    def submit(self, operation: Operation) -> None:
        if self.inline and self.attempt([operation]):
            return
        with self._lock:
            if self._forked:
                raise ForkedError
            if self._closed:
                raise CatalogClosedError("the catalog is closed; open it again to write")
            self._queued += 1
            self._queue.put(operation)

    def run(
        self,
        fn: Callable[[Tx], T],
        locks: tuple[str, ...],
        sync: bool,
        saying: Saying | None = None,
        *,
        aside: bool = False,
    ) -> T:
        """Commit a write and return its result, on this thread if nobody else is committing."""
        if self._turn._is_owned():  # type: ignore[attr-defined]
            raise CatalogError("a write within a write would wait for itself; put them in one")
        operation = Operation(fn, locks, sync, nobody, saying)
        operation.aside = aside
        # Alone: an interrupt that hits this thread must not fail the writes of others.
        if not self._try([operation], wait=self.inline or self._driver.direct):
            over = Bell()
            operation.done = lambda *_: over.ring()
            self.submit(operation)
            try:
                over.wait()
            except BaseException:
                operation.fn = _given_up
                raise
        if operation.error is not None:
            raise operation.error
        return cast(T, operation.result)

    def attempt(self, operations: list[Operation]) -> bool:
        """Commit on this thread if no lock has to be waited for; false: nothing was done."""
        return self._try(operations, wait=self.inline)

    def _try(self, operations: list[Operation], *, wait: bool) -> bool:
        turn = self._turn
        if turn._is_owned():  # type: ignore[attr-defined]
            return False  # within a transaction, or what follows one
        try:
            if not turn.acquire(blocking=False) or self._queued or self._closed:
                return False
            return self._process(operations, wait=wait)
        finally:
            try:
                turn.release()
            except RuntimeError:
                pass  # it was somebody else's

    def others(self) -> int:
        """How often it was seen that other processes had committed; waits for nobody."""
        driver, turn = self._driver, self._turn
        if turn._is_owned():  # type: ignore[attr-defined]
            return driver.others
        try:
            if turn.acquire(blocking=False) and not self._closed:
                with driver.section():
                    driver.look()
        finally:
            try:
                turn.release()
            except RuntimeError:
                pass  # somebody commits, and so has looked
        return driver.others

    def close(self) -> None:
        """Finish what is queued, then stop."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if not self._forked:
            self._thread.join()

    def forked(self) -> None:
        """In a forked child: take nothing; what is queued is the parent's."""
        self._turn, self._lock = threading.RLock(), threading.Lock()
        self._closed = self._forked = True

    def _run(self) -> None:
        try:
            self._driver = self._open_driver()
        except BaseException as error:
            self._ready.put(error)
            return
        self._ready.put(None)
        while not self._stopping:
            first = self._queue.get()
            with self._turn:
                if first is None:
                    break
                self._process_queued([first])
        with self._turn:
            self._driver.close()

    def _process_queued(self, group: list[Operation]) -> None:
        try:
            self._process(group, gather=True)
        finally:
            with self._lock:
                self._queued -= len(group)

    def _process(self, group: list[Operation], *, gather: bool = False, wait: bool = True) -> bool:
        """Commit a group, with ``gather`` all that is queued too; false if that had to wait."""
        driver = self._driver
        channels: set[str] = set()
        try:
            try:
                if not driver.enter(wait=wait):
                    return False
                with driver.section():
                    if gather:
                        self._gather(group)
                    channels = self._commit(driver, group)
            finally:
                driver.leave()
        except BaseException as error:
            failure = driver.translate(error)
            for operation in group:
                operation.error = operation.error or failure
        driver.committed(channels)
        for operation in group:
            self._answer(operation)
        driver.chores()
        return True

    @staticmethod
    def _answer(operation: Operation) -> None:
        try:
            operation.done(operation.result, operation.error)
        except Exception:
            # A callback that raises must not end the thread that serves everybody else.
            _log.exception("nobody could be told how a write went")

    def _gather(self, group: list[Operation]) -> None:
        with contextlib.suppress(queue.Empty):
            while len(group) < GROUP_MAX:
                operation = self._queue.get_nowait()
                if operation is None:
                    self._stopping = True
                    return
                group.append(operation)

    def _commit(self, driver: WriteDriver, group: list[Operation]) -> set[str]:
        if not driver.calls:
            return self._transact(driver, group)
        channels, rest = self._make_calls(driver, group)
        if not rest:
            return channels
        try:
            return channels | self._transact(driver, rest)
        except BaseException as error:
            # Of the whole group only these: the others are committed.
            failure = driver.translate(error)
            for operation in rest:
                operation.error = operation.error or failure
            return channels

    def _make_calls(
        self, driver: WriteDriver, group: list[Operation]
    ) -> tuple[set[str], list[Operation]]:
        """Commit the first ones that say what they do; the channels to notify, and all the rest.

        Only the first ones, and one append among them: nothing overtakes anything.
        """
        said: list[tuple[Operation, Call]] = []
        appends = 0
        for operation in group:
            call = operation.saying() if operation.saying is not None else None
            appends += isinstance(call, AppendCall)
            if call is None or appends > 1:
                break
            said.append((operation, call))
        rest = group[len(said) :]
        if not said:
            return set(), rest
        calls = [call for _, call in said]
        found, late = self._frequent.due(set().union(*(call.channels for call in calls)))
        locks = {lock for operation, _ in said for lock in operation.locks}
        sync = any(operation.sync for operation, _ in said)
        try:
            results = driver.call(calls, locks, sync, found)
        except BaseException as error:
            failure = driver.translate(error)
            for operation, _ in said:
                operation.error = operation.error or failure
                # At once: what stands behind it may not be written without it.
                self._answer(operation)
                operation.done = nobody
            return set(), rest
        if results is None:
            return set(), group
        undone = self._take_results(said, results)
        if late:
            self._frequent.later(late)
        return found, undone + rest

    def _take_results(
        self, said: list[tuple[Operation, Call]], results: list[Any]
    ) -> list[Operation]:
        undone = []
        for (operation, _), result in zip(said, results, strict=True):
            if result is LONG_WAY:
                undone.append(operation)
            else:
                operation.result = result
        self.commits += 1
        self.operations += len(said) - len(undone)
        return undone

    def _transact(
        self, driver: WriteDriver, group: list[Operation], *, settled: bool = False
    ) -> set[str]:
        """Run operations and commit them together; ``settled``: each is through before the next.

        Else what an operation need not wait for goes with what the next one asks.  If that fails,
        nobody knows whose it was, and all are run again, settled.
        """
        locks: set[str] = set()
        sync = False
        for operation in group:
            locks.update(operation.locks)
            sync |= operation.sync
        done = 0
        changed: set[str] = set()
        try:
            # Within the try: a begin that fails half-way has to be rolled back as well.
            tx = driver.begin(sorted(locks), sync)
            for operation in group:
                self._run_one(driver, tx, operation, len(group) == 1, settled)
                if operation.error is None:
                    done += 1
                    changed |= operation.channels
            if not done:
                driver.rollback()
                return set()
            channels, late = self._frequent.due(changed)
            driver.commit(channels)
        except BaseException as error:
            driver.rollback()
            if settled or len(group) == 1 or not driver.is_late(error):
                raise
            for operation in group:
                operation.result = operation.error = None
                operation.channels.clear()
            return self._transact(driver, group, settled=True)
        self.commits += 1
        self.asides += group[0].aside and all(operation.aside for operation in group)
        self.operations += done
        if late:
            self._frequent.later(late)
        return channels

    def _run_one(
        self, driver: WriteDriver, tx: Tx, operation: Operation, alone: bool, settled: bool
    ) -> None:
        tx.channels = operation.channels
        if not alone:
            driver.savepoint()
        try:
            operation.result = operation.fn(tx)
            if settled:
                tx.settle()  # what fails is this operation's, and no other's
        except BaseException as error:
            if not (alone or settled) and driver.is_late(error):
                raise  # it may be that of one before
            operation.error = driver.translate(error)
            operation.channels.clear()
            if not alone and not driver.rollback_to_savepoint():
                raise
