"""The one queue in front of the committer: all that a program writes from its event loop.

*Events*, whether published, appended, given to an appender or part of a transaction, wait in one
FIFO, the line.  One group of them is committed at a time; what comes meanwhile shares the next
group commit.  So a program's events of one key are stored in the order of its calls, whichever
calls those were.  Plain neighbours in the line become one write (``log/joined.py``).

*Transactions* hold no events: acks, leases, what leaders store.  They overtake the line: they are
handed over at the end of the event loop's current turn, together with the next group of events if
it is due.

A hand-over is committed by the event loop itself where ``loads`` allows that, else by the
committer's thread.  The exceptions are *settled* on another thread with ``Log.commit``, while the
line waits so that nothing overtakes them: events for streams that have to be looked up, events
whose segment was sealed under them (``Stale``), and groups in which one event is at fault.

A large write is encoded on a thread *before* it enters the line, so that no other waits for that.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from headrace.catalog import Tx
from headrace.catalog.calls import Saying
from headrace.catalog.committer import Operation, nobody
from headrace.errors import HeadraceError
from headrace.host.loads import GROUP_BYTES, LOOP_BYTES, SMALL_BYTES, Loads, Stopwatch
from headrace.host.packages import GivenUp, Package, Told, Waiting, apart, packages, settle
from headrace.log.append import Outcome, Write
from headrace.log.events import Event, Events
from headrace.log.given import to_batch
from headrace.log.log import Log, discard
from headrace.log.placing import Stale

GROUP_MAX = 4096

T = TypeVar("T")
Threads = Callable[..., Coroutine[Any, Any, Any]]
"""Runs a blocking function on a thread."""


class _Job(Operation):
    """An operation to be handed over."""

    __slots__ = ("failed", "size_bytes", "told")

    def __init__(
        self,
        fn: Callable[[Tx], Any],
        locks: Iterable[str],
        sync: bool,
        size_bytes: float,
        told: Told,
        failed: Callable[[BaseException], None] | None = None,
        saying: Saying | None = None,
    ) -> None:
        """``failed`` is called on the committing thread, before the next job begins."""
        super().__init__(fn, tuple(locks), sync, nobody, saying)
        self.size_bytes = size_bytes
        """Infinite, if a thread has to commit it in any case."""
        self.told = told
        self.failed = failed


class Writes:
    """The queue of one program; see the module's text."""

    def __init__(self, log: Log, loads: Loads, in_thread: Threads) -> None:
        self._log = log
        self._loads = loads
        self._in_thread = in_thread
        self._loop = asyncio.get_running_loop()
        # ``headrace.sync`` adds to it on its callers' threads.
        self._line: deque[Waiting] = deque()
        self._jobs: list[_Job] = []
        self._due = False
        """Whether a hand-over is scheduled for the end of this turn."""
        self._busy = False
        """Whether a group of events is being committed."""
        self._under_way = 0
        self._troubles: list[tuple[Package, BaseException | None]] = []
        self._later: list[tuple[Package, BaseException | None]] = []
        self._settling: asyncio.Task[None] | None = None
        self._rested = asyncio.Event()

    # -- what comes ---------------------------------------------------------------------

    def publish(self, event: Event) -> Awaitable[Outcome]:
        """Append a checked event to the stream that captures its subject."""
        stream = self._log.routes.find(event.subject)
        answer = self._loop.create_future()
        self._line.append(Waiting(answer=answer, event=event, stream=stream))
        # Else somebody hands over, or a group that ends does.
        idle = not self._due and not self._busy
        return self._answered_in_turn(answer) if idle else answer

    async def commit(self, write: Write) -> Outcome:
        """Append what a write holds, all of it or nothing."""
        await self.prepare(write)
        answer = self._loop.create_future()
        self._line.append(Waiting(answer=answer, write=write))
        outcome = await self._answered_in_turn(answer)
        if outcome.repeat and write.has_files:
            await self._in_thread(write.discard)
        return outcome

    async def prepare(self, write: Write) -> None:
        """Encode a large write on a thread; done in the line, that would hold up others."""
        if write.size_bytes > SMALL_BYTES:
            await self._in_thread(write.prepare)

    async def checked(self, data: Events) -> pa.RecordBatch:
        """A caller's data as one checked batch; checked on a thread unless it is small."""
        if isinstance(data, Event) or _is_small(data):
            return to_batch(data)
        return await self._in_thread(to_batch, data)

    def put(self, item: Waiting) -> None:
        """Add to the line; on the event loop."""
        self._line.append(item)
        if not self._busy:
            self._soon()

    def put_from_thread(self, item: Waiting) -> None:
        """Add to the line on another thread.

        No wake-up is lost: the loop clears ``_busy`` and then looks at the line; this adds to the
        line and then looks at ``_busy``.  So at least one of the two sees the other.
        """
        self._line.append(item)
        if not self._busy and not self._due:
            self._due = True
            self._loop.call_soon_threadsafe(self._hand_over)

    def transact(
        self, fn: Callable[[Tx], T], locks: Iterable[str], *, sync: bool, small: bool
    ) -> asyncio.Future[T]:
        """Run ``fn`` in a write transaction; it holds no events."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self.submit(fn, locks, partial(settle, answer), sync=sync, small=small)
        return answer

    def submit(
        self,
        fn: Callable[[Tx], object],
        locks: Iterable[str],
        told: Told,
        *,
        sync: bool,
        small: bool,
        saying: Saying | None = None,
    ) -> None:
        """Run ``fn`` in a write transaction; ``told`` is called later, on the event loop."""
        size_bytes = 0 if small else math.inf
        self._jobs.append(_Job(fn, locks, sync, size_bytes, told, None, saying))
        self._soon()

    @property
    def busy(self) -> bool:
        """Whether events wait or are under way."""
        return self._busy or bool(self._line)

    async def close(self) -> None:
        """Wait until all events are stored; transactions have been handed over by then."""
        self._hand_over()
        while self.busy:
            self._rested.clear()
            await self._rested.wait()

    # -- handing over -------------------------------------------------------------------

    def _soon(self) -> None:
        """Hand over at the end of this turn: all tasks that write in it share the commit."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._hand_over)

    async def _answered_in_turn(self, answer: asyncio.Future[Outcome]) -> Outcome:
        """Wait for an answer; the first task of a turn to wait hands over for all of them.

        A lone publish takes 4 % less than if a callback handed over.
        """
        if not self._due and not self._busy:
            self._due = True
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                answer.cancel()
                raise
            finally:
                self._hand_over()
        return await answer

    def _hand_over(self) -> None:
        self._due = False
        jobs, self._jobs = self._jobs, []
        if not self._busy and (taken := self._take()):
            self._busy = True
            jobs = self._jobs_of(taken) + jobs
            if not self._under_way:
                self._group_ended()
        if not jobs:
            return
        size_bytes, sync = 0.0, False
        for job in jobs:
            size_bytes += job.size_bytes
            sync |= job.sync
        if size_bytes <= LOOP_BYTES and self._loads.commit([*jobs], sync=sync):
            for job in jobs:
                self._tell(job.told, job.result, job.error)
            return
        for job in jobs:
            self._submit(job)

    def _submit(self, job: _Job) -> None:
        loop, fn, watch = self._loop, job.fn, Stopwatch()

        def run(tx: Tx) -> object:
            nonlocal watch
            watch = Stopwatch()
            return fn(tx)

        def tell(result: object, error: BaseException | None) -> None:
            if error is not None and job.failed is not None:
                job.failed(error)
            elif job.size_bytes <= LOOP_BYTES and error is None:
                self._loads.committed(watch.held_up_s(), sync=job.sync)
            if not loop.is_closed():
                loop.call_soon_threadsafe(job.told, result, error)

        try:
            self._log.catalog.submit(run, tell, locks=job.locks, sync=job.sync, saying=job.saying)
        except HeadraceError as error:
            loop.call_soon(job.told, None, error)

    def _tell(self, told: Told, result: object, error: BaseException | None) -> None:
        """Call a callback; if it raises, the others are called all the same."""
        try:
            told(result, error)
        except Exception as caught:
            about = {"message": "nobody could be told how a write went", "exception": caught}
            self._loop.call_exception_handler(about)

    # -- groups of events ---------------------------------------------------------------

    def _take(self) -> list[Waiting]:
        """The next group of the line, without what was given up."""
        taken: list[Waiting] = []
        size = 0
        while self._line and len(taken) < GROUP_MAX:
            item = self._line[0]
            if item.answer is not None and item.answer.cancelled():
                self._line.popleft()
                continue
            size += item.size_bytes
            if taken and size > GROUP_BYTES:
                break
            taken.append(self._line.popleft())
        if not taken:
            self._rested.set()
        return taken

    def _jobs_of(self, items: list[Waiting]) -> list[_Job]:
        """A group as jobs; what has to be settled, and all behind it, is kept for later."""
        jobs: list[_Job] = []
        group = packages(self._log, items)
        for at, package in enumerate(group):
            error: Exception | None = None
            try:
                if ready := package.is_ready:
                    package.prepare()
            except Exception as caught:
                ready, error = False, caught
            if error is not None and len(package.items) == 1:
                self._fail(package, error)
            elif ready:
                jobs.append(self._job(package))
            else:
                self._later = [(package, error), *((behind, None) for behind in group[at + 1 :])]
                break
        self._under_way = len(jobs)
        return jobs

    def _job(self, package: Package) -> _Job:
        size_bytes = math.inf if package.write.stage else package.size_bytes
        told = partial(self._answered, package)
        own = package.failed, package.saying
        return _Job(package.run, package.locks, True, size_bytes, told, *own)

    def _answered(self, package: Package, outcome: Outcome, error: BaseException | None) -> None:
        self._under_way -= 1
        if error is None:
            for item, own in package.outcomes(outcome):
                if (answer := item.answer) is None:
                    self._tell(item.tell, own, None)
                elif not answer.done():
                    answer.set_result(own)
        elif isinstance(error, Stale | GivenUp) or package.write.has_files:
            self._troubles.append((package, error))
        else:
            self._fail(package, error)
        if not self._under_way:
            self._group_ended()

    def _fail(self, package: Package, error: BaseException) -> None:
        package.failed(error)
        for item in package.items:
            self._tell(item.tell, None, error)

    def _group_ended(self) -> None:
        troubles = self._troubles + self._later
        self._troubles, self._later = [], []
        if troubles:
            self._settling = self._loop.create_task(self._settle(troubles))
        else:
            self._rest()

    def _rest(self) -> None:
        self._busy = False
        if self._line:
            self._soon()
        else:
            self._rested.set()

    # -- what takes longer --------------------------------------------------------------

    async def _settle(self, troubles: list[tuple[Package, BaseException | None]]) -> None:
        try:
            while troubles:
                package, error = troubles[0]
                for item, found in await self._in_thread(self._settled, package, error):
                    own = (None, found) if isinstance(found, BaseException) else (found, None)
                    self._tell(item.tell, *own)
                del troubles[0]
        except BaseException as error:
            for package, _ in troubles:
                self._fail(package, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._settling = None
            self._rest()

    def _settled(
        self, package: Package, error: BaseException | None
    ) -> list[tuple[Waiting, Outcome | BaseException]]:
        """On a thread: commit a package; if one of several is at fault, the others without it."""
        items: list[Waiting] = []
        lost: list[tuple[Waiting, Outcome | BaseException]] = []
        for item in package.items:
            try:
                if item.given_up:
                    if item.write is not None:
                        item.write.discard()
                    raise GivenUp
                if item.write is None and item.stream is None:
                    assert item.event is not None
                    item.stream = self._log.routes.stream_for(item.event.subject)
            except Exception as refused:
                lost.append((item, refused))
            else:
                items.append(item)
        if lost:
            package = Package(self._log, items, set())
            error = None if isinstance(error, Stale | GivenUp) else error
        if not items:
            return lost
        if error is None or isinstance(error, Stale):
            try:
                outcome = self._log.commit(package, error)
            except GivenUp as refused:
                return [*lost, *self._settled(package, refused)]
            except Exception as refused:
                error = refused
            else:
                return [*lost, *package.outcomes(outcome)]
        parts = apart(items, error)
        if len(parts) == 1:
            package.failed(error)
            if isinstance(error, HeadraceError):
                discard(package, error)
            return [*lost, *((item, error) for item in items)]
        for part in parts:
            lost += self._settled(Package(self._log, part, set()), None)
        return lost


def _is_small(data: Events) -> bool:
    if not isinstance(data, pa.Table | pa.RecordBatch):
        return False
    # The buffers of a slice are those of the whole, so then ``nbytes`` decides.
    return bool(data.get_total_buffer_size() < SMALL_BYTES or data.nbytes < SMALL_BYTES)
