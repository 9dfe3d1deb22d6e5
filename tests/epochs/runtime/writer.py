"""Commits to an epoch stream by the ledger alone, for tests of those who read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.catalog import Tx, epochs
from headrace.catalog.producers import Placed
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.commits import AbortStream, EpochCommit, GiveUp, JoinStream, Publish, Step
from headrace.epochs.core.ledger import PublisherState
from headrace.epochs.core.lines import Line, Span, encode_line
from headrace.epochs.core.times import Time
from headrace.epochs.runtime.progress_log import load_state
from headrace.log.events import Event
from headrace.log.given import to_batch
from headrace.log.internal import progress_log
from headrace.log.log import Log
from headrace.log.pending import EpochProgress
from headrace.log.query import Query
from headrace.log.shares import Share


class RowsAlone:
    """Rows whose line is written by the test."""

    joins = False
    locks: tuple[str, ...] = ()
    publisher = None
    content = b""

    def __init__(self, stamps: npt.NDArray[np.int64]) -> None:
        self._stamps = stamps

    @property
    def different_times(self) -> int:
        return 1

    def times(self) -> npt.NDArray[np.int64]:
        return self._stamps

    def joined(self, others: Sequence[EpochProgress]) -> EpochProgress:
        raise AssertionError(others)

    def prepare(self, shares: Sequence[Share]) -> None:
        pass

    def record(self, tx: Tx, placed: Sequence[Placed]) -> None:
        pass


class Writer:
    """All publishers of a stream, in one hand."""

    def __init__(self, log: Log, stream: str) -> None:
        self.log = log
        self.stream = log.stream(stream)
        self.state = log.catalog.read(lambda tx: load_state(tx, self.stream))
        self.publishers: dict[str, PublisherState] = {}
        self.lines: list[Line] = []

    def join(self, name: str, start: Frontier | None = None) -> None:
        self._decide(name, JoinStream(name, 1, start))

    def publish(
        self,
        name: str,
        rows: Sequence[tuple[Time, bytes]] = (),
        advance_to: Time | Frontier | None = None,
        *,
        take_back: bool = False,
    ) -> None:
        """Rows at times, and then an advance, in one commit."""
        if name not in self.publishers:
            self.join(name)
        times = tuple(sorted({time for time, _ in rows}))
        shape = self.state.shape
        if advance_to is not None and (
            isinstance(advance_to, int) or all(isinstance(part, int) for part in advance_to)
        ):
            advance_to = (advance_to,)  # type: ignore[assignment]
        step = Step(times, len(rows), advance_to)  # type: ignore[arg-type]
        spans = []
        if rows:
            events = [
                Event(
                    subject=f"{self.stream.name}.x",
                    value=value,
                    key=value.decode(),
                    epoch=tuple(shape.to_row(time)),
                )
                for time, value in rows
            ]
            spans = [
                self._span(placed.segment, placed.start, placed.count, times)
                for placed in self._append(events)
            ]
        self._decide(name, Publish(name, 1, (step,), times, tuple(spans), take_back))

    def _append(self, events: list[Event]) -> tuple[Placed, ...]:
        """Rows alone: the line is written behind them."""
        write = self.log.write_of()
        rows = [event.epoch for event in events]
        write.add(self.stream.name, to_batch(events), progress=RowsAlone(np.array(rows)))
        return self.log.commit(write).placed

    def _span(self, segment: int, start: int, count: int, times: tuple[Time, ...]) -> Span:
        if len(times) == 1:
            return Span(segment, start, start + count)
        query = Query(start={segment: start}, segments=[segment], limit=count)
        reader = self.log.reader(self.stream.name, query)
        found: Counter[Time] = Counter()
        while (batch := reader.next()) is not None:
            found.update(map(self.state.shape.from_row, batch.column("epoch").to_pylist()))
        counts = tuple((times.index(time), rows) for time, rows in sorted(found.items()))
        return Span(segment, start, start + count, counts)

    def close(self, name: str, event: str = "closed") -> None:
        self._decide(name, GiveUp(name, 1, event))

    def abort(self, name: str, reason: str) -> None:
        self._decide(name, AbortStream(name, 1, reason))

    def _decide(self, name: str, commit: EpochCommit) -> None:
        decided = ledger.decide(self.state, self.publishers.get(name), commit)
        self.state = decided.state
        if decided.publisher is None:
            self.publishers.pop(name, None)
        else:
            self.publishers[name] = decided.publisher
        encoded = ledger.encode_state(self.state)
        self.log.catalog.write(lambda tx: epochs.put_stream(tx, self.stream.id, encoded, 0))
        if decided.line is not None:
            self.lines.append(decided.line)
            event = Event(subject="line", value=encode_line(decided.line))
            write = self.log.write_of()
            write.add(progress_log(self.stream.name), to_batch([event]), segment=0)
            (placed,) = self.log.commit(write).placed
            assert placed.start == self.state.line - 1
