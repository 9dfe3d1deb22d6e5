"""What a publisher hands out: capabilities, and its part in a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.epochs.core.commits import Step
from headrace.epochs.core.times import Time
from headrace.epochs.runtime.rows import EMPTY, timed
from headrace.log.events import Event, Events, Headers
from headrace.log.given import to_batch
from headrace.log.output import Output

if TYPE_CHECKING:
    from headrace.epochs.runtime.publisher import EpochPublisher


class Capability:
    """A time that its publisher holds apart from its frontier."""

    def __init__(self, publisher: EpochPublisher, number: int, time: Time) -> None:
        self._publisher = publisher
        self._number = number
        self.time = time

    def __repr__(self) -> str:
        return f"<Capability {self.time} of {self._publisher.name!r}>"

    async def downgrade(self, time: Time) -> None:
        """Hold a later time instead."""
        self._publisher.check_open()
        checked = self._publisher.shape.check(time)
        await self._publisher._commit(Step(capabilities=((self._number, checked),)))
        self.time = checked

    async def drop(self) -> None:
        """Hold it no more."""
        self._publisher.check_open()
        await self._publisher._commit(Step(capabilities=((self._number, None),)))


class EpochOutput:
    """Appends and advances of a publisher within a transaction: all or nothing."""

    def __init__(self, publisher: EpochPublisher, transaction: Output) -> None:
        self._publisher = publisher
        self._transaction = transaction

    def append(self, time: Time | None, data: Events, *, advance_to: object = None) -> None:
        """Add rows of an epoch."""
        publisher = self._publisher
        publisher.check_open()
        batch, times = timed(publisher.shape, to_batch(data), time)
        part = publisher.part(self._transaction._write, batch, times, advance_to)
        self._transaction.after_commit(lambda: publisher.told(part))

    def publish(
        self,
        time: Time,
        subject: str,
        value: bytes,
        *,
        key: str | None = None,
        headers: Headers | None = None,
        advance_to: object = None,
    ) -> None:
        """Add one event of an epoch."""
        event = Event(subject=subject, value=value, key=key, headers=headers)
        self.append(time, event, advance_to=advance_to)

    def advance_to(self, frontier: object) -> None:
        """Move the frontier when the transaction commits."""
        publisher = self._publisher
        publisher.check_open()
        part = publisher.part(self._transaction._write, EMPTY, None, frontier)
        self._transaction.after_commit(lambda: publisher.told(part))
