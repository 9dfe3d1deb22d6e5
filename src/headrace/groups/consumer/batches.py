"""Arrow use: a unit's events as record batches, without work per event.

One batch of a unit is in the application's hands at a time, so that the order of every key
holds; those that follow are fetched meanwhile.  The rules are those of the batch dispatcher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.groups.consumer import rows
from headrace.groups.consumer.dead_letters import dead_letter
from headrace.groups.consumer.delivery import deliveries
from headrace.groups.consumer.fetch import Fetched, Gap
from headrace.groups.consumer.held import Held
from headrace.groups.consumer.run import Dying, Run
from headrace.groups.consumer.types import OwnedUnit, UnitEvents
from headrace.groups.delivery import (
    BatchDispatcher,
    BatchHandout,
    DeadLetter,
    Piece,
    Stalled,
)
from headrace.groups.progress import AckedRanges
from headrace.groups.progress.arrays import Int64s
from headrace.log import events
from headrace.subjects.columns import mask_array

if TYPE_CHECKING:
    from headrace.groups.consumer.units import Units


class Batch(Held, gc=False, eq=False):
    """Events of one unit as an Arrow record batch, to be answered once and as a whole.

    One that is refused comes again before what follows; when its deliveries are used up, in halves.
    """

    _run: Any
    _handout: BatchHandout
    data: pa.RecordBatch
    """The columns of a read: segment, offset, timestamp, subject, key, value, …"""

    def __len__(self) -> int:
        return int(self.data.num_rows)

    @property
    def attempt(self) -> int:
        """How often these events were handed out together, this time included."""
        return self._handout.attempt

    async def ack(self) -> None:
        """All of it is done with; returns once that is stored."""
        self.ack_soon()
        await self._run.stored()

    def ack_soon(self) -> None:
        """All of it is done with; stored with the next commit."""
        self._check("ack")
        self._run.ack(self)
        self._answer = "acked"


class _Fed(msgspec.Struct, frozen=True, eq=False):
    """A fetched part that the dispatcher knows."""

    data: pa.RecordBatch
    offsets: Int64s
    size_bytes: int


class BatchRun(Run):
    """One unit, handed out in batches."""

    def __init__(self, runtime: Units, owned: OwnedUnit, owner: UnitEvents) -> None:
        super().__init__(runtime, owned, owner)
        self.dispatcher: BatchDispatcher = BatchDispatcher(runtime.options.delivery, owned.progress)
        self._fed: deque[_Fed] = deque()

    def may_take(self) -> bool:
        if self.gone is not None or self.paused:
            return False
        return self.dispatcher.ready or (bool(self.ahead) and self.dispatcher.empty)

    def fetched(self, found: Fetched | Gap) -> None:
        """Cut what was read into batches: large reads are cheaper than one read per batch."""
        step = self.runtime.options.batch_events_max
        if isinstance(found, Gap) or found.rows <= step:
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
            self.runtime.burials.begin(self)
        if handout is None:
            return None
        return Batch(self, handout, self._public(handout.piece))

    def _feed(self, part: Fetched | Gap) -> None:
        if isinstance(part, Gap):
            self.dispatcher.feed(np.empty(0, np.int64), part.end)
            self.runtime.commits.later(self, self.runtime.options.ack_delay_ms)
            return
        data, offsets = part.data, events.int64s(part.data.column(0))
        keep = self.dispatcher.feed(offsets, part.end)
        if keep is not None:
            data, offsets = data.filter(mask_array(keep)), offsets[keep]
        if len(offsets):
            self._fed.append(_Fed(data, offsets, part.size_bytes))
        else:
            self.hold(-part.size_bytes)
            self.runtime.commits.later(self, self.runtime.options.ack_delay_ms)

    def _rows(self, piece: Piece) -> pa.RecordBatch:
        """The stored rows of a piece; parts before it are done with."""
        first = int(piece.offsets[0])
        while int(self._fed[0].offsets[-1]) < first:
            self.hold(-self._fed.popleft().size_bytes)
        fed = self._fed[0]
        at = int(np.searchsorted(fed.offsets, first))
        if np.array_equal(fed.offsets[at : at + piece.events], piece.offsets):
            return fed.data.slice(at, piece.events)
        return fed.data.take(pa.array(np.searchsorted(fed.offsets, piece.offsets)))

    def _public(self, piece: Piece) -> pa.RecordBatch:
        data = self._rows(piece)
        shown = events.public(data, self.owned.segment, data.column(0))
        if self.owned.strip:
            at = shown.schema.get_field_index("subject")
            stripped = rows.strip_tokens(data.column("subject"), self.owned.strip)
            shown = shown.set_column(at, shown.schema.field(at), stripped)
        return shown

    # -- answers ------------------------------------------------------------------------

    def name_of(self, held: Any) -> str:
        return f"a batch of unit {held.unit!r}"

    def ranges_of(self, held: Any) -> list[tuple[int, int]]:
        return runs_of(held._handout.piece.offsets)

    def ack(self, held: Any, *, stored: bool = False) -> None:
        self.dispatcher.ack(held._handout.ticket, self.now_ms())
        if self.dispatcher.empty:
            self._forget_fed()
        if not stored:
            self.runtime.commits.later(self, self.runtime.options.ack_delay_ms)
        if self.may_take():
            self.runtime.offer(self)

    def nack(self, held: Any, delay_ms: int | None, reason: str) -> Awaitable[None]:
        outcome = self.dispatcher.nack(held._handout.ticket, self.now_ms(), delay_ms, reason)
        return self._refused_and_stored(outcome)

    def reject(self, held: Any, reason: str) -> Awaitable[None]:
        self.dispatcher.reject(held._handout.ticket, self.now_ms(), reason)
        return self.runtime.burials.wait(self)

    def extend(self, held: Any) -> None:
        self.dispatcher.extend(held._handout.ticket, self.now_ms())

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

    def pass_over(self, acked: AckedRanges, unseen: list[int]) -> set[int] | None:
        news = self.dispatcher.pass_over(acked, unseen=bool(unseen))
        if self.dispatcher.empty:
            self._forget_fed()
        if self.may_take():
            self.runtime.offer(self)
        back = set(unseen) if self.dispatcher.idle else set()
        return back if news or back else None

    def _forget_fed(self) -> None:
        while self._fed:
            self.hold(-self._fed.popleft().size_bytes)


def runs_of(offsets: Int64s) -> list[tuple[int, int]]:
    """Ascending offsets as half-open ranges."""
    breaks = np.flatnonzero(np.diff(offsets) > 1)
    los = offsets[np.concatenate(([0], breaks + 1))].tolist()
    his = (offsets[np.concatenate((breaks, [offsets.size - 1]))] + 1).tolist()
    return list(zip(los, his, strict=True))
