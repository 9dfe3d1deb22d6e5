"""The driver's side of a read of whole epochs: which epochs the next batch takes.

Everything comes from the progress logs and no row is read.  A batch takes complete epochs in their
order until a limit is reached, and one at least: an epoch is never cut, and one that is larger than
every limit does not stop the query.  Its end is a frontier, and the rows between two frontiers stay
the same for ever; so a batch that is repeated, by whichever process, reads the very same rows.

Spark polls a waiting query every few milliseconds: until a line is notified, the answer comes from
a cache.  The walk along the lines is kept from one batch to the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from headrace.catalog import Tx
from headrace.catalog.streams import Stream
from headrace.epochs.core.antichains import Antichain, Frontier, leave_out, not_before
from headrace.epochs.core.effects import End, Epoch
from headrace.epochs.core.feed import Reference
from headrace.epochs.runtime import starting
from headrace.epochs.runtime.progress_log import ProgressLog, load_state
from headrace.epochs.runtime.starting import EpochBegin
from headrace.errors import (
    DataLossError,
    EpochsAbortedError,
    ForeignCheckpointError,
    HistoryGoneError,
    InvalidOptionError,
)
from headrace.log.log import Log
from headrace.spark.epochs.offsets import EpochBehind, EpochOffset, EpochsAt, check_place
from headrace.spark.epochs.subscription import QueryHold
from headrace.spark.epochs.texts import frontier_text, parse_frontier
from headrace.spark.epochs.walk import EpochWalk, references_of
from headrace.spark.options import SourceOptions

LOOK_S = 1.0
"""How long the cached answer is trusted without a notification."""
LAG_PORTIONS = 4
"""The most portions of lines that are looked at to say how far behind a query is."""


class EpochPlanner:
    """Places and rows of one query; used by one thread."""

    def __init__(
        self, log: Log, options: SourceOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._options = options
        self._clock = clock
        self._streams, self.shape = starting.opened(log, options.subscribe)
        self._hold: QueryHold | None = None
        if options.subscription is not None:
            self._hold = QueryHold(log, options.subscription, self._streams, self.shape)
        self._target: Frontier | None = None
        self._walk: tuple[Frontier, EpochWalk] | None = None
        self._planned: tuple[Frontier, Frontier, tuple[Epoch, ...]] | None = None
        self._news = threading.Event()
        self._heard: list[Callable[[], None]] = []
        self._answer: tuple[EpochOffset, bool, float] | None = None

    @property
    def ids(self) -> dict[str, int]:
        """The streams' ids, by name."""
        return {stream.name: stream.id for stream in self._streams}

    # -- places -------------------------------------------------------------------------

    def start(self, default: str) -> EpochOffset:
        """Where the query begins."""
        text = self._options.frontier_start
        kept = None if self._hold is None else self._hold.take(text or default)
        if kept is not None and text is None:
            return self._offset(kept, initial=True)
        first = self._resolved(text or default)
        if self._hold is not None:
            self._hold.chosen(first)
        return self._offset(first, initial=True)

    def _resolved(self, text: str) -> Frontier:
        word = text.strip().lower()
        wanted = (
            word if word in starting.WORDS else parse_frontier(self.shape, text, "startingFrontier")
        )
        begin = starting.resolve(
            self._log,
            self._options.subscribe,
            wanted,
            at_least=not self._options.fail_on_data_loss,
        )
        if begin.start is not None:
            return begin.start
        lower = Antichain.minimal(self.shape, (t for one in begin.streams for t in one.lower))
        upper = [time for one in begin.streams for time in one.upper]
        return leave_out(self.shape, lower.frontier, upper)

    def merged(self) -> Frontier:
        """Before which everything is complete now, in all streams."""

        def read(tx: Tx) -> list[Frontier]:
            return [load_state(tx, stream).lower for stream in self._streams]

        found = self._log.catalog.read(read, snapshot=True)
        times = (time for lower in found for time in lower)
        return Antichain.minimal(self.shape, times).frontier

    def end(self) -> EpochOffset:
        """Where a batch read ends: everything before it is complete."""
        now = self.merged()
        text = self._options.frontier_end
        if text is None:
            return self._offset(now)
        wanted = parse_frontier(self.shape, text, "endingFrontier")
        if not not_before(self.shape, now, wanted):
            raise InvalidOptionError(
                f"endingFrontier={text}: epochs before it are not complete yet, the frontier is "
                f"{frontier_text(now)}; wait for it, or read up to there"
            )
        return self._offset(wanted)

    def _offset(
        self, frontier: Frontier, *, initial: bool = False, first: str | None = None
    ) -> EpochOffset:
        at = EpochsAt(frontier_text(frontier), self.shape.length, self.ids)
        return EpochOffset(catalog=self._log.prefix, epochs=at, initial=initial, first=first)

    def _frontier(self, place: EpochOffset) -> Frontier:
        check_place(place, self._log.prefix, self.ids, self.shape.length)
        return parse_frontier(self.shape, place.epochs.frontier, "the checkpoint's frontier")

    # -- the next batch -----------------------------------------------------------------

    def freeze(self) -> None:
        """Fix the end to what is complete now, for ``Trigger.AvailableNow``."""
        self._target = self.merged()
        self._answer = self._walk = None

    def next(self, start: EpochOffset, *, limited: bool) -> EpochOffset:
        """The end of the next batch; ``start`` itself when nothing more is complete."""
        if self._answer is not None:
            asked, all_of_it, until = self._answer
            same = asked == start and all_of_it == limited and self._clock() < until
            if same and not self._news.is_set():
                return start
        self._listen()
        at = self._frontier(start)
        if self._hold is not None:
            self._hold.move(at)
        end = self._plan(at, limited)
        if end == at:
            self._answer = (start, limited, self._clock() + LOOK_S)
            return start
        self._answer = None
        return self._offset(end, first=start.epochs.frontier if start.initial else None)

    def _plan(self, at: Frontier, limited: bool) -> Frontier:
        if not at:
            return at  # the streams are closed, and everything was read
        # Only a walk that came to its end is gone on with: one that failed may have lost its place.
        known, self._walk = self._walk, None
        walk = None if known is None or known[0] != at else known[1]
        if walk is None:
            walk = EpochWalk(self._begin(at), self._target)
        taken, end = self._taken(walk, limited)
        if end == at and walk.ended is not None and walk.ended.end is End.ABORTED:
            raise EpochsAbortedError(
                ", ".join(self._options.subscribe), walk.ended.reason, list(at)
            )
        self._walk = (end, walk)
        self._planned = (at, end, taken)
        return end

    def _taken(self, walk: EpochWalk, limited: bool) -> tuple[tuple[Epoch, ...], Frontier]:
        """Epochs for a batch, and its end; those that are left out stay in the walk."""
        taken: list[Epoch] = []
        heads = walk.heads()
        room = Room(self._options, self._streams) if limited else None
        while True:
            while walk.waiting:
                if room is not None and not room.takes(walk.waiting[0], first=not taken):
                    return tuple(taken), taken[-1].resume
                taken.append(walk.waiting.popleft())
            if not walk.more(heads):
                return tuple(taken), walk.frontier

    def _begin(self, frontier: Frontier) -> EpochBegin:
        try:
            return starting.resolve(
                self._log,
                self._options.subscribe,
                frontier,
                at_least=not self._options.fail_on_data_loss,
            )
        except HistoryGoneError as error:
            raise DataLossError(
                f"the query is at frontier {frontier_text(frontier)}, and earlier rows of "
                f"{', '.join(self._options.subscribe)} were trimmed: whole are epochs from "
                f"{error.since} on; set failOnDataLoss to false to go on from there"
            ) from error

    def latest(self, start: EpochOffset) -> EpochOffset:
        """What is complete now, and how far behind it a query is; a bounded look."""
        now = self.merged() if self._target is None else self._target
        behind = None
        at = self._frontier(start)
        if self._walk is not None and self._walk[0] == at:
            (_, walk), self._walk = self._walk, None
            heads, looks = walk.heads(), 0
            while looks < LAG_PORTIONS and walk.more(heads):
                looks += 1
            rows = sum(one.rows for epoch in walk.waiting for one in references_of(epoch))
            behind = EpochBehind(len(walk.waiting), rows, looks == LAG_PORTIONS)
            self._walk = (at, walk)
        found = self._offset(now)
        return EpochOffset(catalog=found.catalog, epochs=found.epochs, behind=behind)

    def _listen(self) -> None:
        if not self._heard:
            # Subscribe first, then look, so that no line is missed.
            self._heard = [
                self._log.catalog.subscribe(ProgressLog(self._log, stream).channel, self._news.set)
                for stream in self._streams
            ]
        self._news.clear()

    # -- rows ---------------------------------------------------------------------------

    def references(self, start: EpochOffset, end: EpochOffset) -> list[Reference]:
        """Where the rows of a batch are, without those that were taken back."""
        begin, until = self._frontier(start), self._frontier(end)
        if start.initial and end.first is not None:
            begin = parse_frontier(self.shape, end.first, "the checkpoint's frontier")
        if self._planned is not None and self._planned[:2] == (begin, until):
            epochs: Iterable[Epoch] = self._planned[2]
        else:
            epochs = self._between(begin, until)
        return [one for epoch in epochs for one in references_of(epoch)]

    def _between(self, begin: Frontier, until: Frontier) -> Sequence[Epoch]:
        if begin == until or not begin:
            return ()
        walk = EpochWalk(self._begin(begin), until)
        heads = walk.heads()
        while walk.frontier != until and walk.more(heads):
            pass
        if not not_before(self.shape, walk.frontier, until):
            raise ForeignCheckpointError(
                f"the query has read up to frontier {frontier_text(until)}, and the stream's is "
                f"{frontier_text(walk.frontier)}: the catalog is older than the checkpoint; start "
                "with a new checkpointLocation"
            )
        return walk.waiting

    def close(self) -> None:
        for stop in self._heard:
            stop()
        self._heard = []


class Room:
    """What a batch may still take; bytes are estimated by the average event of each segment."""

    def __init__(self, options: SourceOptions, streams: Sequence[Stream]) -> None:
        self._epochs = options.epochs_max
        self._rows = options.rows_max
        self._bytes: float | None = options.bytes_max
        self._each: dict[tuple[str, int], float] = {}
        if self._bytes is not None:
            self._each = {
                (stream.name, one.number): one.retained_bytes / max(1, one.events)
                for stream in streams
                for one in stream.segments
            }

    def takes(self, epoch: Epoch, *, first: bool) -> bool:
        """Whether an epoch fits; the first one of a batch always does."""
        references = references_of(epoch)
        rows = sum(one.rows for one in references)
        size = sum(one.rows * self._each.get((one.stream, one.segment), 0) for one in references)
        over = (
            (self._epochs is not None and self._epochs < 1)
            or (self._rows is not None and self._rows < rows)
            or (self._bytes is not None and self._bytes < size)
        )
        if over and not first:
            return False
        if self._epochs is not None:
            self._epochs -= 1
        if self._rows is not None:
            self._rows -= rows
        if self._bytes is not None:
            self._bytes -= size
        return True
