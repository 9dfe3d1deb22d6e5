"""A process whose files may not grow beyond a size: appends until refused, then with room again."""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import closing

from headrace.catalog import open_catalog
from headrace.errors import HeadraceError
from headrace.log import limits
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.store import open_store


def main(url: str, store: str, what: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if what == "files":
        limits.INLINE_BYTES = 1000
    with closing(open_catalog(url)) as catalog:
        log = Log(catalog, open_store(store))
        for _ in range(3):
            log.append("s", events(100, 300))
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, most))
        good = refused = 0
        kinds = set()
        for _ in range(30):
            try:
                log.append("s", events(1000, 500))
                good += 1
            except HeadraceError as error:
                refused += 1
                kinds.add(type(error).__name__)
        readable = count(log)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        log.append("s", events(1000, 500))
        print(good, refused, "+".join(sorted(kinds)), readable, count(log), flush=True)


def events(number: int, size: int) -> list[Event]:
    # Bytes that cannot be pressed together.
    return [Event(subject="s.x", value=os.urandom(size)) for _ in range(number)]


def count(log: Log) -> int:
    return sum(batch.num_rows for batch in log.read("s", Query()))


if __name__ == "__main__":
    main(*sys.argv[1:])
