"""``consume``: a handler for every event, several at a time, and the answers for it.

A handler may be anything that can be called.  A coroutine function runs on the event loop;
everything else runs on a thread, as many at a time as ``concurrency`` says.  What a call returns is
awaited if it can be: ``lambda delivery: bill(db, delivery)`` or a decorated function gives a
coroutine without being a coroutine function, and an event is acked only when that has run.

Whatever a handler raises is an answer: the event is nacked, and the consumer goes on.  It ends only
when it is itself cancelled, or when the program is told to end (Ctrl-C, ``sys.exit`` on the event
loop).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from headrace.errors import DeliveryError, Fenced, HeadraceError, InvalidInputError
from headrace.groups.consumer.delivery import Delivery

if TYPE_CHECKING:
    from headrace.groups.consumer.consumer import Consumer

Handler = Callable[[Delivery], Awaitable[object]] | Callable[[Delivery], object]
Call = Callable[[Delivery], Awaitable[BaseException | None]]
"""Runs the handler; returns what it raised, since a thread cannot raise everything in a future."""

CONCURRENCY_MAX = 10_000

_log = logging.getLogger(__name__)


async def consume(consumer: Consumer, handler: Handler, concurrency: int) -> None:
    """Run ``concurrency`` workers until the consumer is closed; see :meth:`Consumer.consume`."""
    if not callable(handler):
        raise InvalidInputError(f"handler is {handler!r}; give a function of a delivery")
    if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise InvalidInputError(
            f"concurrency is {concurrency!r}; it must be a whole number, 1 to {CONCURRENCY_MAX}"
        )
    host = consumer.host
    on_loop = _is_coroutine_function(handler)
    threads = None if on_loop else host.clock.executor(concurrency, "headrace-handler")
    call = _on_loop(handler) if threads is None else _on_thread(handler, threads)
    spawn = host.tasks("consume").spawn
    tasks = [spawn(_work(consumer, call), awaited=True) for _ in range(concurrency)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
    if not consumer.closed:
        await consumer.flush()


def _is_coroutine_function(handler: Handler) -> bool:
    called = getattr(handler, "__call__", None)  # noqa: B004  an object that is called
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)


async def _outcome(returned: object) -> BaseException | None:
    """Await what a handler returned, if it can be; returns what that raised."""
    if not inspect.isawaitable(returned):
        return None
    try:
        await returned
    except (KeyboardInterrupt, SystemExit):
        raise
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        return error  # something that the handler awaited was cancelled, not this worker
    except BaseException as error:
        return error
    return None


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _on_loop(handler: Handler) -> Call:
    async def call(delivery: Delivery) -> BaseException | None:
        return await _outcome(handler(delivery))

    return call


def _on_thread(handler: Handler, threads: Executor) -> Call:
    def run(delivery: Delivery) -> tuple[Any, BaseException | None]:
        try:
            return handler(delivery), None
        except BaseException as error:
            return None, error

    async def call(delivery: Delivery) -> BaseException | None:
        loop = asyncio.get_running_loop()
        returned, error = await loop.run_in_executor(threads, run, delivery)
        return error if error is not None else await _outcome(returned)

    return call


async def _work(consumer: Consumer, call: Call) -> None:
    deliveries = aiter(consumer)
    while True:
        try:
            delivery = await anext(deliveries)
        except StopAsyncIteration:
            return
        except (Fenced, DeliveryError) as error:
            # A failed answer (timed out, fenced) concerns one event: go on with the rest.
            _log.warning("%s", error)
            continue
        try:
            failure = await call(delivery)
        except BaseException:  # this worker is to stop
            await _refuse(delivery, "the consumer was stopped", delay_ms=0)
            raise
        if failure is not None:
            _log.warning(
                "unit %s, offset %d: the handler raised",
                delivery.unit,
                delivery.offset,
                exc_info=failure,
            )
            await _refuse(delivery, f"{type(failure).__name__}: {failure}")
        elif not delivery.answered:
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
