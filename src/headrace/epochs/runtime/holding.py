"""What named subscriptions hold back of ``retention=groups``, as groups do.

A subscription is recorded as a reader of its streams before its start is chosen, and a reader
without a floor holds back everything.  Housekeeping then moves the floors behind its frontier, by
the progress log: a floor is stored late, never early.
"""

from __future__ import annotations

from functools import partial

from headrace.catalog import Tx, epoch_subscriptions
from headrace.catalog.epoch_subscriptions import SubscriptionRow, reader_name
from headrace.catalog.records import left_out
from headrace.catalog.streams import Limits, Stream
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.form import decode_form, decode_frontier
from headrace.epochs.runtime import kept
from headrace.epochs.runtime.progress_log import ProgressLog
from headrace.errors import UnknownStreamError
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join
from headrace.log.log import Log

LINES_MAX = 10_000
"""The most lines that are searched for first rows; a segment without one keeps its floor."""


def move_floors(log: Log) -> None:
    """Let go of what every named subscription has acked."""
    for row in log.catalog.read(epoch_subscriptions.every):
        if row.frontier is not None:
            with left_out():
                _move(log, row, decode_frontier(row.frontier, row.name))


def _move(log: Log, row: SubscriptionRow, frontier: Frontier) -> None:
    found: dict[int, Progress] = {}
    for name, stream_id in decode_form(row.form, row.name).streams:
        try:
            stream = log.stream(name)
        except UnknownStreamError:
            continue
        if stream.id == stream_id and stream.config.retention != Limits():
            floors = kept.retried(partial(needed, log, stream, frontier))
            for segment in stream.segments:
                if floor := floors.get(segment.number):
                    found[segment.id] = Progress(floor)

    def put(tx: Tx) -> None:
        current = epoch_subscriptions.get(tx, row.name)
        if current is not None and current.created_us == row.created_us:
            join(tx, reader_name(row.name), found)

    if found:
        log.catalog.write(put, locks=(epoch_subscriptions.lock(row.name),))


def needed(log: Log, stream: Stream, frontier: Frontier) -> dict[int, int]:
    """{segment: the first offset that a start at the frontier reads, or an earlier one}.

    ``stream`` was read before, so that its heads are not after what the lines tell.
    """
    lines = ProgressLog(log, stream)
    start, _ = lines.start_of(frontier)
    _, head = lines.bounds()
    unseen = {segment.number: segment.head for segment in stream.segments}
    floors: dict[int, int] = {}
    end = min(head, start + LINES_MAX)
    for _, line in lines.scan(start, end):
        for span in line.spans:
            if unseen.pop(span.segment, None) is not None:
                floors[span.segment] = span.start
        if not unseen:
            break
    return floors | unseen if end == head else floors
