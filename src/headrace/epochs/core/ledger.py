"""The ledger of an epoch stream: which commits are legal, and what line each one writes.

Theory of operation
-------------------
Every publisher of a stream *holds* times: a frontier of its own, and capabilities beside it.  Rows
are legal at or after a held time, held times only move forward, and what nobody holds is complete.
The merged lower frontier is the minimal ones of all held times, so a publisher that holds 5 keeps 5
and everything after it open, whatever the others do.  Until the first publisher comes the stream
holds the first time itself; publishers that were declared hold it from the beginning.

:func:`decide` takes the state and a commit, and answers with the new state and the line, or refuses
with an error and changes nothing.  It runs in the transaction that appends the rows, over what the
catalog holds: a program's own memory may run ahead of a commit that fails.

*Bounded.*  The state knows neither the active epochs nor history (``fronts.py`` says how).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.epochs.core import lines, stored
from headrace.epochs.core.antichains import Antichain, Frontier, check_frontier, not_before
from headrace.epochs.core.commits import (
    AbortStream,
    EpochCommit,
    GiveUp,
    JoinStream,
    Publish,
    Step,
)
from headrace.epochs.core.fronts import Front, after_line, raised
from headrace.epochs.core.lines import Line, Span, check_size
from headrace.epochs.core.times import Time, TimeShape, shape_of
from headrace.errors import (
    CapabilityError,
    EpochLimitError,
    EpochStreamEndedError,
    FrontierError,
    IllegalTimeError,
    LateEventError,
    PublisherLimitError,
    UnknownPublisherError,
)

PUBLISHERS_MAX = 1024
HELD_MAX = 64
"""Times that one publisher may hold, its capabilities included."""
HELD_TOTAL_MAX = 4096
"""Distinct times that all publishers of a stream may hold."""
UPPER_MAX = 64
REASON_MAX = 1000

OPEN, ENDED, ABORTED = "open", "closed", "aborted"


class LedgerState(msgspec.Struct, frozen=True, array_like=True):
    """The state of one stream."""

    stream: str
    length: int
    """How many parts its times have, as in :class:`TimeShape`."""
    line: int
    """The number of the next line."""
    lower: Frontier
    upper: Frontier
    """The maximal times that rows ever had."""
    held: tuple[tuple[Time, int], ...]
    """All held times, with how often each is held."""
    fronts: tuple[Front, ...] = ()
    publishers: int = 0
    unclaimed: bool = True
    """Whether the stream holds the first time itself, since no publisher has come yet."""
    status: str = OPEN
    reason: str = ""

    @property
    def shape(self) -> TimeShape:
        return shape_of(self.length)

    @property
    def first_open(self) -> int:
        """The first line that may hold rows of an epoch that is not complete."""
        return self.fronts[0].line if self.fronts else self.line


class PublisherState(msgspec.Struct, frozen=True, array_like=True):
    """What one publisher holds."""

    name: str
    frontier: Frontier
    capabilities: tuple[tuple[int, Time], ...] = ()
    """(number, time)."""
    next_capability: int = 0
    line: int = -1
    """The line of its last commit; -1 before the first."""

    @property
    def held(self) -> tuple[Time, ...]:
        """All held times, one as often as it is held."""
        return (*self.frontier, *(time for _, time in self.capabilities))


class Decided(msgspec.Struct, frozen=True):
    """What a commit changes; ``line`` is None where it changes nothing."""

    state: LedgerState
    publisher: PublisherState | None
    """None: it is no publisher of the stream any more."""
    line: Line | None


def begin(
    stream: str, shape: TimeShape, publishers: Sequence[str] = ()
) -> tuple[LedgerState, tuple[PublisherState, ...]]:
    """The state of a new stream, and of the publishers that were declared."""
    first = (shape.bottom,)
    declared = tuple(PublisherState(name, first) for name in publishers)
    state = LedgerState(
        stream=stream,
        length=shape.length,
        line=0,
        lower=first,
        upper=(),
        held=((shape.bottom, max(1, len(declared))),),
        publishers=len(declared),
        unclaimed=not declared,
    )
    return state, declared


def decide(state: LedgerState, publisher: PublisherState | None, commit: EpochCommit) -> Decided:
    """The outcome of a commit by (or about) ``publisher``, whose state this is; raises if illegal.

    Whoever commits has checked the token.
    """
    if state.status != OPEN:
        raise EpochStreamEndedError(state.stream, state.status, state.reason)
    if isinstance(commit, JoinStream):
        return _join(state, publisher, commit)
    if publisher is None:
        raise UnknownPublisherError(state.stream, commit.publisher)
    match commit:
        case Publish():
            return _publish(state, publisher, commit)
        case GiveUp():
            return _give_up(state, publisher, commit)
        case AbortStream():
            return _abort(state, publisher, commit)


def check_steps(
    state: LedgerState, publisher: PublisherState, steps: Iterable[Step]
) -> PublisherState:
    """What the publisher holds after the steps; raises if one of them is illegal."""
    shape = state.shape
    for step in steps:
        _check_times(state, publisher, step)
        if step.capabilities:
            publisher = _with_capabilities(state, publisher, step.capabilities)
        if step.advance_to is not None:
            publisher = _advanced(state.stream, shape, publisher, step.advance_to)
    return publisher


# -- the kinds of commits ----------------------------------------------------------------


def _join(state: LedgerState, known: PublisherState | None, commit: JoinStream) -> Decided:
    shape = state.shape
    if known is not None:
        raise FrontierError(
            "it is a publisher already",
            update=f"publisher {commit.publisher!r} joining stream {state.stream!r}",
            state=f"holding {shown(known.held)}",
        )
    if state.publishers >= PUBLISHERS_MAX:
        raise PublisherLimitError(state.stream, commit.publisher, PUBLISHERS_MAX)
    start = state.lower if commit.start is None else check_frontier(shape, commit.start)
    if not start or not not_before(shape, start, state.lower):
        raise FrontierError(
            "it can join at the frontier or later, where nothing is complete",
            update=f"publisher {commit.publisher!r} joining stream {state.stream!r} at "
            f"{shown(start)}",
            state=f"frontier {shown(state.lower)}",
        )
    _check_held(state.stream, commit.publisher, start)
    joined = PublisherState(commit.publisher, start, line=state.line)
    left = (shape.bottom,) if state.unclaimed else ()
    state = msgspec.structs.replace(state, publishers=state.publishers + 1, unclaimed=False)
    state = _held_instead(state, commit.publisher, left, joined.held)
    return _decided(state, joined, commit, event=lines.JOINED)


def _publish(state: LedgerState, publisher: PublisherState, commit: Publish) -> Decided:
    before = publisher
    taken_back: Frontier = ()
    if commit.take_back:
        taken_back = minimal(state.shape, publisher.held)
    if commit.resumes:
        least = minimal(state.shape, publisher.held)
        publisher = msgspec.structs.replace(publisher, frontier=least, capabilities=())
    publisher = check_steps(state, publisher, commit.steps)
    check_size(state.stream, commit.times, commit.spans)
    if publisher == before and not commit.spans and not taken_back:
        return Decided(state, publisher, None)
    publisher = msgspec.structs.replace(publisher, line=state.line)
    state = _held_instead(state, before.name, before.held, publisher.held)
    return _decided(
        state, publisher, commit, times=commit.times, spans=commit.spans, taken_back=taken_back
    )


def _give_up(state: LedgerState, publisher: PublisherState, commit: GiveUp) -> Decided:
    taken_back: Frontier = ()
    if commit.event == lines.ROLLED_BACK:
        taken_back = minimal(state.shape, publisher.held)
    state = msgspec.structs.replace(state, publishers=state.publishers - 1)
    state = _held_instead(state, publisher.name, publisher.held, ())
    if not state.lower:
        state = msgspec.structs.replace(state, status=ENDED)
    reason = commit.reason[:REASON_MAX]
    return _decided(state, None, commit, taken_back=taken_back, event=commit.event, reason=reason)


def _abort(state: LedgerState, publisher: PublisherState, commit: AbortStream) -> Decided:
    reason = commit.reason[:REASON_MAX]
    state = msgspec.structs.replace(state, status=ABORTED, reason=reason)
    return _decided(state, publisher, commit, event=lines.ABORTED, reason=reason)


def _decided(
    state: LedgerState,
    publisher: PublisherState | None,
    commit: EpochCommit,
    *,
    times: tuple[Time, ...] = (),
    spans: tuple[Span, ...] = (),
    taken_back: Frontier = (),
    event: str = "",
    reason: str = "",
) -> Decided:
    """Write the line: the state's frontier is already the one after it."""
    number = state.line
    fronts = after_line(state.shape, state.fronts, number, times, state.lower)
    upper = raised(state.shape, state.upper, times, UPPER_MAX) if times else state.upper
    state = msgspec.structs.replace(state, line=number + 1, fronts=fronts, upper=upper)
    line = Line(
        publisher=commit.publisher,
        token=commit.token,
        lower=state.lower,
        first_open=state.first_open,
        times=times,
        spans=spans,
        taken_back=taken_back,
        event=event,
        reason=reason,
    )
    return Decided(state, publisher, line)


