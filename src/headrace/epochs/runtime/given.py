"""What a subscription gives: whole epochs, steps of several, and what comes while streaming."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.effects import Deliver
from headrace.epochs.core.feed import Reference
from headrace.epochs.core.times import Time
from headrace.log import events

if TYPE_CHECKING:
    from headrace.epochs.runtime.acks import EpochTransaction
    from headrace.epochs.runtime.subscription import EpochSubscription


class EpochFrontier(msgspec.Struct, frozen=True):
    """What lies before it is complete; what lies at or after it is still to come."""

    frontier: Frontier
    token: str


class EpochTakenBack(msgspec.Struct, frozen=True):
    """Rows that a publisher put into epochs at or after `held` do not count."""

    stream: str
    publisher: str
    held: Frontier


class _Rows:
    """Rows that are read when they are asked for; they can be read again."""

    def __init__(
        self,
        subscription: EpochSubscription,
        times: Sequence[Time],
        references: Sequence[Reference],
        rows: int,
    ) -> None:
        self._subscription = subscription
        self._times = tuple(times)
        self.references = tuple(references)
        """Where the rows are."""
        self.rows = rows
        """How many rows there are."""

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows as record batches, segment by segment in the order of offsets."""
        return self._subscription.read_rows(self._times, self.references)

    async def table(self) -> pa.Table:
        """All rows at once."""
        return pa.Table.from_batches([batch async for batch in self], events.READ_SCHEMA)


class EpochPart(_Rows):
    """Rows of one commit at one time, as they come; the epoch may be far from complete."""

    def __init__(
        self,
        subscription: EpochSubscription,
        time: Time,
        references: Sequence[Reference],
        stream: str,
        publisher: str,
    ) -> None:
        super().__init__(subscription, (time,), references, sum([one.rows for one in references]))
        self.time = time
        self.stream = stream
        self.publisher = publisher

    def __repr__(self) -> str:
        return f"<EpochPart of {self.time}: {self.rows} rows>"


class EpochStep(_Rows):
    """Several whole epochs as one; see :meth:`EpochSubscription.steps`."""

    def __init__(
        self,
        subscription: EpochSubscription,
        times: Sequence[Time],
        references: Sequence[Reference],
        rows: int,
        resume: Frontier,
    ) -> None:
        super().__init__(subscription, times, references, rows)
        self.resume = resume
        """The frontier to go on from once this is dealt with."""

    def __repr__(self) -> str:
        return f"<EpochStep of {len(self._times)} epochs: {self.rows} rows>"

    @property
    def times(self) -> tuple[Time, ...]:
        """Its epochs, earlier ones first."""
        return self._times

    @property
    def token(self) -> str:
        """What to keep in order to go on after it."""
        return self._subscription.token_at(self.resume)

    async def ack(self) -> None:
        """Of a named subscription: all up to here is dealt with; raises ``Fenced`` if it is not
        this program's any more.
        """
        await self._subscription.ack(self)

    def transaction(self) -> EpochTransaction:
        """Of a named subscription: output that commits together with this ack, or not at all."""
        return self._subscription.transaction(self)


class WholeEpoch(EpochStep):
    """One whole epoch."""

    @property
    def time(self) -> Time:
        """Its time."""
        return self._times[0]

    def __repr__(self) -> str:
        return f"<WholeEpoch {self.time}: {self.rows} rows>"


def whole(
    subscription: EpochSubscription, time: Time, batches: Sequence[Deliver], resume: Frontier
) -> WholeEpoch:
    """The epoch of these batches, whose payloads are references."""
    first = batches[0].data
    if len(batches) == 1:
        return WholeEpoch(subscription, (time,), first.payload, first.rows, resume)
    references = [one for batch in batches for one in batch.data.payload]
    rows = sum([batch.data.rows for batch in batches])
    return WholeEpoch(subscription, (time,), references, rows, resume)


def step_of(
    subscription: EpochSubscription,
    first: WholeEpoch,
    queue: deque[EpochItem],
    epochs_max: int,
    rows_max: int,
) -> EpochStep:
    """An epoch and those behind it in the queue, up to the limits, as one.

    Where the limit of rows is reached amid the epochs of one commit, the step ends before them if
    that leaves half of it: the commit would be read twice, and its rows picked one by one.
    """
    taken, rows, line, seam = [first], first.rows, first.references[-1].line, 0
    for following in islice(queue, epochs_max - 1):
        assert isinstance(following, WholeEpoch)
        references = following.references
        if references[0].line > line:
            seam = len(taken)
        if rows + following.rows > rows_max:
            if 2 * seam >= len(taken):
                del taken[seam:]
            break
        rows += following.rows
        line = references[-1].line
        taken.append(following)
    for _ in taken[1:]:
        queue.popleft()
    return EpochStep(
        subscription,
        [one.time for one in taken],
        [one for epoch in taken for one in epoch.references],
        sum([one.rows for one in taken]),
        taken[-1].resume,
    )


EpochItem = WholeEpoch | EpochPart | EpochFrontier | EpochTakenBack
