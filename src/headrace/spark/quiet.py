"""A Python worker that Spark closes while it waits for work ends without a traceback.

Spark keeps workers for the next query and closes those that had nothing to do for a minute.  Such a
worker finds its socket closed and wants to say so through that very socket, and the daemon that it
is a fork of prints the failure, one for each worker.  No setting changes that for the workers that
plan queries.  The daemon calls ``worker`` for every piece of work, so in a process that has come to
us with the first one, ours is called for those that follow.
"""

from __future__ import annotations

import os
import sys
from typing import Any

DAEMON = "pyspark.daemon"


def end_quietly_when_closed() -> None:
    """In a worker of Spark's daemon, and once; elsewhere nothing happens."""
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is None or spec.name != DAEMON or hasattr(main, "headrace_worker"):
        return
    spark_worker = main.worker

    def worker(*args: Any) -> Any:
        try:
            return spark_worker(*args)
        except (BrokenPipeError, ConnectionResetError):
            # Whoever closed the socket knows.
            os._exit(1)

    main.worker = main.headrace_worker = worker
