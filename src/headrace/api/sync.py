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
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import pyarrow as pa

from headrace.api import client
from headrace.api.blocking import BlockingAppender, BlockingGroups, BlockingMember, BlockingSession
from headrace.api.client import Transaction
from headrace.api.reading import Reading
from headrace.catalog.producers import Placed
from headrace.groups.consumer import ConsumerOptions
from headrace.groups.shared.admin import Groups
from headrace.groups.shared.runtime.peer import SharedOptions
from headrace.groups.shared.sessions import EXPIRY_MS
from headrace.log.events import Event, Events, Headers
from headrace.log.position import Position
from headrace.net import TLS

P = ParamSpec("P")
T = TypeVar("T")


def open(
    url: str | Path = "./headrace-data",
    *,
    store: str | Path | None = None,
    store_options: Mapping[str, str] | None = None,
    create: bool = True,
    housekeeping: bool = True,
    shared: SharedOptions | None = None,
    loop_io: bool = True,
    tls: TLS | None = None,
) -> Headrace:
    """Open a log for use with ``with``; takes what :func:`headrace.open` takes."""
    return Headrace(
        client.open(
            url,
            store=store,
            store_options=store_options,
            create=create,
            housekeeping=housekeeping,
            shared=shared,
            loop_io=loop_io,
            tls=tls,
        )
    )


def _mirror(
    method: Callable[Concatenate[client.Headrace, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Headrace, P], T]:
    """The blocking form of an asynchronous method."""

    def call(self: Headrace, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(method(self.client, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _mirror_reading(
    method: Callable[Concatenate[client.Headrace, P], Reading],
) -> Callable[Concatenate[Headrace, P], Iterator[pa.RecordBatch]]:
    """The blocking form of a method that reads."""

    def call(self: Headrace, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[pa.RecordBatch]:
        return self.iterate(method(self.client, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class Headrace:
    """An open log; made by :func:`headrace.sync.open`."""

    def __init__(self, asynchronous: client.Headrace) -> None:
        self.client = asynchronous
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="headrace-loop", daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the background loop and wait for it."""
        if not self._thread.is_alive():
            work.close()
            raise self.client.host.not_open()
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self.client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.client.host.is_forked:
            return  # the loop shares its sockets with the parent's
        try:
            self.run(self.client.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    create_stream = _mirror(client.Headrace.create_stream)
    configure_stream = _mirror(client.Headrace.configure_stream)
    streams = _mirror(client.Headrace.streams)
    stream = _mirror(client.Headrace.stream)
    delete_stream = _mirror(client.Headrace.delete_stream)
    split = _mirror(client.Headrace.split)
    merge = _mirror(client.Headrace.merge)
    retile = _mirror(client.Headrace.retile)
    autoscale = _mirror(client.Headrace.autoscale)
    trim = _mirror(client.Headrace.trim)
    compact = _mirror(client.Headrace.compact)
    set_compaction = _mirror(client.Headrace.set_compaction)
    sweep = _mirror(client.Headrace.sweep)

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
    ) -> Position:
        """Publish one event to the stream that captures its subject; durable when this returns."""
        details: Any = {"key": key, "headers": headers, "timestamp": timestamp, "epoch": epoch}
        once: Any = {"producer": producer, "sequence": sequence}
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

    read = _mirror_reading(client.Headrace.read)
    tail = _mirror_reading(client.Headrace.tail)

    def iterate(self, reading: Reading) -> Iterator[pa.RecordBatch]:
        """The batches of a reading, waited for one by one."""

        async def following() -> pa.RecordBatch | None:
            return await anext(reading, None)

        try:
            while (batch := self.run(following())) is not None:
                yield batch
        finally:
            if self._thread.is_alive():
                self.run(reading.close())

    def session(
        self,
        name: str | None = None,
        *,
        persistent: bool | None = None,
        expiry_ms: int = EXPIRY_MS,
        options: ConsumerOptions | None = None,
    ) -> BlockingSession:
        session = self.client.session(
            name, persistent=persistent, expiry_ms=expiry_ms, options=options
        )
        return BlockingSession(self, session)

    session.__doc__ = client.Headrace.session.__doc__
    sessions = _mirror(client.Headrace.sessions)
    remove_session = _mirror(client.Headrace.remove_session)

    @property
    def groups(self) -> BlockingGroups:
        """Static and elastic groups: create, change, look at and delete them."""
        return BlockingGroups(self, self.client.groups)

    def join(self, stream: str, group: str, member: str, **options: Any) -> BlockingMember:
        return BlockingMember(self, lambda: self.client.join(stream, group, member, **options))

    join.__doc__ = client.Headrace.join.__doc__

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