# -- held times --------------------------------------------------------------------------


def _check_times(state: LedgerState, publisher: PublisherState, step: Step) -> None:
    if not step.times:
        return
    least = min(publisher.held, default=None)
    if state.length == 0 and least is not None and least <= min(step.times):  # type: ignore[operator]
        return  # the least one decides for all
    held = Antichain.minimal(state.shape, publisher.held)
    late = [time for time in step.times if not held.covers(time)]
    if late:
        raise LateEventError(
            stream=state.stream,
            publisher=publisher.name,
            times=late,
            held=held.frontier,
            frontier=state.lower,
        )


def _advanced(
    stream: str, shape: TimeShape, publisher: PublisherState, wanted: Frontier
) -> PublisherState:
    after = check_frontier(shape, wanted)
    if not after or not not_before(shape, after, publisher.frontier):
        raise FrontierError(
            "a frontier moves forward only, to times at or after held ones"
            if after
            else "an empty frontier would give everything up; that is what close() is for",
            update=f"stream {stream!r}: advance of {publisher.name!r} to {shown(after)}",
            state=f"holding {shown(publisher.frontier)}",
        )
    advanced = msgspec.structs.replace(publisher, frontier=after)
    _check_held(stream, publisher.name, advanced.held)
    return advanced


def _with_capabilities(
    state: LedgerState, publisher: PublisherState, changes: Iterable[tuple[int, Time | None]]
) -> PublisherState:
    shape = state.shape
    capabilities, following = dict(publisher.capabilities), publisher.next_capability
    for number, wanted in changes:
        time = None if wanted is None else shape.check(wanted)
        what = f"stream {state.stream!r}: capability {number} of {publisher.name!r}"
        if number == following and time is not None:
            held = Antichain.minimal(shape, (*publisher.frontier, *capabilities.values()))
            if not held.covers(time):
                raise IllegalTimeError(
                    "it is not at or after a held time",
                    update=f"{what} at {time}",
                    state=f"holding {held}",
                )
            following += 1
        elif number not in capabilities:
            raise CapabilityError(f"{what} was dropped, or never held; hold the time again")
        if time is None:
            capabilities.pop(number)
            continue
        if number in capabilities and not shape.leq(capabilities[number], time):
            raise IllegalTimeError(
                "a capability moves forward only",
                update=f"{what} to {time}",
                state=f"it is at {capabilities[number]}",
            )
        capabilities[number] = time
    changed = msgspec.structs.replace(
        publisher, capabilities=tuple(capabilities.items()), next_capability=following
    )
    _check_held(state.stream, publisher.name, changed.held)
    return changed


