"""Planted bugs of reader groups; the first ones are known from the field.

Most are hunted by seeds of the simulator.  Where a rule decides only who gets how much, and any
outcome would be safe, a short golden script knows the right number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from headrace.groups.readers.core import (
    balance,
    failure,
    group_rules,
    reader_rules,
    rules,
    segment_rules,
)
from headrace.groups.readers.core import reader as reader_module
from headrace.groups.readers.core.changes import (
    Awaited,
    CheckpointAcked,
    CheckpointForgotten,
    Freed,
    LagReported,
    Opened,
    ReaderAdded,
    StateChange,
    WasReset,
)
from headrace.groups.readers.core.checkpoints import Checkpoint, Checkpoints
from headrace.groups.readers.core.reader import Reader, SegmentStanding
from headrace.groups.readers.core.segments import END, SegmentId
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    ReportLag,
)
from headrace.sim.planted import Original, PlantedBug, by_seeds, patched
from headrace.sim.planted.reader_scripts import lags, moves, releases, shares, silence
from headrace.sim.reader_process import ReaderProcess

# --- rule changes --------------------------------------------------------------------------


def _strikes_bare_numbers(original: Original) -> Original:
    """A completed segment is struck wherever its number is waited for, in any stream."""

    def complete(state: ReaderGroupState, update: Any) -> Iterator[StateChange]:
        yield from original(state, update)
        done = [each.segment for each in update.completions]
        for segment, waiting in state.future.items():
            numbers = {s.number for s in done if s.stream != segment.stream}
            left = frozenset(s for s in waiting if s.number not in numbers)
            if left != waiting:
                yield Awaited(segment, left) if left else Opened(segment)

    return complete


def _newest_first(original: Original) -> Original:
    def owed_by(self: Checkpoints, reader: str) -> tuple[str, ...]:
        return tuple(reversed(original(self, reader)))

    return owed_by


def _lag_brings_back(original: Original) -> Original:
    def lag(state: ReaderGroupState, update: ReportLag) -> Iterator[StateChange]:
        if update.reader in state.members:
            return original(state, update)  # type: ignore[no-any-return]
        told = LagReported(update.reader, update.lag_ms, far_behind=False, streak=0)
        return iter((ReaderAdded(update.reader, 0), told))

    return lag


def _idle_stay_silent(original: Original) -> Original:
    def checkpoint(self: Reader, state: Any, name: str, standings: Any) -> Any:
        return original(self, state, name, standings) if standings else None

    return checkpoint


def _claims_after_checkpoints_only(original: Original) -> Original:
    def count(state: ReaderGroupState, reader: str) -> int:
        begun = state.checkpoints.last is not None or not state.segment_count
        return int(original(state, reader)) if begun else 0

    return count


def _read_is_acked(original: Original) -> Original:
    """What was handed out counts as done, the event that failed included."""

    def standing(self: ReaderProcess, held: Any) -> SegmentStanding:
        found: SegmentStanding = original(self, held)
        if found.offset == END:
            return found
        return SegmentStanding(held.dispatcher.next_offset, found.idle)

    return standing


def _never(original: Original) -> Original:  # noqa: ARG001
    return lambda *args, **kwargs: False  # noqa: ARG005


def _nobody(original: Original) -> Original:  # noqa: ARG001
    return lambda *args: []  # noqa: ARG005


def _no_barrier(original: Original) -> Original:  # noqa: ARG001
    def checkpoint(self: Reader, state: Any, name: str, standings: Any) -> Any:  # noqa: ARG001
        offsets = reader_module._offsets(standings)
        return AckCheckpoint(self.name, self.token, name, offsets)

    return checkpoint


def _without(kind: type[Any]) -> Callable[[Original], Original]:
    def change(original: Original) -> Original:
        def changes(state: ReaderGroupState, update: Any) -> Iterator[StateChange]:
            return (c for c in original(state, update) if not isinstance(c, kind))

        return changes

    return change


def _frees_from_the_start(original: Original) -> Original:
    def remove(state: ReaderGroupState, update: Any) -> Iterator[StateChange]:
        for change in original(state, update):
            forgets = isinstance(change, Freed)
            yield Freed(change.reader, change.segment, 0) if forgets else change

    return remove


def _forgets_waits(original: Original) -> Original:
    def init(self: Checkpoint, *args: Any) -> None:
        original(self, *args)
        self.waits = {}

    return init


def _drops_ends(original: Original) -> Original:
    """A reset leaves out the segments that were read to their end."""

    def restore(state: ReaderGroupState, update: Any) -> Iterator[StateChange]:
        for change in original(state, update):
            if isinstance(change, WasReset):
                kept = tuple(position for position in change.cut if position.offset != END)
                yield WasReset(kept, change.waits, change.end_cut)
            else:
                yield change

    return restore


def _anything_goes(original: Original) -> Original:  # noqa: ARG001
    return lambda *args: None  # noqa: ARG005


def _opens_early(original: Original) -> Original:
    """The first predecessor that is over opens a merged segment."""

    def struck(*args: Any) -> dict[SegmentId, frozenset[SegmentId]]:
        return dict.fromkeys(original(*args), frozenset())

    return struck


def _by_name_alone(original: Original) -> Original:  # noqa: ARG001
    def member(self: ReaderGroupState, reader: str, token: int) -> Any:  # noqa: ARG001
        return self.members.get(reader)

    return member


def _half_to_even(original: Original) -> Original:  # noqa: ARG001
    return lambda segments, readers: round(segments / readers)


def _ignores_the_offer(original: Original) -> Original:  # noqa: ARG001
    def overloaded(state: ReaderGroupState, reader: str, released: int = 0) -> bool:
        owned = len(state.owned(reader)) - released
        return owned > 1 and state.loads.exceeds(reader, released, 1)

    return overloaded


def _silent_counts(original: Original) -> Original:
    def completed(self: Checkpoints, checkpoint: Checkpoint) -> None:
        original(self, checkpoint)
        self.last = checkpoint

    return completed


def _forgets_the_target(original: Original) -> Original:
    """A reset to a checkpoint forgets every checkpoint, that one included."""

    def restore(state: ReaderGroupState, update: Any) -> Iterator[StateChange]:
        for checkpoint in state.checkpoints.all():
            yield CheckpointForgotten(checkpoint.name, checkpoint.created)
        yield from (c for c in original(state, update) if isinstance(c, WasReset))

    return restore


def _nothing(original: Original) -> Original:  # noqa: ARG001
    return lambda *args: ()  # noqa: ARG005


def _zero(original: Original) -> Original:  # noqa: ARG001
    return lambda *args: 0  # noqa: ARG005


def _never_lasts(original: Original) -> Original:
    """One report is enough."""

    def lag(state: ReaderGroupState, update: Any) -> Iterator[StateChange]:
        with mock.patch.object(reader_rules, "STREAK", 1):
            yield from original(state, update)

    return lag


def _bug(
    name: str,
    about: str,
    owner: Any,
    rule: str,
    change: Callable[[Original], Original],
    hunt: Callable[[], str | None] | None = None,
) -> PlantedBug:
    return PlantedBug(
        name=f"readers: {name}",
        about=about,
        plant=lambda: _planted(owner, rule, change),
        hunt=hunt or by_seeds("readers", 200),
    )


def _planted(
    owner: Any, rule: str, change: Callable[[Original], Original]
) -> AbstractContextManager[Any]:
    """Replace a rule where it is called: most rules of updates stand in a table."""
    original = getattr(owner, rule)
    for update, found in rules.RULES.items():
        if found is original:
            return mock.patch.dict(rules.RULES, {update: change(original)})
    return patched(owner, rule, change)


PLANTED = (
    _bug(
        "segments by bare number",
        "a completed segment is struck from the waits of all streams",
        segment_rules, "complete", _strikes_bare_numbers,
    ),
    _bug(
        "newest checkpoint first",
        "the next checkpoint of a reader does not follow the order of creation",
        Checkpoints, "owed_by", _newest_first,
    ),
    _bug(
        "late lag brings a reader back",
        "a lag written by a reader that was put offline makes it a member again",
        reader_rules, "lag", _lag_brings_back,
    ),
    _bug(
        "idle readers owe nothing",
        "a reader without segments never answers a checkpoint",
        Reader, "_checkpoint", _idle_stay_silent,
    ),
    _bug(
        "hidden without checkpoints",
        "segments are claimed only once the application has made a checkpoint",
        balance, "acquire_count", _claims_after_checkpoints_only, shares,
    ),
    _bug(
        "close counts what failed",
        "a reader tells the offset it has read to, not the one it has acked",
        ReaderProcess, "_standing", _read_is_acked,
    ),
    _bug(
        "first reader keeps everything",
        "no reader ever finds that it has too much",
        balance, "is_overloaded", _never,
    ),
    _bug(
        "no failure detector",
        "nobody is ever found dead, so what a dead reader owned is read by nobody",
        failure, "dead_readers", _nobody,
    ),
    _bug(
        "checkpoint without barrier",
        "a reader answers a checkpoint with events in flight",
        Reader, "_checkpoint", _no_barrier,
    ),
    _bug(
        "offline owes on",
        "a reader that goes offline does not answer the checkpoints it owes",
        reader_rules, "remove", _without(CheckpointAcked),
    ),
    _bug(
        "offline forgets positions",
        "what a reader leaves behind is read again from its beginning",
        reader_rules, "remove", _frees_from_the_start,
    ),
    _bug(
        "checkpoints without waits",
        "a checkpoint forgets which segments wait for which",
        Checkpoint, "__init__", _forgets_waits,
        by_seeds("readers", 200, first=15),
    ),
    _bug(
        "finished segments left out",
        "a reset drops what was read to its end, and with it what follows",
        group_rules, "restore", _drops_ends,
    ),
    _bug(
        "busy under a checkpoint",
        "a reader that owes a checkpoint may claim, release and complete",
        segment_rules, "check_nothing_owed", _anything_goes,
        by_seeds("readers", 200, first=20),
    ),
    _bug(
        "merged segment opens early",
        "a segment opens with the first of its predecessors",
        segment_rules, "_struck", _opens_early,
    ),
    _bug(
        "readers by name alone",
        "a reader that was put offline acts under the name of the one that came after it",
        ReaderGroupState, "member", _by_name_alone,
        by_seeds("readers", 200, first=27),
    ),
    _bug(
        "halves to even",
        "the fair share of five over two readers is two",
        balance, "fair_share", _half_to_even, shares,
    ),
    _bug(
        "offer not counted",
        "a reader gives up segments without counting those on offer",
        balance, "is_overloaded", _ignores_the_offer, releases,
    ),
    _bug(
        "checkpoints serve once",
        "a reset to a checkpoint forgets that checkpoint",
        group_rules, "restore", _forgets_the_target,
    ),
    _bug(
        "dropped stream in checkpoints",
        "checkpoints remember the streams that left the group",
        Checkpoint, "drop", _anything_goes,
        by_seeds("readers", 200, first=9),
    ),
    _bug(
        "added stream not in checkpoints",
        "a reset to an older checkpoint loses the streams that were added since",
        Checkpoint, "add", _anything_goes,
        by_seeds("readers", 200, first=9),
    ),
    _bug(
        "back without an answer",
        "an earlier life of a reader owes its checkpoints for ever",
        reader_rules, "_answers", _nothing,
    ),
    _bug(
        "half of the difference",
        "a reader gives up segments below its share",
        balance, "kept_count", _zero, moves,
    ),
    _bug(
        "one report is enough",
        "a reader counts as far behind as soon as it says so",
        reader_rules, "lag", _never_lasts, lags,
    ),
    _bug(
        "silent checkpoint counts",
        "a silent checkpoint becomes the last checkpoint",
        Checkpoints, "_completed", _silent_counts, silence,
    ),
)  # fmt: skip
