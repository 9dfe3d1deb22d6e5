"""What a subscription gives: whole epochs, steps of several, and what comes while streaming."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.epochs.core.antichains import Frontier
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
    ) -> None:
        self._subscription = subscription
        self._times = tuple(times)
        self.references = tuple(references)
        """Where the rows are."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(one.rows for one in self.references)

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
        super().__init__(subscription, (time,), references)
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
        resume: Frontier,
    ) -> None:
        super().__init__(subscription, times, references)
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


EpochItem = WholeEpoch | EpochPart | EpochFrontier | EpochTakenBack
