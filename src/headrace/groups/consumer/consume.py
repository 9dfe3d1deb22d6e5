"""``consume``: a handler for every event, several at a time, and the answers for it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from headrace.errors import DeliveryError, Fenced, HeadraceError, InvalidInputError
from headrace.groups.consumer.delivery import Delivery

if TYPE_CHECKING:
    from headrace.groups.consumer.consumer import Consumer

Handler = Callable[[Delivery], Awaitable[object]] | Callable[[Delivery], object]

_log = logging.getLogger(__name__)


async def consume(consumer: Consumer, handler: Handler, concurrency: int) -> None:
    """Run ``concurrency`` workers until the consumer is closed; see :meth:`Consumer.consume`.

    A handler that is no coroutine function runs on a thread.
    """
    if concurrency < 1:
        raise InvalidInputError(f"concurrency is {concurrency}; it must be at least 1")
    call = _as_coroutine(handler)
    spawn = consumer.host.tasks("consume").spawn
    tasks = [spawn(_work(consumer, call), awaited=True) for _ in range(concurrency)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if not consumer.closed:
        await consumer.flush()


def _as_coroutine(handler: Handler) -> Callable[[Delivery], Awaitable[object]]:
    called = getattr(handler, "__call__", None)  # noqa: B004  an object that is called
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called):
        return cast("Callable[[Delivery], Awaitable[object]]", handler)

    async def call(delivery: Delivery) -> None:
        await asyncio.to_thread(handler, delivery)

    return call


async def _work(consumer: Consumer, call: Callable[[Delivery], Awaitable[object]]) -> None:
    while True:
        try:
            delivery = await anext(consumer)
        except StopAsyncIteration:
            return
        except (Fenced, DeliveryError) as error:
            # Work that no longer counts is no reason to stop working on the rest.
            _log.warning("%s", error)
            continue
        try:
            await call(delivery)
        except asyncio.CancelledError:
            await _refuse(delivery, "the consumer was stopped", delay_ms=0)
            raise
        except Exception as error:
            _log.warning(
                "unit %s, offset %d: the handler raised",
                delivery.unit,
                delivery.offset,
                exc_info=error,
            )
            await _refuse(delivery, f"{type(error).__name__}: {error}")
        else:
            if not delivery.answered:
                try:
                    delivery.ack_soon()
                except HeadraceError as error:  # it timed out, or the unit is gone
                    _log.warning("%s", error)


async def _refuse(delivery: Delivery, reason: str, delay_ms: int | None = None) -> None:
    if delivery.answered:
        return
    try:
        await delivery.nack(delay_ms, reason=reason)
    except HeadraceError as error:
        _log.warning("%s", error)
