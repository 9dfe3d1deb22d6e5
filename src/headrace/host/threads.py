"""Coroutines for callers on other threads, who wait for them."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from headrace.catalog.bell import Bell

T = TypeVar("T")


class _Call(Generic[T]):
    """A coroutine that another thread waits for.

    By a bell: a future's lock that a signal leaves taken would stop the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self.over = Bell()
        self.result: T
        self.error: BaseException | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._finished)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self.over.wait(0):
            self._work.close()

    def _finished(self, task: asyncio.Task[T]) -> None:
        self._task = None  # it goes on this thread, where nothing interrupts that
        if task.cancelled():
            self.error = concurrent.futures.CancelledError()
        elif (error := task.exception()) is not None:
            self.error = error
        else:
            self.result = task.result()
        self.over.ring()


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop of another thread, and wait; cancelled if that is interrupted."""
    call = _Call(loop, work)
    try:
        loop.call_soon_threadsafe(call.start)
        call.over.wait()
    except BaseException:
        loop.call_soon_threadsafe(call.cancel)
        raise
    if call.error is not None:
        try:
            raise call.error
        finally:
            call.error = None  # no cycle of the error, its traceback and this frame
    return call.result
