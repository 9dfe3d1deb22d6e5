"""Spark's daemon of Python workers, with one traceback less.

Spark closes workers that had nothing to do for a minute.  Such a worker finds its socket closed and
wants to say so through that very socket, and the daemon prints the failure, one for each worker.
Here a worker whose socket is closed just ends: whoever closed it knows.

Run by Spark as ``python -m``; it must import nothing that starts threads, since workers are forks.
"""

from __future__ import annotations

import os
from socket import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
