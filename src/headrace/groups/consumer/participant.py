"""What an application does with a member or a reader: open it, take its events, close it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import ClassVar, Self

from headrace.errors import InvalidInputError
from headrace.groups.consumer.batches import Batch
from headrace.groups.consumer.consume import Handler
from headrace.groups.consumer.consumer import Consumer


class Participant(ABC):
    """One who takes part in a group and has a consumer while it does."""

    made_by: ClassVar[str]
    """The call that makes it, for errors."""
    _consumer: Consumer | None = None

    @abstractmethod
    async def open(self) -> None:
        """Join the group; with ``async with`` this is done for you."""

    @abstractmethod
    async def close(self) -> None:
        """Store the answers that were given, hand everything over, and leave."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def consumer(self) -> Consumer:
        """What hands the events out."""
        if self._consumer is None:
            raise InvalidInputError(f"{self} has not joined yet; use `async with {self.made_by}`")
        return self._consumer

    def __aiter__(self) -> Consumer:
        return self.consumer

    def batches(self) -> AsyncIterator[Batch]:
        """Events as Arrow record batches, answered as a whole."""
        return self.consumer.batches()

    async def consume(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Call ``handler(delivery)`` for every event; see :meth:`Consumer.consume`."""
        await self.consumer.consume(handler, concurrency=concurrency)

    async def flush(self) -> None:
        """Wait until every answer so far is stored; raises what went wrong with one."""
        await self.consumer.flush()
