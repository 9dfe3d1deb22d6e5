"""A Python worker that Spark closes while it waits for work ends without a traceback.

Spark keeps workers for the next query and closes those that were idle for a minute.  Such a worker
finds its socket closed, tries to report that through the same socket, and its daemon prints the
traceback, one for each worker.  No setting changes that for the workers that plan queries.  A
worker calls the daemon's global ``worker`` for every piece of work, so the first one that imports
us replaces it (a monkey patch), and ours is called for those that follow.
"""

from __future__ import annotations

import os
import sys
from typing import Any

DAEMON = "pyspark.daemon"


def end_quietly_when_closed() -> None:
    """Patch a worker of Spark's daemon, once; does nothing in other processes."""
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is None or spec.name != DAEMON or hasattr(main, "headrace_worker"):
        return
    spark_worker = main.worker

    def worker(*args: Any) -> Any:
        try:
            return spark_worker(*args)
        except (BrokenPipeError, ConnectionResetError):
            # The JVM closed the socket itself, so there is nobody to tell.
            os._exit(1)

    main.worker = main.headrace_worker = worker
