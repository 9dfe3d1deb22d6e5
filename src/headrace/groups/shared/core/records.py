"""What a leader asks of its runtime, and what it is told in return.

A leader's durable state is one row per unit: the claim (owner and token), the progress and
whether the unit is finished.  A :class:`Commit` changes any number of rows in one transaction, in
this order, and only while the leader's token is still the newest of the group's lease:

1. each progress is *merged* into the stored one (acks made in a transaction of their own may have
   been stored without the leader's knowing, so nothing is ever overwritten);
2. each claim is written, if its token is higher than the stored one or it is the same again;
3. units to be forgotten are deleted.

Doing it twice changes nothing, so a commit whose answer is lost is simply sent again.  The answer
to a claim brings the merged progress: that is what the new owner starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from headrace.groups.decisions.core.record import What
from headrace.groups.progress import Progress
from headrace.groups.shared.core.messages import FromLeader, Unit


class SegmentInfo(msgspec.Struct, frozen=True):
    """A segment of the log as the leader needs to know it."""

    unit: Unit
    head: int
    """The offset of the next event."""
    end: int | None = None
    """Where a sealed segment ends; None while it is open."""
    start: int = 0
    """Where the group begins in a segment that it meets for the first time.  It must follow from
    what is stored about the group, so that every leader would say the same."""
    predecessors: tuple[Unit, ...] = ()
    markers: tuple[int, ...] = ()
    """Offsets that hold no events."""


class Listing(msgspec.Struct, frozen=True):
    """The segments that changed since the last listing; the first one holds all."""

    revision: int
    segments: tuple[SegmentInfo, ...]
    gone: tuple[Unit, ...] = ()
    """Segments that the log has deleted."""


class StoredUnit(msgspec.Struct, frozen=True):
    """One row of a group's durable state."""

    unit: Unit
    token: int = 0
    progress: Progress = Progress()
    finished: bool = False


class StoredGroup(msgspec.Struct, frozen=True):
    """A group's durable state."""

    units: Sequence[StoredUnit] = ()
    floor: int = 0
    """The tokens of units that are new begin above it: units that are gone had such tokens."""


class ClaimRecord(msgspec.Struct, frozen=True):
    """A unit changes hands."""

    unit: Unit
    borrower: str
    unit_token: int


class ProgressRecord(msgspec.Struct, frozen=True):
    """A group has come this far in a unit."""

    unit: Unit
    progress: Progress
    finished: bool = False


class LeaderDecision(msgspec.Struct, frozen=True):
    """Why something was done, for people who ask."""

    at_ms: int
    what: What
    unit: Unit | None
    borrower: str | None
    reason: str
    other: str = ""
    """The borrower that is to have the unit."""


# --- effects ---


class ToBorrower(msgspec.Struct, frozen=True):
    """Send a message to a borrower."""

    message: FromLeader


class Commit(msgspec.Struct, frozen=True):
    """Make this durable; answer with ``committed`` or ``commit_failed``."""

    number: int
    token: int
    progress: tuple[ProgressRecord, ...]
    claims: tuple[ClaimRecord, ...]
    forget: tuple[Unit, ...] = ()


class ListSegments(msgspec.Struct, frozen=True):
    """List the segments, or those that changed since; answer with ``segments_listed``."""


class RenewLease(msgspec.Struct, frozen=True):
    """Extend the lease; answer with ``lease_renewed`` or ``lease_lost``."""

    token: int
    ttl_ms: int
    sent_ms: int


class StepDown(msgspec.Struct, frozen=True):
    """This leader is over; release the lease if it is still held."""

    reason: str


class Gather(msgspec.Struct, frozen=True):
    """The next commit waits for more reports: call ``gathered`` when this time is over.

    Reports that come meanwhile may be handed to ``keep``.
    """

    for_ms: int
    judging: bool
    """Whether reports are timed: then they are also read at the middle of this time."""


LeaderEffect: TypeAlias = ToBorrower | Commit | Gather | ListSegments | RenewLease | StepDown
