"""Publishing epochs in a plain loop at full speed; see :mod:`headrace.host.pipelined`.

Rows and advances are stored in the order of the calls, and those that gather during a commit become
one line of the progress log.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.epochs.core import ledger
from headrace.epochs.core.commits import Step
from headrace.epochs.core.ledger import PublisherState
from headrace.epochs.core.times import Time
from headrace.epochs.runtime.commit import LedgerPart
from headrace.epochs.runtime.rows import EMPTY, RowTimes, refuse_late, timed
from headrace.errors import Fenced
from headrace.host.packages import Waiting
from headrace.host.pipelined import Pipelined
from headrace.log.append import Outcome, Write
from headrace.log.events import Event, Headers
from headrace.log.given import to_batch

if TYPE_CHECKING:
    from headrace.epochs.runtime.publisher import EpochPublisher
    from headrace.log.events import Events


class EpochAppender(Pipelined):
    """Rows and advances that are on their way; see :meth:`EpochPublisher.appender`."""

    def __init__(self, publisher: EpochPublisher) -> None:
        super().__init__(publisher.host, publisher.stream)
        self._publisher = publisher
        self._state = ledger.begin(publisher.stream, publisher.shape)[0]
        self._expected: PublisherState | None = None
        """What the publisher holds once everything that was given is stored."""
        self._judged: tuple[LedgerPart, PublisherState, PublisherState] | None = None
        """The last part, what was held before it, and after it."""
        self._empty: pa.RecordBatch = EMPTY

    async def append(self, time: Time | None, data: Events, *, advance_to: object = None) -> None:
        """Append rows of one epoch, or (``time=None``) of the epochs in their ``epoch`` column.

        Returns once they are checked and there is room for more; what breaks a rule raises here,
        and nothing of this call is written.  With ``advance_to`` the frontier moves in the same
        commit.
        """
        self._begin()
        batch = await self._host.writes.checked(data)
        await self._put(self._write_of(*timed(self._publisher.shape, batch, time), advance_to))

    async def publish(
        self,
        time: Time,
        subject: str,
        value: bytes,
        *,
        key: str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
        advance_to: object = None,
    ) -> None:
        """Append one event of an epoch."""
        event = Event(subject=subject, value=value, key=key, headers=headers, timestamp=timestamp)
        await self.append(time, event, advance_to=advance_to)

    async def advance_to(self, frontier: object) -> None:
        """What lies before ``frontier`` is complete once all that was given before is stored."""
        self._begin()
        await self._put(self._write_of(self._empty, None, frontier))

    def append_from_thread(
        self, time: Time | None, data: Events, *, advance_to: object = None
    ) -> bool:
        """Append from another thread than the loop's; if there is no room, do nothing: false."""
        self._host.check_thread()
        self._check()
        self._publisher.check_active()
        if self._is_full:
            return False
        batch, times = timed(self._publisher.shape, to_batch(data), time)
        self._put_from_thread(self._write_of(batch, times, advance_to))
        return True

    def _begin(self) -> None:
        self._host.check()
        self._check()
        self._publisher.check_active()

    def _write_of(self, batch: pa.RecordBatch, times: RowTimes | None, advance_to: object) -> Write:
        publisher = self._publisher
        if batch.num_rows:
            # An advance without rows is joined with its neighbours if it has the same columns.
            self._empty = batch.slice(0, 0)
            assert times is not None
            ahead, lower = self._ahead, publisher.lower
            refuse_late(self._stream, publisher.shape, ahead, lower, batch.num_rows, times)
        write = self._host.log.write_of()
        part = publisher.part(write, batch, times, advance_to, joins=True)
        self._after(part)
        return write

    def _after(self, part: LedgerPart) -> PublisherState:
        """What the publisher holds after a part, if all before it is stored."""
        ahead = self._ahead
        known = self._judged
        if known is None or known[0] is not part or known[1] != ahead:
            wanted = [Step(advance_to=step.advance_to) for step in part.steps]
            known = (part, ahead, ledger.check_steps(self._state, ahead, wanted))
            self._judged = known
        return known[2]

    def _give(self, write: Write) -> Waiting:
        part = write.plain.progress
        assert isinstance(part, LedgerPart)
        after = self._after(part)
        waiting = super()._give(write)
        self._expected = after
        return waiting

    @property
    def _ahead(self) -> PublisherState:
        """What the publisher will hold, as far as that is known here."""
        now = self._publisher.state
        if self._expected is None or self._given == self._stored:
            return now
        return msgspec.structs.replace(now, frontier=self._expected.frontier)

    def _answered(self, write: Write, outcome: Outcome, error: BaseException | None) -> None:
        if error is None:
            self._publisher.told(write.plain.progress)
        elif isinstance(error, Fenced):
            self._publisher.fenced()
        super()._answered(write, outcome, error)
