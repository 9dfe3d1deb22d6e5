"""Following the shared state: a replica, the log of updates, and when to write a snapshot.

Theory of operation
-------------------
The catalog holds a snapshot and the updates since, numbered by revision.  A replica is brought up
to date by applying what it has not seen.  To change the state one takes the catalog's write lock,
catches up, *prepares* the update (that decides, and changes nothing) and appends it to the log;
when the transaction is committed the entry is followed like anybody else's.  If it is not, or
nobody knows, the replica is simply behind or not, and the log tells.

Under the lock the revision cannot change, so there are no retries as with optimistic locking: N
readers that answer a checkpoint at once cost N small updates, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.errors import ReaderRevisionError
from headrace.groups.readers.core import guards
from headrace.groups.readers.core.records import LogEntry, decode_state, encode_state
from headrace.groups.readers.core.rules import Outcome, apply, decide
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import Update

LOG_ENTRIES_MAX = 1024
"""A log longer than this is due for a snapshot."""
LOG_BYTES_MAX = 512 * 1024


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

    def follow(self, entries: Iterable[LogEntry]) -> list[Outcome]:
        """Apply what this replica has not seen; a gap is refused and needs a snapshot."""
        outcomes = []
        for entry in entries:
            if entry.revision <= self.revision:
                continue
            if entry.revision != self.revision + 1:
                raise ReaderRevisionError(self.revision, entry.revision - 1)
            outcomes.append(apply(self.state, entry.update))
        return outcomes

    def prepare(self, update: Update) -> tuple[LogEntry | None, Outcome]:
        """What to append to the log (None: nothing) and what will come of it.

        The state stays as it is; the caller holds the lock and has caught up.
        """
        changes = decide(self.state, update)
        if not changes:
            return None, Outcome(self.revision, ())
        guards.check(self.state, update)
        entry = LogEntry(self.revision + 1, update)
        return entry, Outcome(entry.revision, changes)

    def snapshot(self) -> list[bytes]:
        """The state in chunks, to replace the log up to this revision."""
        return encode_state(self.state)


def compaction_due(entries: int, size_bytes: int) -> bool:
    """Whether the log since the last snapshot should be replaced by a new one."""
    return entries > LOG_ENTRIES_MAX or size_bytes > LOG_BYTES_MAX
