"""A program that stops, frozen, at the N-th thing that it says to the server.

``python -m tests.catalog.freezing URL N WHAT [HOW]``, where WHAT is ``append`` or ``transaction``.
It prints ``frozen`` before, so that others know when.  With ``waits`` for HOW it is not stopped,
and says nothing more: somebody else cuts it off.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from headrace.catalog import Tx, open_catalog
from headrace.catalog.postgres_connections import PgConnection
from headrace.catalog.postgres_pipeline import Pipeline
from headrace.catalog.streams import lock
from headrace.log.events import Event
from headrace.log.log import Log

left = 10**9


def count() -> None:
    global left
    left -= 1
    if left == 0:
        print("frozen", flush=True)
        if "waits" in sys.argv:
            threading.Event().wait()
        os.kill(os.getpid(), signal.SIGSTOP)


def main(url: str, at: int, what: str) -> None:
    global left
    log = Log(open_catalog(url), None)
    log.append("s", Event(subject="s.a", value=b"before"))
    real_execute, real_flush = PgConnection.execute, Pipeline.flush

    def execute(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        found = real_execute(self, *args, **kwargs)
        count()
        return found

    def flush(self) -> None:  # type: ignore[no-untyped-def]
        real_flush(self)
        count()

    PgConnection.execute = execute  # type: ignore[method-assign]
    Pipeline.flush = flush  # type: ignore[method-assign]
    stream_id = log.stream("s").id
    left = at

    def several(tx: Tx) -> None:
        for _ in range(3):
            tx.execute("UPDATE segments SET bytes = bytes WHERE stream_id = ?", (stream_id,))

    if what == "append":
        log.append("s", Event(subject="s.a", value=b"frozen"))
    else:
        log.catalog.write(several, locks=(lock(stream_id),))
    print("done", flush=True)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
