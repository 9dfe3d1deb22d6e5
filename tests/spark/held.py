"""A stream to which nobody can commit for a while, so that a process can be caught before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.catalog import Tx, streams
from headrace.log.log import Log


@contextmanager
def held(log: Log, stream: str) -> Iterator[None]:
    """Hold the stream's lock (on SQLite the write lock) in a transaction of its own."""
    taken, release = threading.Event(), threading.Event()

    def hold(_: Tx) -> None:
        taken.set()
        release.wait()

    def work() -> None:
        log.catalog.write(hold, locks=[streams.lock(log.stream(stream).id)])

    thread = threading.Thread(target=work)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        release.set()
        thread.join()
