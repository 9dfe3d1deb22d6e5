"""The API for scripts: the same calls, without ``await``.

An event loop runs in a background thread and every call is handed to it::

    import headrace.sync

    with headrace.sync.open("./data") as hr:
        hr.create_stream("orders", subjects=["orders.>"])
        hr.publish("orders.eu.42", b"12 apples", key="42")
        for batch in hr.read("orders"):
            print(batch.to_pylist())
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import pyarrow as pa

from headrace.api import client
from headrace.api.blocking import (
    Blocking,
    BlockingAppender,
    BlockingGroups,
    BlockingMember,
    BlockingSession,
    mirror,
)
from headrace.api.blocking_epochs import (
    BlockingEpochs,
    BlockingLiveEpochs,
    BlockingLivePublisher,
    BlockingPublisher,
)
from headrace.api.blocking_readers import BlockingReaderGroups
from headrace.api.blocking_regions import BlockingRegions
from headrace.api.client import Transaction
from headrace.api.reading import Reading
from headrace.catalog.producers import Placed
from headrace.groups.shared.admin import Groups
from headrace.host.threads import run_on
from headrace.log.events import Event, Events, Headers
from headrace.log.position import Position

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _making(
    method: Callable[Concatenate[client.Headrace, P], R], wrap: Callable[[Headrace, R], T]
) -> Callable[Concatenate[Headrace, P], T]:
    """The blocking form of a method that makes something, such as a read or a session."""

    def call(self: Headrace, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wrap(self, method(self.client, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _iterate(hr: Headrace, reading: Reading) -> Iterator[pa.RecordBatch]:
    """The batches of a reading, waited for one by one."""

    async def following() -> pa.RecordBatch | None:
        return await anext(reading, None)

    try:
        while (batch := hr.run(following())) is not None:
            yield batch
    finally:
        if hr.is_running:
            hr.run(reading.close())


class _LoopThread:
    """An event loop on a thread of its own.

    Whether it runs is kept here: ``Thread.is_alive`` takes a lock of the thread, and an exception
    that a signal raises there marks a thread that runs as ended, for good (Python 3.11).
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="headrace-loop", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it runs, in this process."""
        return not self._ended and self._pid == os.getpid()

    def stop(self) -> None:
        """Stop the loop, and wait for the end of its thread."""
        if self.is_running:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        """Run the loop until it is stopped; what runs on it then is cancelled and waited for."""
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            self._ended = True
            loop.close()


class Headrace(Blocking[client.Headrace]):
    """An open log; made by :func:`headrace.sync.open`."""

    def __init__(self, asynchronous: client.Headrace) -> None:
        self.client = self.real = asynchronous
        self._thread: _LoopThread | None = None

    @property
    def is_running(self) -> bool:
        """Whether the loop's thread runs."""
        return self._thread is not None and self._thread.is_running

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the background loop and wait for it."""
        if not self.is_running:
            work.close()
            raise self.client.host.not_open()
        return run_on(self.loop, work)

    _run = run

    def __enter__(self) -> Self:
        self._thread = _LoopThread()  # does not know this object, so that it can be dropped
        self.loop = self._thread.loop
        try:
            self.run(self.client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.client.host.is_forked:
            return  # the loop shares its sockets with the parent's
        try:
            self.run(self.client.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()

    def __del__(self) -> None:
        host = self.client.host
        if not (self.is_running and host.is_open):
            return
        host.drop(self.loop.stop)
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=1)

    create_stream = mirror(client.Headrace.create_stream)
    configure_stream = mirror(client.Headrace.configure_stream)
    streams = mirror(client.Headrace.streams)
    stream = mirror(client.Headrace.stream)
    delete_stream = mirror(client.Headrace.delete_stream)
    split = mirror(client.Headrace.split)
    merge = mirror(client.Headrace.merge)
    retile = mirror(client.Headrace.retile)
    autoscale = mirror(client.Headrace.autoscale)
    trim = mirror(client.Headrace.trim)
    plan_trim = mirror(client.Headrace.plan_trim)
    seek = mirror(client.Headrace.seek)
    dead_letters = mirror(client.Headrace.dead_letters)
    dead_letter_reasons = mirror(client.Headrace.dead_letter_reasons)
    put_back = mirror(client.Headrace.put_back)
    discard = mirror(client.Headrace.discard)
    find_key = mirror(client.Headrace.find_key)
    chores = mirror(client.Headrace.chores)
    compact = mirror(client.Headrace.compact)
    set_compaction = mirror(client.Headrace.set_compaction)
    sweep = mirror(client.Headrace.sweep)
    fetch = mirror(client.Headrace.fetch)

    # These two only wait for a commit, so they commit on the caller's thread; not while events of
    # an appender are unstored, which they would overtake.

    def publish(
        self,
        subject: str,
        value: bytes,
        *,
        key: str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
        epoch: tuple[int, ...] | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        regions: Sequence[str] | None = None,
    ) -> Position:
        """Publish one event to the stream that captures its subject; durable when this returns."""
        self.client.host.check_thread()
        details: Any = {"key": key, "headers": headers, "timestamp": timestamp, "epoch": epoch}
        once: Any = {"producer": producer, "sequence": sequence}
        if regions is not None:
            some: Any = details | once | {"regions": regions}
            return self.run(self.client.publish(subject, value, **some))
        if self.client.host.writes.busy:
            return self.run(self.client.publish(subject, value, **details, **once))
        placed = self.client.log.publish(Event(subject=subject, value=value, **details), **once)
        return Position(placed.stream, placed.segment, placed.start)

    def append(
        self,
        stream: str,
        data: Events,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        expected_heads: Mapping[int, int] | None = None,
    ) -> tuple[Placed, ...]:
        """Append an event, an iterable of them or an Arrow table; all or nothing."""
        self.client.host.check_thread()
        once: Any = {"producer": producer, "sequence": sequence, "expected_heads": expected_heads}
        if self.client.host.writes.busy:
            return self.run(self.client.append(stream, data, **once))
        return self.client.log.append(stream, data, **once)

    def appender(self, stream: str) -> BlockingAppender:
        """Append in a loop without waiting for every commit::

            with hr.appender("orders") as orders:
                for table in tables:
                    orders.append(table)

        All of it is durable when the block ends, or after ``orders.flush()``.  It is stored in the
        order in which it was given.  If an append cannot be stored, nothing behind it is written,
        and the next call or the end of the block raises what went wrong.  Arrow data is not copied:
        memory of your own under a table has to stay as it is until then.
        """
        return BlockingAppender(self, self.client.appender(stream))

    read = _making(client.Headrace.read, _iterate)
    tail = _making(client.Headrace.tail, _iterate)
    session = _making(client.Headrace.session, BlockingSession)
    join = _making(client.Headrace.join, BlockingMember)
    epochs = _making(client.Headrace.epochs, BlockingEpochs)
    epoch_publisher = _making(client.Headrace.epoch_publisher, BlockingPublisher)
    rollback_publisher = mirror(client.Headrace.rollback_publisher)
    release_publisher = mirror(client.Headrace.release_publisher)
    abort_epochs = mirror(client.Headrace.abort_epochs)
    live_publisher = _making(client.Headrace.live_publisher, BlockingLivePublisher)
    live_epochs = _making(client.Headrace.live_epochs, BlockingLiveEpochs)
    epoch_status = mirror(client.Headrace.epoch_status)
    epoch_decisions = mirror(client.Headrace.epoch_decisions)
    epoch_subscriptions = mirror(client.Headrace.epoch_subscriptions)
    forget_epoch_subscription = mirror(client.Headrace.forget_epoch_subscription)
    sessions = mirror(client.Headrace.sessions)
    remove_session = mirror(client.Headrace.remove_session)

    @property
    def groups(self) -> BlockingGroups:
        """Static and elastic groups: create, change, look at and delete them."""
        return BlockingGroups(self, self.client.groups)

    @property
    def reader_groups(self) -> BlockingReaderGroups:
        """Reader groups: create, get, list and delete them."""
        return BlockingReaderGroups(self, self.client.reader_groups)

    @property
    def regions(self) -> BlockingRegions:
        """Regions: name this one, link streams to others, move groups between them."""
        return BlockingRegions(self, self.client.regions)

    @property
    def shared_groups(self) -> Groups:
        """Declare, list, look at, explain and delete shared groups."""
        return Groups(self.client.log)

    @contextmanager
    def transaction(
        self, *, producer: str | None = None, sequence: int | None = None
    ) -> Iterator[Transaction]:
        """Appends to any streams that commit together when the block ends."""
        transaction = self.client.transaction(producer=producer, sequence=sequence)
        yield transaction
        self.run(transaction.__aexit__(None, None, None))


def _opening(make: Callable[P, client.Headrace]) -> Callable[P, Headrace]:
    def call(*args: P.args, **kwargs: P.kwargs) -> Headrace:
        return Headrace(make(*args, **kwargs))

    functools.update_wrapper(call, make)
    call.__doc__ = "Open a log for use with ``with``; takes what :func:`headrace.open` takes."
    return call


open = _opening(client.open)
