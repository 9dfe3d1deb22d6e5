"""Arrow use: a unit's events as record batches, without work per event.

One batch of a unit is in the application's hands at a time, so that the order of every key
holds; those that follow are fetched meanwhile.  The rules are those of the batch dispatcher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import AnsweredError
from headrace.groups.consumer import rows
from headrace.groups.consumer.dead_letters import dead_letter
from headrace.groups.consumer.delivery import deliveries
from headrace.groups.consumer.fetch import Fetched, Skipped
from headrace.groups.consumer.run import Dying, Run
from headrace.groups.consumer.transaction import AckTransaction
from headrace.groups.consumer.types import OwnedUnit, UnitEvents
from headrace.groups.delivery import (
    BatchDispatcher,
    BatchHandout,
    DeadLetter,
    Piece,
    Stalled,
)
from headrace.log import events, limits

if TYPE_CHECKING:
    from headrace.groups.consumer.units import Units


class Batch:
    """Events of one unit as an Arrow record batch, to be answered once and as a whole."""

    __slots__ = ("_answer", "_handout", "_run", "data")

    def __init__(self, run: BatchRun, handout: BatchHandout, data: pa.RecordBatch) -> None:
        self._run = run
        self._handout = handout
        self._answer = ""
        self.data = data
        """The columns of a read: segment, offset, timestamp, subject, key, value, …"""

    def __len__(self) -> int:
        return int(self.data.num_rows)

    @property
    def unit(self) -> str:
        """The unit of the group that it belongs to."""
        return self._run.owned.unit

    @property
    def attempt(self) -> int:
        """How often these events were handed out together, this time included."""
        return self._handout.attempt

    @property
    def answered(self) -> bool:
        """Whether it was acked, nacked or rejected."""
        return bool(self._answer)

    async def ack(self) -> None:
        """All of it is done with; returns once that is stored."""
        self.ack_soon()
        await self._run.stored()

    def ack_soon(self) -> None:
        """All of it is done with; stored with the next commit."""
        self._check("ack")
        self._run.ack(self._handout)
        self._answer = "acked"

    async def nack(self, delay_ms: int | None = None, reason: str = "") -> None:
        """Deliver it again before what follows; when its deliveries are used up, in halves."""
        self._check("nack")
        done = self._run.nack(self._handout, delay_ms, reason)
        self._answer = "nacked"
        await done

    async def reject(self, reason: str = "") -> None:
        """None of it can ever be done: all of it becomes dead letters."""
        self._check("reject")
        done = self._run.reject(self._handout, reason)
        self._answer = "rejected"
        await done

    async def extend(self) -> None:
        """Still at it: the time for the answer (``ack_wait_ms``) begins anew."""
        self._check("extend")
        self._run.dispatcher.extend(self._handout.ticket, self._run.now_ms())

    def transaction(self) -> AckTransaction:
        """Output that commits together with the ack of this batch, or not at all."""
        self._check("ack")
        return AckTransaction(self._run.runtime, self._run, _Answer(self._run, self))

    def _check(self, verb: str) -> None:
        if self._answer:
            raise AnsweredError(
                f"cannot {verb} a batch of unit {self.unit!r}: it was {self._answer} already"
            )
        if self._run.gone is not None:
            raise self._run.gone


class _Fed(msgspec.Struct, frozen=True, eq=False):
    """A fetched part that the dispatcher knows."""

    data: pa.RecordBatch
    offsets: rows.Int64s
    size_bytes: int


class BatchRun(Run):
    """One unit, handed out in batches."""

    def __init__(self, runtime: Units, owned: OwnedUnit, owner: UnitEvents) -> None:
        super().__init__(runtime, owned, owner)
        self.dispatcher: BatchDispatcher = BatchDispatcher(runtime.options.delivery, owned.progress)
        self.committing = False
        self._fed: deque[_Fed] = deque()

    # -- the core's state ---------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return self.dispatcher.idle and not self.committing

    @property
    def caught_up(self) -> bool:
        return not self.committing and self.dispatcher.caught_up

    @property
    def fetch_events_max(self) -> int:
        return limits.READ_ROWS

    def may_take(self) -> bool:
        if self.gone is not None or self.paused:
            return False
        return self.dispatcher.ready or (bool(self.ahead) and self.dispatcher.empty)

    def fetched(self, found: Fetched | Skipped) -> None:
        """Cut what was read into batches: large reads are cheaper than one read per batch."""
        step = self.runtime.options.batch_events_max
        if isinstance(found, Skipped) or found.rows <= step:
            super().fetched(found)
            return
        offsets = found.data.column(0)
        for at in range(0, found.rows, step):
            rows = min(step, found.rows - at)
            last = at + rows == found.rows
            super().fetched(
                Fetched(
                    data=found.data.slice(at, rows),
                    end=found.end if last else offsets[at + rows].as_py(),
                    keys=None,
                    size_bytes=found.size_bytes * rows // found.rows,
                )
            )

    # -- out ----------------------------------------------------------------------------

    def take(self, now: int) -> Batch | None:
        """The next batch, if one may go."""
        while self.ahead and self.dispatcher.empty:
            self._feed(self.ahead.popleft())
        handout = self.dispatcher.take(now)
        if self.dispatcher.dying is not None:
            self.runtime.bury(self)
        if handout is None:
            return None
        return Batch(self, handout, self._public(handout.piece))

    def _feed(self, part: Fetched | Skipped) -> None:
        if isinstance(part, Skipped):
            self.dispatcher.feed(np.empty(0, np.int64), part.end)
            self.runtime.changed(self, delay_ms=self.runtime.options.ack_delay_ms)
            return
        data, offsets = part.data, rows.int64s(part.data.column(0))
        keep = self.dispatcher.feed(offsets, part.end)
        if keep is not None:
            data, offsets = data.filter(rows.mask(keep)), offsets[keep]
        if len(offsets):
            self._fed.append(_Fed(data, offsets, part.size_bytes))
        else:
            self.hold(-part.size_bytes)
            self.runtime.changed(self, delay_ms=self.runtime.options.ack_delay_ms)

    def _rows(self, piece: Piece) -> pa.RecordBatch:
        """The stored rows of a piece; parts before it are done with."""
        first = int(piece.offsets[0])
        while int(self._fed[0].offsets[-1]) < first:
            self.hold(-self._fed.popleft().size_bytes)
        fed = self._fed[0]
        return fed.data.slice(int(np.searchsorted(fed.offsets, first)), piece.events)

    def _public(self, piece: Piece) -> pa.RecordBatch:
        data = self._rows(piece)
        shown = events.public(data, self.owned.segment, data.column(0))
        if self.owned.strip:
            at = shown.schema.get_field_index("subject")
            stripped = rows.strip_tokens(data.column("subject"), self.owned.strip)
            shown = shown.set_column(at, shown.schema.field(at), stripped)
        return shown

    # -- answers ------------------------------------------------------------------------

    def ack(self, handout: BatchHandout, *, stored: bool = False) -> None:
        """A batch is done with."""
        self.dispatcher.ack(handout.ticket, self.now_ms())
        if self.dispatcher.empty:
            while self._fed:
                self.hold(-self._fed.popleft().size_bytes)
        if not stored:
            self.runtime.changed(self, delay_ms=self.runtime.options.ack_delay_ms)
        if self.may_take():
            self.runtime.offer(self)

    def nack(self, handout: BatchHandout, delay_ms: int | None, reason: str) -> Awaitable[None]:
        """A batch is refused; waits until that is stored."""
        outcome = self.dispatcher.nack(handout.ticket, self.now_ms(), delay_ms, reason)
        return self._refused_and_stored(outcome)

    def reject(self, handout: BatchHandout, reason: str) -> Awaitable[None]:
        """A batch dies; waits until its events are stored as dead letters."""
        self.dispatcher.reject(handout.ticket, self.now_ms(), reason)
        return self.runtime.buried(self)

    def settle(self) -> None:
        """Answers reach the dispatcher at once."""

    def dying(self) -> Dying | None:
        found = self.dispatcher.dying
        if found is None or self.gone is not None:
            return None
        letters = [
            dead_letter(
                self, one, DeadLetter(one.offset, found.attempts, found.reason, found.detail)
            )
            for one in deliveries(self, self._rows(found.piece), self.owned.strip)
        ]

        def confirm() -> None:
            self.dispatcher.dead_lettered(found.piece.start, self.now_ms())
            if self.may_take():
                self.runtime.offer(self)

        return Dying(letters, runs_of(found.piece.offsets), confirm)

    # -- time and the end ---------------------------------------------------------------

    def tick(self, now: int, unseen: list[int]) -> list[Stalled]:
        if unseen or self.committing:
            self.dispatcher.renew(now)
        return self._expire(now)

    def recall(self, unseen: list[int]) -> None:
        if unseen:
            self.dispatcher.recall()


class _Answer:
    """The ack of a batch, as part of a transaction."""

    def __init__(self, run: BatchRun, batch: Batch) -> None:
        self._run = run
        self._batch = batch

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return runs_of(self._batch._handout.piece.offsets)

    def begin(self) -> None:
        self._batch._check("ack")
        self._run.dispatcher.extend(self._batch._handout.ticket, self._run.now_ms())
        self._batch._answer = "acked"
        self._run.committing = True

    def committed(self) -> None:
        self._run.committing = False
        if self._run.gone is None:
            self._run.ack(self._batch._handout, stored=True)
            self._run.runtime.check_end(self._run)

    def failed(self) -> None:
        self._run.committing = False
        self._batch._answer = ""


def runs_of(offsets: rows.Int64s) -> list[tuple[int, int]]:
    """Ascending offsets as half-open ranges."""
    breaks = np.flatnonzero(np.diff(offsets) > 1)
    los = offsets[np.concatenate(([0], breaks + 1))].tolist()
    his = (offsets[np.concatenate((breaks, [offsets.size - 1]))] + 1).tolist()
    return list(zip(los, his, strict=True))
