"""A process that appends events until it is told to stop, and says what it appended."""

from __future__ import annotations

import sys
import threading

from headrace.catalog import open_catalog
from headrace.log.events import Event
from headrace.log.log import Log


def main(url: str, name: str) -> None:
    catalog = open_catalog(url)
    log = Log(catalog, None)
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    print("ready", flush=True)
    count = 0
    while not stop.is_set():
        made = [
            Event(subject="s.x", value=f"{name}-{key}:{count}".encode(), key=f"{name}-{key}")
            for key in range(5)
        ]
        log.append("s", made)
        count += 1
    print(count, flush=True)
    catalog.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
