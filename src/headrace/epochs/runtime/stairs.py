"""How far an epoch stream was complete, and when: the steps that its frontier took.

Every line of the progress log holds the whole frontier after it and the time when it was written,
so the last lines tell the steps by themselves.  Both the lines read and the steps told are bounded;
where steps are left out, those between are.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.lines import Line
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.runtime.progress_log import ProgressLog, epochs_of
from headrace.errors import NotStoredError
from headrace.log.log import Log

LINES_MAX = 5_000
STEPS_MAX = 300


class FrontierStep(msgspec.Struct, frozen=True, kw_only=True):
    """The frontier after a commit."""

    at_us: int
    frontier: Frontier
    publisher: str
    """Whose commit it was."""
    event: str
    """What else happened: it joined, closed, was released or rolled back …"""
    rows: int
    """Rows that were appended since the step before."""
    reach: Time | None
    """The least time at or after all rows so far; null before there are any."""


class Stairs(msgspec.Struct, frozen=True, kw_only=True):
    """The last steps of a frontier, oldest first."""

    length: int
    """0: times are integers; else how many parts they have."""
    steps: tuple[FrontierStep, ...]
    earlier: bool
    """There are older lines than were read."""


def stairs(log: Log, name: str) -> Stairs:
    """The last steps of a stream's frontier."""
    stream = log.stream(name)
    if not epochs_of(stream).stored:
        raise NotStoredError(
            f"stream {name!r} stores nothing, so nothing is known of its epochs; ask its publishers"
        )
    progress = ProgressLog(log, stream)
    tail, head = progress.bounds()
    first = max(tail, head - LINES_MAX)
    steps = list(_steps(progress.shape, _stamped(progress, first, head)))
    return Stairs(length=progress.shape.length, steps=thinned(steps), earlier=first > 0)


def _stamped(progress: ProgressLog, first: int, head: int) -> Iterator[tuple[int, Line]]:
    for batch in progress.batches(first, head):
        stamps = batch.column("timestamp").cast("int64").to_pylist()
        for at_us, (_, line) in zip(stamps, progress.decoded(batch), strict=True):
            yield at_us, line


def _steps(shape: TimeShape, found: Iterator[tuple[int, Line]]) -> Iterator[FrontierStep]:
    """One for each line."""
    reach: Time | None = None
    for at_us, line in found:
        for time in line.times:
            reach = time if reach is None else shape.join(reach, time)
        yield FrontierStep(
            at_us=at_us,
            frontier=line.lower,
            publisher=line.publisher,
            event=line.event,
            rows=line.rows,
            reach=reach,
        )


def thinned(steps: list[FrontierStep], most: int = STEPS_MAX) -> tuple[FrontierStep, ...]:
    """Those at which something happened, and of too many every so many; all rows are counted.

    The first and the last stay.
    """
    moved = [
        at
        for at, step in enumerate(steps)
        if at == 0
        or step.event
        or (step.frontier, step.reach) != (steps[at - 1].frontier, steps[at - 1].reach)
    ]
    stride = -(-len(moved) // most) or 1
    # Counted from the end, so that the last one that moved is among them.
    chosen = sorted({0, *moved[::-1][::stride], len(steps) - 1}) if steps else []
    found, before = [], 0
    for at in chosen:
        rows = sum(step.rows for step in steps[before : at + 1])
        found.append(msgspec.structs.replace(steps[at], rows=rows))
        before = at + 1
    return tuple(found)
