"""A process that compacts a stream and dies by SIGKILL at a chosen point of it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from headrace.catalog import Catalog, batches, open_catalog
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.log import Log
from headrace.store import Store, open_store


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str) -> None:
    setattr(owner, name, die)


def after(owner: Any, name: str) -> None:
    real: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        die()

    setattr(owner, name, call)


POINTS: dict[str, Callable[[], None]] = {
    "file-not-written": lambda: before(Store, "put"),
    "file-written": lambda: after(Store, "put"),
    "in-the-transaction": lambda: after(batches, "replace"),
    "committed": lambda: after(Catalog, "write"),
    "never": lambda: None,
}


def main(url: str, store: str, point: str) -> None:
    log = Log(open_catalog(url), open_store(store))
    compactor = log.compactor("s", CompactionPolicy(min_batches=2, min_age_s=0))
    POINTS[point]()
    done = compactor.compact()
    print(done.files, flush=True)
    log.catalog.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
