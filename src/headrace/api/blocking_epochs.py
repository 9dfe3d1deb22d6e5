"""Blocking wrappers of subscriptions to epochs, for :mod:`headrace.sync`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import pyarrow as pa

from headrace.api.blocking import Blocking, Runner, mirror
from headrace.epochs.core.times import Time
from headrace.epochs.live import LivePublisher, LiveSubscription
from headrace.epochs.live.items import LiveEpoch
from headrace.epochs.runtime.acks import EpochTransaction
from headrace.epochs.runtime.appender import EpochAppender
from headrace.epochs.runtime.capability import Capability
from headrace.epochs.runtime.given import EpochPart, EpochStep
from headrace.epochs.runtime.publisher import EpochPublisher
from headrace.epochs.runtime.subscription import STEP_BYTES, STEP_EPOCHS, EpochSubscription
from headrace.log.events import Events

T = TypeVar("T")


def _each(runner: Runner, found: AsyncIterator[T]) -> Iterator[T]:
    """What an asynchronous iterator gives, waited for one by one."""

    async def following() -> tuple[T] | None:
        async for one in found:
            return (one,)
        return None

    while (given := runner.run(following())) is not None:
        yield given[0]


class BlockingRows(Blocking[Any]):
    """An epoch, or a part of one, whose rows are waited for."""

    def __repr__(self) -> str:
        return repr(self.real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches."""
        return _each(self.runner, aiter(self.real))

    def table(self) -> pa.Table:
        """All rows at once."""
        return self._run(self.real.table())


class BlockingStep(BlockingRows):
    """One whole epoch or several; see :class:`headrace.epochs.runtime.given.EpochStep`."""

    ack = mirror(EpochStep.ack)

    @contextmanager
    def transaction(self) -> Iterator[EpochTransaction]:
        """Of a named subscription: output that commits together with this ack, or not at all."""

        async def make() -> EpochTransaction:
            made: EpochTransaction = self.real.transaction()
            return await made.__aenter__()

        transaction = self._run(make())
        yield transaction
        self._run(transaction.__aexit__(None, None, None))


class BlockingEpochs(Blocking[EpochSubscription]):
    """A subscription; see :class:`headrace.epochs.runtime.subscription.EpochSubscription`."""

    def __enter__(self) -> Self:
        self._run(self.real.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self.real.close())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    close = mirror(EpochSubscription.close)
    wait_for = mirror(EpochSubscription.wait_for)

    def __iter__(self) -> Iterator[Any]:
        for item in _each(self.runner, aiter(self.real)):
            yield self._wrapped(item)

    def steps(
        self, max_epochs: int = STEP_EPOCHS, max_bytes: int = STEP_BYTES
    ) -> Iterator[BlockingStep]:
        """Whole epochs, many small ones as one."""
        for step in _each(self.runner, self.real.steps(max_epochs, max_bytes)):
            yield BlockingStep(self.runner, step)

    def _wrapped(self, item: object) -> object:
        match item:
            case EpochStep():
                return BlockingStep(self.runner, item)
            case EpochPart():
                return BlockingRows(self.runner, item)
            case _:
                return item


class _OfEpochs(Blocking[Any]):
    """What is opened by a block, and ends with it."""

    def __enter__(self) -> Self:
        self._run(self.real.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._run(self.real.__aexit__(*error))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class BlockingEpochAppender(_OfEpochs):
    """Rows that are on their way; see :class:`headrace.epochs.runtime.appender.EpochAppender`."""

    def append(self, time: Time | None, data: Events, *, advance_to: object = None) -> None:
        """Append rows; returns once they are checked and there is room for more."""
        while not self.real.append_from_thread(time, data, advance_to=advance_to):
            self._run(self.real.room())

    publish = mirror(EpochAppender.publish)
    advance_to = mirror(EpochAppender.advance_to)
    flush = mirror(EpochAppender.flush)
    close = mirror(EpochAppender.close)


class BlockingCapability(_OfEpochs):
    """A time that is held; see :class:`headrace.epochs.runtime.capability.Capability`."""

    downgrade = mirror(Capability.downgrade)
    drop = mirror(Capability.drop)


class BlockingPublisher(_OfEpochs):
    """A publisher of epochs; see :class:`headrace.epochs.runtime.publisher.EpochPublisher`."""

    def appender(self) -> BlockingEpochAppender:
        """Publish in a plain loop at full speed."""

        async def make() -> EpochAppender:
            made: EpochAppender = self.real.appender()
            return made

        return BlockingEpochAppender(self.runner, self._run(make()))

    def hold(self, time: Time) -> BlockingCapability:
        """Hold a time apart from the frontier."""
        return BlockingCapability(self.runner, self._run(self.real.hold(time)))

    append = mirror(EpochPublisher.append)
    publish = mirror(EpochPublisher.publish)
    advance_to = mirror(EpochPublisher.advance_to)
    rollback = mirror(EpochPublisher.rollback)
    leave = mirror(EpochPublisher.leave)
    close = mirror(EpochPublisher.close)
    abort = mirror(EpochPublisher.abort)


class BlockingLivePublisher(_OfEpochs):
    """A live publisher; see :class:`headrace.epochs.live.LivePublisher`."""

    append = mirror(LivePublisher.append)
    publish = mirror(LivePublisher.publish)
    advance_to = mirror(LivePublisher.advance_to)
    leave = mirror(LivePublisher.leave)
    close = mirror(LivePublisher.close)
    abort = mirror(LivePublisher.abort)


class BlockingLiveEpochs(_OfEpochs):
    """A live subscription; see :class:`headrace.epochs.live.LiveSubscription`."""

    close = mirror(LiveSubscription.close)
    wait_for = mirror(LiveSubscription.wait_for)

    def __iter__(self) -> Iterator[Any]:
        for item in _each(self.runner, aiter(self.real)):
            yield BlockingRows(self.runner, item) if isinstance(item, LiveEpoch) else item
