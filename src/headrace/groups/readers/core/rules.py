"""The rules: what an update changes; the one place where preconditions are judged.

Theory of operation
-------------------
:func:`decide` looks at a state and an update and returns the changes, or raises; it changes
nothing.  What was decided is an :class:`Outcome`: the changes, the revision that they make, and
for people the update and its time.  The log holds outcomes, and followers carry them out
(:meth:`.ReaderGroupState.evolve`) without asking the rules again.  So the rules may change from one
version to the next, and readers of both versions still agree.

An update may come to nothing (a reader put offline twice, a share of nothing); then there is no
new revision and nothing for others to follow.

What is checked, in this order: is the reader online under its token; does it own the segment
(release); does it owe a checkpoint; then what is particular to the update.  A reader that owes a
checkpoint neither claims, releases nor completes: the checkpoint would hold a segment twice, or
not at all.

These are the rules that every log of a reader group obeys.  What is demanded beyond them of an
update before it gets into the log stands in :mod:`headrace.groups.readers.core.guards`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.errors import ReaderRevisionError
from headrace.groups.readers.core import (
    checkpoint_rules,
    group_rules,
    reader_rules,
    segment_rules,
)
from headrace.groups.readers.core.changes import Freed, SegmentClaimed, StateChange
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    AcquireShare,
    AddReader,
    AddStreams,
    CancelCheckpoints,
    ClaimFree,
    ClaimSegment,
    CompleteSegments,
    Configure,
    CreateCheckpoint,
    DropStreams,
    RecordPositions,
    ReleaseSegments,
    RemoveReader,
    ReportLag,
    Reset,
    ResetToCheckpoint,
    ReturnReader,
    Update,
)


class Outcome(msgspec.Struct, frozen=True):
    """What an update came to: the changes, and the revision that they made."""

    revision: int
    changes: tuple[StateChange, ...]
    update: Update | None = None
    """For people; in a log it has no positions, and is None if this version does not know it."""
    at_ms: int = 0
    """When it was decided, for people."""

    @property
    def claimed(self) -> tuple[SegmentClaimed, ...]:
        """Segments that changed hands to a reader."""
        return tuple(change for change in self.changes if isinstance(change, SegmentClaimed))

    @property
    def freed(self) -> tuple[Freed, ...]:
        """Segments that a reader gave up or lost."""
        return tuple(change for change in self.changes if isinstance(change, Freed))


def apply(
    state: ReaderGroupState, update: Update, *, if_revision: int | None = None, at_ms: int = 0
) -> Outcome:
    """Decide on an update and carry it out; with `if_revision`, only on that very revision."""
    if if_revision is not None and if_revision != state.revision:
        raise ReaderRevisionError(state.revision, if_revision)
    changes = decide(state, update)
    if changes:
        state.evolve(changes)
    return Outcome(state.revision, changes, update, at_ms)


def decide(state: ReaderGroupState, update: Update) -> tuple[StateChange, ...]:
    """The changes that an update comes to on this state, which is left as it is."""
    return tuple(RULES[type(update)](state, update))


RULES: dict[type, Callable[[ReaderGroupState, Any], Iterator[StateChange]]] = {
    AddReader: reader_rules.add,
    ReturnReader: reader_rules.come_back,
    RemoveReader: reader_rules.remove,
    ReportLag: reader_rules.lag,
    ClaimSegment: segment_rules.claim,
    ClaimFree: segment_rules.claim_free,
    AcquireShare: segment_rules.acquire,
    ReleaseSegments: segment_rules.release,
    CompleteSegments: segment_rules.complete,
    RecordPositions: segment_rules.record,
    CreateCheckpoint: checkpoint_rules.create,
    AckCheckpoint: checkpoint_rules.ack,
    CancelCheckpoints: checkpoint_rules.cancel,
    Reset: group_rules.reset,
    ResetToCheckpoint: group_rules.restore,
    AddStreams: group_rules.add_streams,
    DropStreams: group_rules.drop_streams,
    Configure: group_rules.configure,
}
