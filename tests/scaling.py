"""A stream that is scaled in the way that is hardest on the order of keys."""

from __future__ import annotations

from headrace.log.events import Event
from headrace.log.log import Log

BACKLOG = 2000
NEWS = 5


def split_while_empty(log: Log, stream: str, subject: str) -> list[int]:
    """Events of one key before a split and after another one; returns their values, in order.

    What followed from the first split held nothing when it was split itself.  So there is nothing
    to read in it, and yet what follows from it has to wait for the backlog before it.
    """

    def publish(first: int, count: int) -> None:
        numbers = range(first, first + count)
        log.append(stream, [Event(subject=subject, value=b"%d" % n, key="k") for n in numbers])

    publish(0, BACKLOG)
    for _ in range(2):
        for segment in log.stream(stream).open_segments:
            log.split(stream, segment.number)
    publish(BACKLOG, NEWS)
    return list(range(BACKLOG + NEWS))
