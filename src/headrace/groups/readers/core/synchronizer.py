"""Following the shared state: a replica, the log of outcomes, and when to write a snapshot.

Theory of operation
-------------------
The catalog holds a snapshot and the outcomes of updates since, numbered by revision.  A replica is
brought up to date by carrying out what it has not seen; it decides nothing, so it does not matter
which version of the rules others have.  To change the state one takes the catalog's write lock,
catches up, *prepares* the update (that decides, and changes nothing) and appends the outcome to
the log; when the transaction is committed it is followed like anybody else's.  If it is not, or
nobody knows, the replica is simply behind or not, and the log tells.

Under the lock the revision cannot change, so there are no retries as with optimistic locking: N
readers that answer a checkpoint at once cost N small updates, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.errors import ReaderRevisionError
from headrace.groups.readers.core import guards
from headrace.groups.readers.core.checkpoints import Checkpoint
from headrace.groups.readers.core.records import decode_state, encode_state
from headrace.groups.readers.core.rules import Outcome, decide
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import Update

LOG_ENTRIES_MAX = 1024
"""A log longer than this is due for a snapshot."""
LOG_BYTES_MAX = 512 * 1024


class Followed(msgspec.Struct, frozen=True):
    """What a replica has carried out: outcomes that were new to it, in order."""

    outcomes: tuple[Outcome, ...] = ()
    completed: tuple[Checkpoint, ...] = ()
    """Checkpoints that became complete on the way; some may be forgotten already."""


class Replica:
    """A copy of the shared state that follows the log."""

    def __init__(self, state: ReaderGroupState) -> None:
        self.state = state

    @classmethod
    def restore(cls, snapshot: Sequence[bytes]) -> Replica:
        """A replica at the revision of a snapshot."""
        return cls(decode_state(snapshot))

    @property
    def revision(self) -> int:
        """How far this replica has followed."""
        return self.state.revision

    def follow(self, outcomes: Iterable[Outcome]) -> Followed:
        """Carry out what this replica has not seen; a gap is refused and needs a snapshot."""
        followed: list[Outcome] = []
        completed: list[Checkpoint] = []
        for outcome in outcomes:
            if outcome.revision <= self.revision:
                continue
            if outcome.revision != self.revision + 1:
                raise ReaderRevisionError(self.revision, outcome.revision - 1)
            completed += self.state.evolve(outcome.changes)
            followed.append(outcome)
        return Followed(tuple(followed), tuple(completed))

    def prepare(self, update: Update, now_ms: int) -> Outcome:
        """What will come of an update, to be appended to the log unless it has no changes.

        The state stays as it is; the caller holds the lock and has caught up.
        """
        changes = decide(self.state, update)
        if not changes:
            return Outcome(self.revision, (), update, now_ms)
        guards.check(self.state, update)
        return Outcome(self.revision + 1, changes, update, now_ms)

    def snapshot(self) -> list[bytes]:
        """The state in chunks, to replace the log up to this revision."""
        return encode_state(self.state)


def compaction_due(entries: int, size_bytes: int) -> bool:
    """Whether the log since the last snapshot should be replaced by a new one."""
    return entries > LOG_ENTRIES_MAX or size_bytes > LOG_BYTES_MAX