def _check_held(stream: str, publisher: str, held: Sequence[Time]) -> None:
    if len(held) > HELD_MAX:
        raise EpochLimitError(
            f"stream {stream!r}: publisher {publisher!r} would hold {len(held)} times; "
            f"{HELD_MAX} is the most. Drop capabilities, or advance to fewer times"
        )


def _held_instead(
    state: LedgerState, publisher: str, before: Sequence[Time], after: Sequence[Time]
) -> LedgerState:
    """The state with some times held instead of others, and the frontier that follows."""
    if tuple(before) == tuple(after):
        return state
    counts = dict(state.held)
    for time in after:
        counts[time] = counts.get(time, 0) + 1
    gone = False
    for time in before:
        if time not in counts:
            why = f"it holds {time}, of which the stream does not know"
            raise stored.unreadable(_STATE, publisher, why, _REMEDY, state.stream)
        counts[time] -= 1
        if not counts[time]:
            del counts[time]
            gone = gone or time in state.lower
    if len(counts) > HELD_TOTAL_MAX and len(counts) > len(state.held):
        raise EpochLimitError(
            f"stream {state.stream!r}: its publishers would hold {len(counts)} different times; "
            f"{HELD_TOTAL_MAX} is the most. Close publishers that are done, or drop capabilities"
        )
    # What is new lies at or after the frontier; it shows only when a time of the frontier goes.
    lower = minimal(state.shape, counts) if gone else state.lower
    return msgspec.structs.replace(state, lower=lower, held=tuple(counts.items()))


def minimal(shape: TimeShape, times: Iterable[Time]) -> Frontier:
    """The minimal ones of the times."""
    if shape.length == 0:
        return tuple(sorted(times)[:1])
    return Antichain.minimal(shape, times).frontier


def shown(times: Iterable[Time]) -> str:
    """A frontier as people read it: ``17``, or ``(0, 4) (3, 0)``, or ``nothing``."""
    return " ".join(str(time) for time in sorted(times)) or "nothing"


_BACKUP = "restore the catalog from a backup, or"
_STATE = "the state of epoch publisher"
_REMEDY = f"{_BACKUP} do without the publisher: headrace epoch release {{stream}} {{name}}"

encode_state = stored.encode
decode_state = stored.decoder(
    LedgerState, "the state of epoch stream", f"{_BACKUP} remove it: headrace stream rm {{name}}"
)
decode_publisher = stored.decoder(PublisherState, _STATE, _REMEDY)
