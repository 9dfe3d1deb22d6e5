"""Spark's Python workers: idle ones end without a traceback, and all begin their work sooner.

Spark keeps workers for the next query and closes those that were idle for a minute.  Such a worker
finds its socket closed, tries to report that through the same socket, and its daemon prints the
traceback, one for each worker.  No setting changes that for the workers that plan queries.  A
worker calls the daemon's global ``worker`` for every piece of work, so the first one that imports
us replaces it (a monkey patch), and ours is called for those that follow.

The daemon collects garbage after every piece of work, and looks through all that the modules hold:
30 ms of CPU for each task.  What is there when the second piece begins is taken out of that.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

DAEMON = "pyspark.daemon"


def tend_workers() -> None:
    """Patch a worker of Spark's daemon, once; does nothing in other processes."""
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is None or spec.name != DAEMON or hasattr(main, "headrace_worker"):
        return
    spark_worker = main.worker
    frozen = False

    def worker(*args: Any) -> Any:
        nonlocal frozen
        if not frozen:
            # All garbage was collected a moment ago: what is left is modules, and stays anyway.
            gc.freeze()
            frozen = True
        try:
            return spark_worker(*args)
        except (BrokenPipeError, ConnectionResetError):
            # The JVM closed the socket itself, so there is nobody to tell.
            os._exit(1)

    main.worker = main.headrace_worker = worker
