"""Consuming without ``await``: sessions and their deliveries for scripts.

Everything runs on the loop of a :class:`headrace.sync.Headrace`; each call here is handed to it
and waited for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import pyarrow as pa

from headrace.groups.consumer import AckTransaction, Batch, Delivery
from headrace.groups.shared.session import Session
from headrace.groups.shared.starts import Start

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")


class Runner(Protocol):
    """Somebody with a loop on another thread."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for it."""
        ...


class BlockingDelivery:
    """One event, to be answered once; see :class:`headrace.groups.consumer.Delivery`."""

    __slots__ = ("_runner", "delivery")

    def __init__(self, runner: Runner, delivery: Delivery) -> None:
        self._runner = runner
        self.delivery = delivery

    def __getattr__(self, name: str) -> Any:
        return getattr(self.delivery, name)

    def ack(self) -> None:
        """The event is done with; returns once that is stored."""
        self._runner.run(self.delivery.ack())

    def ack_soon(self) -> None:
        """The event is done with; stored with the next commit."""

        async def soon() -> None:
            self.delivery.ack_soon()

        self._runner.run(soon())

    def nack(self, delay_ms: int | None = None, reason: str = "") -> None:
        """Deliver it again, before the next of its key."""
        self._runner.run(self.delivery.nack(delay_ms, reason))

    def reject(self, reason: str = "") -> None:
        """It can never be done: a dead letter at once."""
        self._runner.run(self.delivery.reject(reason))

    def extend(self) -> None:
        """Still at it: the waiting time for the answer begins anew."""
        self._runner.run(self.delivery.extend())

    @contextmanager
    def transaction(self) -> Iterator[AckTransaction]:
        """Output that commits together with the ack when the block ends."""
        with _blocking(self._runner, self.delivery.transaction()) as transaction:
            yield transaction


class BlockingBatch:
    """Events of a unit as an Arrow record batch, answered as a whole."""

    __slots__ = ("_runner", "batch")

    def __init__(self, runner: Runner, batch: Batch) -> None:
        self._runner = runner
        self.batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch, name)

    @property
    def data(self) -> pa.RecordBatch:
        """The events."""
        return self.batch.data

    def ack(self) -> None:
        """All of them are done with; returns once that is stored."""
        self._runner.run(self.batch.ack())

    def nack(self) -> None:
        """Deliver them again."""
        self._runner.run(self.batch.nack())

    @contextmanager
    def transaction(self) -> Iterator[AckTransaction]:
        """Output that commits together with the ack when the block ends."""
        with _blocking(self._runner, self.batch.transaction()) as transaction:
            yield transaction


@contextmanager
def _blocking(runner: Runner, transaction: AckTransaction) -> Iterator[AckTransaction]:
    runner.run(transaction.__aenter__())
    try:
        yield transaction
    except BaseException as error:
        runner.run(transaction.__aexit__(type(error), error, error.__traceback__))
        raise
    runner.run(transaction.__aexit__(None, None, None))


class BlockingSession:
    """A session without ``await``; made by ``hr.session(…)`` of :mod:`headrace.sync`."""

    def __init__(self, runner: Runner, session: Session) -> None:
        self._runner = runner
        self.session = session

    def __enter__(self) -> Self:
        self._runner.run(self.session.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.run(self.session.close())

    @property
    def name(self) -> str:
        """The session's name."""
        return self.session.name

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """What this session is subscribed to, as it was written."""
        return self.session.subscriptions

    def subscribe(self, text: str, *, start: Start = "now") -> None:
        """Subscribe to ``$share/GROUP/FILTER``, or to a filter of one's own."""
        self._runner.run(self.session.subscribe(text, start=start))

    def unsubscribe(self, text: str) -> None:
        """Cancel a subscription; what is in flight is finished first."""
        self._runner.run(self.session.unsubscribe(text))

    def __iter__(self) -> Iterator[BlockingDelivery]:
        for delivery in self._iterate(lambda: aiter(self.session)):
            yield BlockingDelivery(self._runner, delivery)

    def batches(self) -> Iterator[BlockingBatch]:
        """Arrow record batches instead of single events."""
        for batch in self._iterate(self.session.batches):
            yield BlockingBatch(self._runner, batch)

    def _iterate(self, make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        async def begin() -> AsyncIterator[T]:
            return make()

        source = self._runner.run(begin())
        missing = object()

        async def following() -> T | object:
            return await anext(source, missing)

        while (found := self._runner.run(following())) is not missing:
            yield found  # type: ignore[misc]

    def flush(self) -> None:
        """Wait until everything that was acked is stored."""
        self._runner.run(self.session.flush())
