"""Blocking wrappers of appenders, sessions, members and groups, for :mod:`headrace.sync`.

The real objects live on the event loop of a :class:`headrace.sync.Headrace`, in a background
thread; each call is handed to it and waited for.  An appender does what it can on its caller's.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

import pyarrow as pa

from headrace.api.appender import Appender
from headrace.errors import InvalidInputError
from headrace.groups.consumer import AckTransaction, Batch, Delivery
from headrace.groups.partitioned.groups import Groups
from headrace.groups.partitioned.runtime.member import Member, MemberStatus
from headrace.groups.shared.runtime.session import Session
from headrace.groups.shared.starts import Start
from headrace.log.events import Events

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


class Runner(Protocol):
    """Whatever runs an event loop on another thread."""

    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on that loop, and wait for its result."""
        ...


class BlockingAppender:
    """Appends to one stream that are on their way; see :class:`headrace.api.appender.Appender`."""

    def __init__(self, runner: Runner, appender: Appender) -> None:
        self._runner = runner
        self.appender = appender

    def append(self, data: Events) -> None:
        """Append events; returns once they are checked and there is room for more."""
        while not self.appender.append_from_thread(data):
            self._runner.run(self.appender.room())

    def flush(self) -> None:
        """Wait until all that was appended so far is durable."""
        self._runner.run(self.appender.flush())

    def close(self) -> None:
        """Flush, and take no more."""
        self._runner.run(self.appender.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.run(self.appender.__aexit__(kind, error, trace))


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
        """It can never be processed: make it a dead letter at once."""
        self._runner.run(self.delivery.reject(reason))

    def extend(self) -> None:
        """Still at work: the ack timeout begins anew."""
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
        for delivery in _iterate(self._runner, lambda: aiter(self.session)):
            yield BlockingDelivery(self._runner, delivery)

    def batches(self) -> Iterator[BlockingBatch]:
        """Arrow record batches instead of single events."""
        for batch in _iterate(self._runner, self.session.batches):
            yield BlockingBatch(self._runner, batch)

    def flush(self) -> None:
        """Wait until everything that was acked is stored."""
        self._runner.run(self.session.flush())


class BlockingMember:
    """A member without ``await``; made by ``hr.join(…)`` of :mod:`headrace.sync`::

    with hr.join("orders", "billing", "m1") as member:
        for delivery in member:
            ...
            delivery.ack()
    """

    def __init__(self, runner: Runner, make: Callable[[], Member]) -> None:
        self._runner = runner
        self._make = make
        self._member: Member | None = None

    @property
    def member(self) -> Member:
        """The member on the other thread's loop."""
        if self._member is None:
            raise InvalidInputError("the member has not joined yet; use `with hr.join(…)`")
        return self._member

    def __enter__(self) -> Self:
        async def join() -> Member:
            return await self._make().__aenter__()

        self._member = self._runner.run(join())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.run(self.member.close())

    @property
    def status(self) -> MemberStatus:
        """Whether it is active, stands by or waits, and for what."""

        async def look() -> MemberStatus:
            return self.member.status

        return self._runner.run(look())

    def __iter__(self) -> Iterator[BlockingDelivery]:
        for delivery in _iterate(self._runner, lambda: aiter(self.member)):
            yield BlockingDelivery(self._runner, delivery)

    def batches(self) -> Iterator[BlockingBatch]:
        """Arrow record batches instead of single events."""
        for batch in _iterate(self._runner, self.member.batches):
            yield BlockingBatch(self._runner, batch)

    def consume(self, handler: Callable[[Delivery], object], *, concurrency: int = 1) -> None:
        """Call ``handler(delivery)`` for every event, on threads, until it is closed."""
        self._runner.run(self.member.consume(handler, concurrency=concurrency))

    def flush(self) -> None:
        """Wait until everything that was acked is stored."""
        self._runner.run(self.member.flush())


def _mirror(
    method: Callable[Concatenate[Groups, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingGroups, P], T]:
    def call(self: BlockingGroups, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.runner.run(method(self.groups, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class BlockingGroups:
    """Static and elastic groups without ``await``; ``hr.groups`` of :mod:`headrace.sync`."""

    def __init__(self, runner: Runner, groups: Groups) -> None:
        self.runner = runner
        self.groups = groups

    create_static = _mirror(Groups.create_static)
    create_elastic = _mirror(Groups.create_elastic)
    get = _mirror(Groups.get)
    list = _mirror(Groups.list)
    delete = _mirror(Groups.delete)
    add_members = _mirror(Groups.add_members)
    drop_members = _mirror(Groups.drop_members)
    set_mappings = _mirror(Groups.set_mappings)
    delete_mappings = _mirror(Groups.delete_mappings)
    active = _mirror(Groups.active)
    partitions = _mirror(Groups.partitions)
    step_down = _mirror(Groups.step_down)
    explain = _mirror(Groups.explain)
    lag = _mirror(Groups.lag)


def _iterate(runner: Runner, make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    async def begin() -> AsyncIterator[T]:
        return make()

    source = runner.run(begin())
    missing = object()

    async def following() -> T | object:
        return await anext(source, missing)

    while (found := runner.run(following())) is not missing:
        yield found  # type: ignore[misc]
