"""What an update of a reader group costs at 10,000 segments and 500 readers.

``python -m bench.cores_readers`` prints a line per kind of update; ``run()`` gives the figures.
Every update is applied many times, spread over the readers and segments, on one state that stays
about the same size.  Times are CPU times; the target is for one update, decided and carried out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from bench.harness import Result, at_most, show
from headrace.groups.readers import (
    AckCheckpoint,
    AcquireShare,
    AddReader,
    ClaimSegment,
    CompleteSegments,
    Completion,
    CreateCheckpoint,
    GroupConfig,
    Position,
    ReaderGroupState,
    RecordPositions,
    ReleaseSegments,
    RemoveReader,
    ReportLag,
    Reset,
    SegmentId,
    Successor,
    Update,
    apply,
)
from headrace.groups.readers.core.balance import segments_to_release
from headrace.groups.readers.core.entries import decode_outcome, encode_outcome
from headrace.groups.readers.core.records import decode_state, encode_state
from headrace.groups.readers.core.segments import positions

SEGMENTS = 10_000
READERS = 500
ROUNDS = 500
TARGET_MS = 1.0


def build(segments: int = SEGMENTS, readers: int = READERS) -> ReaderGroupState:
    """A balanced group."""
    state = ReaderGroupState(GroupConfig(), {SegmentId("s", n): 0 for n in range(segments)})
    for number in range(readers):
        apply(state, AddReader(f"r{number}"))
    for _ in range(2):
        for name, member in list(state.members.items()):
            if state.unassigned:
                apply(state, AcquireShare(name, member.token))
    return state


def _nth(state: ReaderGroupState, number: int) -> tuple[str, int]:
    name = f"r{number % READERS}"
    return name, state.members[name].token


def _offsets(state: ReaderGroupState, name: str, step: int) -> tuple[Position, ...]:
    return tuple(Position(s, held.offset + step) for s, held in state.owned(name).items())


def _updates(state: ReaderGroupState) -> Iterator[tuple[str, Update]]:
    """A day in the life: each update is made for the state as it then is."""
    fresh = SEGMENTS
    for number in range(ROUNDS):
        name, token = _nth(state, number)
        yield "report lag", ReportLag(name, token, number)
        yield (
            "record positions (20 segments)",
            RecordPositions(name, token, _offsets(state, name, 1)),
        )
        done = next(iter(state.owned(name)))
        successors = (Successor(SegmentId("s", fresh), (done,)),)
        fresh += 1
        completions = (Completion(done, successors),)
        yield "complete, successor opens", CompleteSegments(name, token, completions)
        yield "claim one", ClaimSegment(name, token, SegmentId("s", fresh - 1))
        left = positions({s: held.offset for s, held in state.owned(name).items()})
        yield "offline (20 segments)", RemoveReader(name, left)
        yield "join", AddReader(name)
        yield "acquire share (20 segments)", AcquireShare(name, state.members[name].token)
    for number in range(20):
        yield "create checkpoint", CreateCheckpoint(f"c{number}")
        for reader in range(READERS):
            name, token = _nth(state, reader)
            ack = AckCheckpoint(name, token, f"c{number}", _offsets(state, name, 1))
            yield "ack checkpoint (20 segments)", ack
    for number in range(20):
        yield "join", AddReader(f"new{number}")
        for reader in range(20):
            name, token = _nth(state, reader + 20 * number)
            if going := segments_to_release(state, name):
                yield "release", ReleaseSegments(name, token, tuple(going))


def run() -> list[Result]:
    """Time every kind of update, and what surrounds it, in milliseconds."""
    state = build()
    taken: dict[str, list[float]] = {}
    for kind, update in _updates(state):
        begun = time.thread_time()
        apply(state, update)
        taken.setdefault(kind, []).append((time.thread_time() - begun) * 1000)
    rows = [_row(kind, times, TARGET_MS) for kind, times in sorted(taken.items())]
    chunks = encode_state(state)
    reset = Reset(positions({SegmentId("s", n): 0 for n in range(SEGMENTS)}))
    small = build()
    recorded = apply(small, next(u for k, u in _updates(small) if k.startswith("record")))
    entry = encode_outcome(recorded)
    whole: list[tuple[str, Callable[[], object]]] = [
        ("encode one outcome for the log", lambda: encode_outcome(recorded)),
        ("decode one outcome of the log", lambda: decode_outcome(entry)),
        ("encode the whole state", lambda: encode_state(state)),
        ("decode the whole state", lambda: decode_state(chunks)),
        ("decode, then reset to a cut", lambda: apply(decode_state(chunks), reset)),
    ]
    for kind, operation in whole:
        times = []
        for _ in range(5):
            begun = time.thread_time()
            operation()
            times.append((time.thread_time() - begun) * 1000)
        rows.append(_row(kind, times, None))
    return rows


def _row(kind: str, times: list[float], target_ms: float | None) -> Result:
    ordered = sorted(times)
    median = statistics.median(ordered)
    name = f"readers: {kind}"
    detail = f"p99 {ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]:.3f} ms"
    if target_ms is None:
        return Result(name, median, "ms", detail=detail)
    return at_most(name, median, target_ms, "ms", detail)


if __name__ == "__main__":
    show(run())
