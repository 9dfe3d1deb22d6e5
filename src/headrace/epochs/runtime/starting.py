"""Where a subscription starts: from a word, a frontier or a token to a line of each stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.catalog.streams import Stream
from headrace.epochs.core.antichains import Antichain, Frontier, check_frontier, join, not_before
from headrace.epochs.core.ledger import ABORTED, LedgerState
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.core.token import ResumeToken
from headrace.epochs.runtime import kept
from headrace.epochs.runtime.progress_log import ProgressLog, epochs_of
from headrace.errors import (
    HistoryGoneError,
    InvalidPositionError,
    NoEpochsError,
    TimeShapeError,
    UnknownSegmentError,
)
from headrace.log.log import Log

FrontierLike = Time | Iterable[Time]
"""A time, or several that are not comparable; empty for the end of a closed stream."""
EpochStart = str | FrontierLike

WORDS = ("open", "now", "earliest")


class StreamStart(msgspec.Struct, frozen=True):
    """Where one stream is begun: with which line, the frontier before it, what had begun."""

    progress: ProgressLog
    line: int
    lower: Frontier
    upper: Frontier = ()


class EpochBegin(msgspec.Struct, frozen=True):
    """The start of a subscription; `start` is None for one from now."""

    shape: TimeShape
    catalog: str
    start: Frontier | None
    streams: tuple[StreamStart, ...]

    @property
    def ids(self) -> tuple[tuple[str, str], ...]:
        """Names and ids, as tokens name them."""
        found = ((one.progress.stream.name, str(one.progress.stream.id)) for one in self.streams)
        return tuple(sorted(found))


def opened(log: Log, names: Sequence[str]) -> tuple[list[Stream], TimeShape]:
    """The streams, all of epochs of one shape that are stored."""
    found = [log.stream(name) for name in names]
    if not found or len(set(names)) != len(names):
        raise InvalidPositionError("name one stream or several different ones")
    lengths = {epochs_of(stream).length for stream in found}
    if len(lengths) > 1:
        shapes = ", ".join(
            f"{stream.name} has {TimeShape(epochs_of(stream).length)}" for stream in found
        )
        raise TimeShapeError(f"streams of different times cannot be merged: {shapes}")
    for stream in found:
        if not epochs_of(stream).stored:
            raise NoEpochsError(
                f"stream {stream.name!r} stores nothing; hear it with hr.live_epochs"
            )
    return found, TimeShape(lengths.pop())


def check_segments(log: Log, names: Sequence[str], chosen: frozenset[int]) -> None:
    """Raise if there are none, or one that no stream has."""
    if not chosen:
        raise InvalidPositionError("segments=[] would give nothing; leave it out for all of them")
    known = {segment.number for name in names for segment in log.stream(name).segments}
    for number in chosen:
        if type(number) is not int or number not in known:
            raise UnknownSegmentError(
                f"segments={sorted(chosen, key=str)}: {', '.join(names)} has no segment {number!r}"
            )


def frontier_of(shape: TimeShape, given: FrontierLike, what: str) -> Frontier:
    """A frontier as it was given: one time, or an antichain of them."""
    if isinstance(given, str | bytes) or not isinstance(given, int | Iterable):
        raise InvalidPositionError(f"{what}={given!r} is not a frontier")
    single = isinstance(given, int) or (
        isinstance(given, tuple) and bool(given) and all(type(part) is int for part in given)
    )
    if single and shape.length == 0 and isinstance(given, tuple):
        single = False  # (3,) is a frontier of integers
    times = (given,) if single else tuple(given)  # type: ignore[arg-type]
    frontier = check_frontier(shape, times)
    if len(frontier) != len(times):
        raise InvalidPositionError(f"{what}: of {list(times)} some are at or after others")
    return frontier


def resolve(
    log: Log, names: Sequence[str], start: EpochStart, *, at_least: bool = False
) -> EpochBegin:
    """Where to begin; raises if that is gone, or no start at all."""
    return kept.retried(lambda: _resolved(log, names, start, at_least=at_least))


def _resolved(
    log: Log, names: Sequence[str], start: EpochStart, *, at_least: bool = False
) -> EpochBegin:
    streams, shape = opened(log, names)
    found = [(one.state, one.rows.since) for one in kept.look(log, streams)]
    catalog = log.prefix
    logs = [ProgressLog(log, stream) for stream in streams]
    if start == "now":
        places = tuple(
            StreamStart(progress, _end(state), state.lower, state.upper)
            for progress, (state, _) in zip(logs, found, strict=True)
        )
        return EpochBegin(shape, catalog, None, places)
    since: Frontier = (shape.bottom,)
    for _, its_since in found:
        since = join(shape, since, its_since)
    frontier = _wanted(shape, catalog, streams, start, [state for state, _ in found], since)
    if not not_before(shape, frontier, since):
        if not at_least:
            raise HistoryGoneError(frontier, since, what="earlier rows were trimmed")
        frontier = join(shape, frontier, since)
    places = tuple(
        _place(progress, state, frontier) for progress, (state, _) in zip(logs, found, strict=True)
    )
    return EpochBegin(shape, catalog, frontier, places)


def _wanted(
    shape: TimeShape,
    catalog: str,
    streams: Sequence[Stream],
    start: EpochStart,
    states: Sequence[LedgerState],
    since: Frontier,
) -> Frontier:
    if start == "earliest":
        return since
    if start == "open":
        times = [time for state in states for time in state.lower]
        return Antichain.minimal(shape, times).frontier
    if isinstance(start, str):
        if len(start) < 16:
            raise InvalidPositionError(
                f"start={start!r}: give {', '.join(map(repr, WORDS))}, a frontier or a token"
            )
        ids = [(stream.name, str(stream.id)) for stream in streams]
        return ResumeToken.decode(start, catalog, ids, shape).frontier
    return frontier_of(shape, start, "start")


def _place(progress: ProgressLog, state: LedgerState, frontier: Frontier) -> StreamStart:
    line, lower = progress.start_of(frontier)
    if line == state.line:
        line, lower = _end(state), state.lower
    return StreamStart(progress, line, lower)


def _end(state: LedgerState) -> int:
    """The line to begin with for what is to come: of an aborted stream, the one that says so."""
    return state.line - 1 if state.status == ABORTED else state.line
