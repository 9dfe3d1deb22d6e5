"""A unit as its leader knows it: progress, place in the split and merge graph, and assignment.

The assignment's status moves along the table and never back.  In particular no report makes a
unit that is being revoked `granted` again, however long the borrower goes on acking: a member
that answers but does not let go runs into the deadline of the revocation.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from headrace.groups.progress import Progress
from headrace.groups.progress.ranges import AckedRanges
from headrace.groups.shared.core.messages import Unit


class AssignmentStatus(StrEnum):
    """Where an assignment of a unit to a borrower stands."""

    FREE = "free"
    GRANTING = "granting"
    GRANTED = "granted"
    REVOKING = "revoking"
    REVOKED = "revoked"


FREE: Final = AssignmentStatus.FREE
GRANTING: Final = AssignmentStatus.GRANTING
GRANTED: Final = AssignmentStatus.GRANTED
"""Aliases for the hot path: looking up a member of an enumeration takes longer than all the rest of
a comparison."""

ASSIGNMENT_TRANSITIONS: Final[dict[tuple[AssignmentStatus, str], AssignmentStatus]] = {
    (AssignmentStatus.FREE, "assign"): AssignmentStatus.GRANTING,
    (AssignmentStatus.GRANTING, "progress"): AssignmentStatus.GRANTED,
    (AssignmentStatus.GRANTING, "revoke"): AssignmentStatus.REVOKING,
    (AssignmentStatus.GRANTING, "withdraw"): AssignmentStatus.FREE,
    (AssignmentStatus.GRANTED, "revoke"): AssignmentStatus.REVOKING,
    (AssignmentStatus.REVOKING, "final progress durable"): AssignmentStatus.REVOKED,
    (AssignmentStatus.REVOKED, "revoke_finished"): AssignmentStatus.FREE,
    (AssignmentStatus.GRANTING, "borrower gone"): AssignmentStatus.FREE,
    (AssignmentStatus.GRANTED, "borrower gone"): AssignmentStatus.FREE,
    (AssignmentStatus.REVOKING, "borrower gone"): AssignmentStatus.FREE,
    (AssignmentStatus.REVOKED, "borrower gone"): AssignmentStatus.FREE,
}
"""Every change of an assignment; `withdraw` takes back a grant that nobody has been told of."""


class UnitState:
    """One unit of the group."""

    __slots__ = (
        "acked",
        "attempts",
        "borrower",
        "claimed",
        "deadline_ms",
        "end",
        "final",
        "finished",
        "gone",
        "head",
        "markers",
        "ready",
        "resend_ms",
        "status",
        "token",
        "unit",
    )

    def __init__(self, unit: Unit, acked: AckedRanges, token: int = 0) -> None:
        self.unit = unit
        self.acked = acked
        self.attempts: dict[int, int] = {}
        self.token = token
        self.head = 0
        self.end: int | None = None
        self.markers: tuple[int, ...] = ()
        self.finished = False
        self.gone = False
        """Deleted from the log; forgotten as soon as nobody has it."""
        self.ready = False
        """Whether all its predecessors are finished."""
        # the assignment
        self.status = AssignmentStatus.FREE
        self.borrower = ""
        self.claimed = False
        self.final = False
        self.resend_ms = 0
        self.deadline_ms = 0

    @property
    def progress(self) -> Progress:
        """How far the group has come, as a record."""
        return Progress.of(self.acked, self.attempts)

    @property
    def active(self) -> bool:
        """Whether somebody should own it."""
        return self.ready and not self.finished

    @property
    def consumed(self) -> bool:
        """Whether it is ready, sealed, and everything in it is acked."""
        return self.end is not None and self.acked.floor >= self.end and self.ready

    @property
    def lagging(self) -> bool:
        """Whether there is something in it that is not acked."""
        return self.acked.floor < self.head

    @property
    def lag(self) -> int:
        """How many of its events are not acked: what balancing by lag weighs."""
        offsets = self.head - self.acked.floor - self.acked.acked_above_floor
        return max(0, offsets - sum(offset not in self.acked for offset in self.markers))

    def is_claimed_by(self, borrower: str, token: int) -> bool:
        """Whether a claim that has become durable is the one it waits for."""
        mine = self.borrower == borrower and self.token == token
        return mine and self.status is not FREE

    def add(self, progress: Progress) -> None:
        """Merge stored progress: transactions store acks that the leader does not know of."""
        self.acked.merge(progress.acked())
        for offset, count in progress.attempts:
            if offset not in self.acked:
                self.attempts[offset] = max(count, self.attempts.get(offset, 0))

    def move(self, cause: str) -> None:
        """Change the assignment's status by the table."""
        self.status = ASSIGNMENT_TRANSITIONS[self.status, cause]

    def snapshot(self) -> tuple[object, ...]:
        """Everything about it as comparable values."""
        return (
            self.unit,
            self.acked.floor,
            self.acked.to_tuples(),
            tuple(sorted(self.attempts.items())),
            self.token,
            self.head,
            self.end,
            self.markers,
            self.finished,
            self.gone,
            self.ready,
            self.status,
            self.borrower,
            self.claimed,
            self.final,
            self.resend_ms,
            self.deadline_ms,
        )
