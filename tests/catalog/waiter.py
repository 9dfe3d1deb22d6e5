"""A process that waits for news: prints ``ready``, then each channel it hears of and when."""

from __future__ import annotations

import sys
import threading
import time

from headrace.catalog import open_catalog


def main(url: str, *channels: str) -> None:
    catalog = open_catalog(url)
    lock = threading.Lock()

    def say(text: str) -> None:
        with lock:
            print(text, flush=True)

    for channel in channels:
        catalog.subscribe(channel, lambda c=channel: say(f"{c} {time.monotonic_ns()}"))  # type: ignore[misc]
    say("ready")
    sys.stdin.readline()
    catalog.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
