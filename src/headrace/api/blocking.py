"""Blocking wrappers of appenders, sessions, members and groups, for :mod:`headrace.sync`.

The real objects live on the event loop of a :class:`headrace.sync.Headrace`, in a background
thread; each call is handed to it and waited for.  An appender does what it can on its caller's.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from headrace.api.appender import Appender
from headrace.groups.consumer import AckTransaction, Batch, Delivery
from headrace.groups.looks import DECISIONS
from headrace.groups.partitioned.admin import GroupInfo
from headrace.groups.partitioned.explain import Explanation
from headrace.groups.partitioned.groups import Groups
from headrace.groups.partitioned.runtime.member import InstanceStatus, Member
from headrace.groups.readers.runtime.segment_reader import SegmentReader
from headrace.groups.shapes import GroupExplanation, GroupView
from headrace.groups.shared.runtime.session import Session
from headrace.log.events import Events

R = TypeVar("R")
Real_co = TypeVar("Real_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Runner(Protocol):
    """Whatever runs an event loop on another thread."""

    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on that loop, and wait for its result."""
        ...


class Blocking(Generic[Real_co]):
    """A blocking form of ``real``, which lives on the loop of ``runner``."""

    def __init__(self, runner: Runner, real: Real_co) -> None:
        self.runner = runner
        self.real = real

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)


def mirror(
    method: Callable[Concatenate[R, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[R], P], T]:
    """The blocking form of an asynchronous method."""

    def call(self: Blocking[R], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self.real, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class BlockingAppender(Blocking[Appender]):
    """Appends to one stream that are on their way; see :class:`headrace.api.appender.Appender`."""

    def append(self, data: Events) -> None:
        """Append events; returns once they are checked and there is room for more."""
        while not self.real.append_from_thread(data):
            self._run(self.real.room())

    flush = mirror(Appender.flush)
    close = mirror(Appender.close)

    def __enter__(self) -> Self:
        return self

    __exit__ = mirror(Appender.__aexit__)


class BlockingDelivery(Blocking[Delivery]):
    """One event, to be answered once; see :class:`headrace.groups.consumer.Delivery`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    ack = mirror(Delivery.ack)
    nack = mirror(Delivery.nack)
    reject = mirror(Delivery.reject)
    extend = mirror(Delivery.extend)

    def ack_soon(self) -> None:
        """The event is done with; stored with the next commit."""
        self._run(call_on_loop(self.real.ack_soon))

    @contextmanager
    def transaction(self) -> Iterator[AckTransaction]:
        """Output that commits together with the ack when the block ends."""
        with _blocking(self.runner, self.real.transaction()) as transaction:
            yield transaction


class BlockingBatch(Blocking[Batch]):
    """Events of a unit as an Arrow record batch, answered as a whole."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    ack = mirror(Batch.ack)
    nack = mirror(Batch.nack)

    @contextmanager
    def transaction(self) -> Iterator[AckTransaction]:
        """Output that commits together with the ack when the block ends."""
        with _blocking(self.runner, self.real.transaction()) as transaction:
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


C = TypeVar("C", Session, Member, SegmentReader)


class BlockingConsumer(Blocking[C]):
    """What sessions, members and readers have in common: to be entered, and their events."""

    def __enter__(self) -> Self:
        self._run(self.real.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self.real.close())

    def __iter__(self) -> Iterator[BlockingDelivery]:
        for delivery in iterate(self.runner, lambda: aiter(self.real)):
            yield BlockingDelivery(self.runner, delivery)

    def batches(self) -> Iterator[BlockingBatch]:
        """Arrow record batches instead of single events."""
        for batch in iterate(self.runner, self.real.batches):
            yield BlockingBatch(self.runner, batch)


class BlockingSession(BlockingConsumer[Session]):
    """A session without ``await``; made by ``hr.session(…)`` of :mod:`headrace.sync`."""

    subscribe = mirror(Session.subscribe)
    unsubscribe = mirror(Session.unsubscribe)
    flush = mirror(Session.flush)

    @property
    def name(self) -> str:
        """The session's name."""
        return self.real.name

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """What this session is subscribed to, as it was written."""
        return self.real.subscriptions


class BlockingMember(BlockingConsumer[Member]):
    """A member without ``await``; made by ``hr.join(…)`` of :mod:`headrace.sync`::

    with hr.join("orders", "billing", "m1") as member:
        for delivery in member:
            ...
            delivery.ack()
    """

    consume = mirror(Member.consume)
    flush = mirror(Member.flush)

    @property
    def status(self) -> InstanceStatus:
        """Whether it is active, stands by or waits, and for what."""
        return self._run(call_on_loop(lambda: self.real.status))


class BlockingGroups(Blocking[Groups]):
    """Static and elastic groups without ``await``; ``hr.groups`` of :mod:`headrace.sync`."""

    create_static = mirror(Groups.create_static)
    create_elastic = mirror(Groups.create_elastic)
    all = mirror(Groups.all)
    list = mirror(Groups.list)
    delete = mirror(Groups.delete)
    add_members = mirror(Groups.add_members)
    drop_members = mirror(Groups.drop_members)
    set_mappings = mirror(Groups.set_mappings)
    delete_mappings = mirror(Groups.delete_mappings)
    active = mirror(Groups.active)
    partitions = mirror(Groups.partitions)
    step_down = mirror(Groups.step_down)
    lag = mirror(Groups.lag)
    lag_of_all = mirror(Groups.lag_of_all)
    members = mirror(Groups.members)
    decisions = mirror(Groups.decisions)

    @overload
    def get(self, stream: str) -> GroupView: ...

    @overload
    def get(self, stream: str, group: str) -> GroupInfo: ...

    def get(self, stream: str, group: str | None = None) -> GroupView | GroupInfo:
        if group is None:
            return self._run(self.real.get(stream))
        return self._run(self.real.get(stream, group))

    get.__doc__ = Groups.get.__doc__

    @overload
    def explain(self, stream: str, *, limit: int = ...) -> GroupExplanation: ...

    @overload
    def explain(self, stream: str, group: str) -> Explanation: ...

    def explain(
        self, stream: str, group: str | None = None, *, limit: int = DECISIONS
    ) -> GroupExplanation | Explanation:
        real = self.real
        if group is None:
            return self._run(real.explain(stream, limit=limit))
        return self._run(real.explain(stream, group))

    explain.__doc__ = Groups.explain.__doc__


async def call_on_loop(call: Callable[[], T]) -> T:
    """Call a plain function on the loop."""
    return call()


def iterate(runner: Runner, make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """Iterate over something that lives on the loop."""
    source = runner.run(call_on_loop(make))
    missing = object()

    async def following() -> T | object:
        return await anext(source, missing)

    while (found := runner.run(following())) is not missing:
        yield found  # type: ignore[misc]
