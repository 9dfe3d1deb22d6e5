"""A replica of a group's state that knows which log it has followed.

Theory of operation
-------------------
A replica is brought up to date inside a transaction, and decisions are made on it there.  But the
committer runs many operations in one commit, which may fail as a whole, or be made again: then the
replica has followed what never happened.  So it carries the log's *stamp* along (a hash of all
entries in their order, :mod:`headrace.catalog.reader_groups`).  Before each use the stamps are
compared.  A replica with another history, whether of a commit that failed or of an earlier group
of the same name, is thrown away and made anew from the snapshot and the log; nobody has to tell it
that something went wrong.
"""

from __future__ import annotations

from headrace.catalog import Tx, reader_groups
from headrace.catalog.reader_groups import ReaderGroupRow, StoredState, carried
from headrace.errors import (
    ReaderRevisionError,
    ReaderStateDecodeError,
    UnreadableRecordError,
)
from headrace.groups.readers.core.entries import decode_outcome
from headrace.groups.readers.core.rules import Outcome
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.synchronizer import Followed, Replica


class StampedReplica:
    """Follows the log of one group, on one side: of the writer, or of the event loop."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._replica: Replica | None = None
        self.stamp = 0

    @property
    def replica(self) -> Replica:
        """The replica, once it has caught up."""
        assert self._replica is not None, f"reader group {self._group} was never read"
        return self._replica

    @property
    def state(self) -> ReaderGroupState:
        """The state as far as it was followed."""
        return self.replica.state

    @property
    def is_new(self) -> bool:
        """Whether it has never caught up."""
        return self._replica is None

    def catch_up(self, tx: Tx, row: ReaderGroupRow) -> None:
        """Follow the log up to ``row``, or read the state anew."""
        replica = self._replica
        if replica is not None and replica.revision == row.revision and self.stamp == row.stamp:
            return
        if replica is not None and row.snapshot_revision <= replica.revision < row.revision:
            entries = reader_groups.log_after(tx, row.name, replica.revision)
            if self.take(entries, row.stamp) is not None:
                return
        found = reader_groups.states(tx, row.name).get(row.name)
        self.restore(row, found or StoredState([], []))

    def take(self, entries: list[bytes], stamp: int) -> Followed | None:
        """Follow entries that lead to a stamp; None, and nothing is followed, if they do not."""
        reached = self.stamp
        for data in entries:
            reached = carried(reached, data)
        if reached != stamp:
            return None
        followed = self.replica.follow([decode_outcome(data) for data in entries])
        self.stamp = stamp
        return followed

    def went_on(self, outcome: Outcome, data: bytes) -> None:
        """Follow what was decided on this very replica, and is in the log as ``data``."""
        self.replica.follow([outcome])
        self.stamp = carried(self.stamp, data)

    def restore(self, row: ReaderGroupRow, stored: StoredState) -> None:
        """The state that stands at ``row``."""
        try:
            self._replica = Replica.restore(stored.snapshot)
            self.stamp = row.snapshot_stamp
            if self.take(stored.entries, row.stamp) is not None:
                return
            why = f"its log does not lead to revision {row.revision}"
        except (ReaderStateDecodeError, ReaderRevisionError) as error:
            why = str(error)
        self._replica = None
        raise UnreadableRecordError(
            f"the state of reader group {row.name!r} cannot be read ({why}); restore the catalog "
            f"from a backup, or remove the group and make it anew: headrace reader rm {row.name}",
            row.name,
        )
