"""What an application holds of a member or a reader that runs by itself.

What keeps those running (hubs, timers, tasks) refers to them, and not to their handles.  So a
handle that is dropped without being closed is noticed: it warns, and what it stood for is closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from headrace.groups.consumer.batches import Batch
from headrace.groups.consumer.consume import Handler
from headrace.groups.consumer.consumer import Consumer, Deliveries
from headrace.groups.consumer.delivery import Delivery
from headrace.host import Host

T_co = TypeVar("T_co", covariant=True)


class Running(Protocol):
    """A member or a reader of this program."""

    host: Host

    @property
    def consumer(self) -> Consumer:
        """What hands the events out; raises before it was opened."""
        ...

    @property
    def ends(self) -> bool:
        """Whether it is closed, or about to be."""
        ...

    async def open(self) -> None:
        """Join."""
        ...

    async def close(self) -> None:
        """Leave."""
        ...


R = TypeVar("R", bound=Running)


class Participant(Generic[R]):
    """Use it with ``async with``, and take its events."""

    def __init__(self, running: R, client: object) -> None:
        self.running = running
        self._opened = False
        self._client = client  # the open log is in use as long as this is

    def __str__(self) -> str:
        return str(self.running)

    def __del__(self) -> None:
        if self._opened and not self.running.ends:
            self.running.host.dropped(self, self.running.close)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Join the group; with ``async with`` this is done for you."""
        await self.running.open()
        self._opened = True

    async def close(self) -> None:
        """Store the answers that were given, give back what it owns, and leave the group.

        What is not answered is delivered again, by whoever owns it next.  It is done even if
        whoever waits for it is cancelled.
        """
        await self.running.close()

    @property
    def consumer(self) -> Consumer:
        """What hands the events out."""
        return self.running.consumer

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return Deliveries(self.consumer, self)

    def batches(self) -> AsyncIterator[Batch]:
        """Events as Arrow record batches, answered as a whole::

        async for batch in reader.batches():
            print(batch.data.num_rows)
            await batch.ack()
        """
        return Kept(self, self.consumer.batches())

    async def consume(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Call ``handler(delivery)`` for every event; see :meth:`Consumer.consume`::

        await reader.consume(handler, concurrency=8)
        """
        await self.consumer.consume(handler, concurrency=concurrency)

    async def flush(self) -> None:
        """Wait until every answer so far is stored; raises what went wrong with one::

        delivery.ack_soon()
        await reader.flush()
        """
        await self.consumer.flush()


class Kept(AsyncIterator[T_co]):
    """Iterates over what belongs to somebody, who is not dropped meanwhile."""

    __slots__ = ("_owner", "_source")

    def __init__(self, owner: object, source: AsyncIterator[T_co]) -> None:
        self._owner = owner
        self._source = source

    def __anext__(self) -> Coroutine[Any, Any, T_co]:
        return self._source.__anext__()  # type: ignore[return-value]
