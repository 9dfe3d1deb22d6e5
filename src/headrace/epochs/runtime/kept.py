"""``since`` of epoch streams, for starts, status and housekeeping alike.

It is always that of the tails of this moment, whoever trimmed.  Housekeeping stores how far it was
looked at, and only then trims the progress log behind the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from headrace.catalog import Tx, epochs, streams
from headrace.catalog.streams import Stream
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.kept import KeptRows, after_trim, all_kept, decode_kept, encode_kept
from headrace.epochs.core.ledger import LedgerState
from headrace.epochs.core.times import TimeShape
from headrace.epochs.runtime.progress_log import ProgressLog, epochs_of, load_state
from headrace.errors import TrimmedError
from headrace.log.log import Log

ATTEMPTS = 10
T = TypeVar("T")


class StreamKept(msgspec.Struct, frozen=True):
    """The ledger of a stream and what is left of its rows, at one moment."""

    state: LedgerState
    rows: KeptRows
    stored: epochs.Kept | None
    """What was stored about it before."""


def retried(look: Callable[[], T]) -> T:
    """Look again when lines were trimmed meanwhile."""
    for _ in range(ATTEMPTS - 1):
        try:
            return look()
        except TrimmedError:
            continue
    return look()


def look(log: Log, wanted: Sequence[Stream]) -> list[StreamKept]:
    """All of the streams at the same moment; lines may go while they are read (:func:`retried`)."""

    def read(tx: Tx) -> list[tuple[LedgerState, epochs.Kept | None, dict[int, int]]]:
        return [
            (
                load_state(tx, stream),
                epochs.kept(tx, stream.id),
                {number: tail for number, tail, _, _ in streams.heads(tx, stream.id)},
            )
            for stream in wanted
        ]

    found = []
    for stream, (state, stored, tails) in zip(
        wanted, log.catalog.read(read, snapshot=True), strict=True
    ):
        shape = TimeShape(epochs_of(stream).length)
        known = all_kept(shape) if stored is None else decode_kept(stored.since)
        rows = after_trim(shape, known, tails, state.line, ProgressLog(log, stream).scan)
        found.append(StreamKept(state, rows, stored))
    return found


def since_of(log: Log, stream: Stream) -> Frontier:
    """The first frontier from which all rows of a stream are there."""
    return retried(lambda: look(log, [stream]))[0].rows.since


def trim_lines(log: Log, stream: Stream) -> int:
    """Trim the progress log behind the rows; returns how many lines went.

    Kept are all from the first open line on, and the last one, which tells how the stream ended.
    """
    (found,) = retried(lambda: look(log, [stream]))
    progress = ProgressLog(log, stream)
    rows = found.rows
    if found.stored is None and rows == all_kept(progress.shape):
        return 0
    encoded = encode_kept(rows)
    if found.stored is None or found.stored.since != encoded:

        def put(tx: Tx) -> bool:
            if epochs.kept(tx, stream.id) != found.stored:
                return False
            epochs.put_kept(tx, stream.id, epochs.Kept(encoded, rows.line))
            return True

        if not log.catalog.write(put, locks=(streams.lock(progress.stream_id),)):
            return 0  # somebody else did it meanwhile
    last = min(rows.line, found.state.first_open, found.state.line - 1)
    before, _ = progress.bounds()
    if last <= before:
        return 0
    return log.trim(progress.name, {0: last})[0] - before
