"""The log of one partition in the epochs scenario: ledger, lines, search and ``since`` as stored
streams have them.

What a publisher tells its subscribers is committed here as well, a line for each message, and the
only segment holds a row for each batch.  Rows are trimmed by offset; lines behind them, as far as
no open epoch needs them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.epochs import Data, Frontier, FrontierUpdate, Message, TakeBack, TimeShape
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import check_frontier, not_before
from headrace.epochs.core.commits import EpochCommit, GiveUp, JoinStream, Publish, Step
from headrace.epochs.core.feed import LineFeed, first_line
from headrace.epochs.core.kept import after_trim, all_kept
from headrace.epochs.core.lines import Line, Span
from headrace.errors import HistoryGoneError

WHO = "source"
GONE = "gone"
"""The payload of a row that was trimmed before it was read."""


class LogStart(msgspec.Struct, frozen=True):
    """The line to begin with, and the lower frontier before it."""

    line: int
    lower: Frontier


class PartitionLog:
    """The lines and rows of one partition."""

    def __init__(self, partition: str, shape: TimeShape, at: Frontier | None) -> None:
        self.partition = partition
        self.shape = shape
        self.state, _ = ledger.begin(partition, shape)
        self._publisher: ledger.PublisherState | None = None
        self.lines: list[Line] = []
        self.rows: list[object] = []
        self.kept = all_kept(shape)
        self.first_row = 0
        self.first_line = 0
        """What lies below is trimmed."""
        self._commit(JoinStream(WHO, 1, at))

    @property
    def end(self) -> LogStart:
        """Where whatever is to come begins."""
        return LogStart(len(self.lines), self.state.lower)

    @property
    def is_new(self) -> bool:
        """Whether nothing was published yet."""
        return len(self.lines) == 1

    def append(self, record: Data | FrontierUpdate | TakeBack) -> None:
        """Commit what a publisher has told."""
        match record:
            case Data(time=time, payload=item):
                at = len(self.rows)
                step, span = Step((time,), 1), Span(0, at, at + 1)
                self.rows.append(item)
                self._commit(Publish(WHO, 1, (step,), (time,), (span,)))
            case FrontierUpdate(changes=changes):
                gone = [time for time, delta in changes if delta < 0]
                lower = [time for time in self.state.lower if time not in gone]
                lower += [time for time, delta in changes if delta > 0]
                step = Step(advance_to=check_frontier(self.shape, lower))
                self._commit(Publish(WHO, 1, (step,)) if lower else GiveUp(WHO, 1))
            case TakeBack():
                self._commit(Publish(WHO, 1, (), take_back=True))

    def _commit(self, commit: EpochCommit) -> None:
        decided = ledger.decide(self.state, self._publisher, commit)
        assert decided.line is not None
        self.state, self._publisher = decided.state, decided.publisher
        self.lines.append(decided.line)

    def trim(self, row: int) -> None:
        """Rows below one are gone."""
        self.first_row = max(self.first_row, row)
        tails = {0: self.first_row}
        self.kept = after_trim(self.shape, self.kept, tails, len(self.lines), self._scan)
        last = min(self.kept.line, self.state.first_open, len(self.lines) - 1)
        self.first_line = max(self.first_line, last)

    def _scan(self, start: int, end: int) -> Iterator[tuple[int, Line]]:
        return ((number, self.lines[number]) for number in range(start, end))

    def start(self, frontier: Frontier) -> LogStart:
        """Where to begin in order to see every epoch at or after `frontier` whole."""
        if not not_before(self.shape, frontier, self.kept.since):
            raise HistoryGoneError(frontier, self.kept.since, what="earlier rows were trimmed")
        found = first_line(
            self.shape, self.lines.__getitem__, self.first_line, len(self.lines), frontier
        )
        if found == len(self.lines):
            return self.end
        # The first line tells where the partition began; before what is kept, that will do.
        return LogStart(max(found, 1), self.lines[max(found, 1) - 1].lower if found else self.began)

    @property
    def began(self) -> Frontier:
        """Where the partition began."""
        return self.lines[0].lower

    def messages(self, feed: LineFeed, number: int) -> list[Message]:
        """What a line says, with the rows themselves in place of references."""
        found: list[Message] = []
        for message in feed.messages(number, self.lines[number]):
            if isinstance(message, Data):
                (one,) = message.payload
                item = self.rows[one.start] if one.start >= self.first_row else GONE
                message = msgspec.structs.replace(message, payload=item)
            found.append(message)
        return found
