"""What a borrower and a leader say to each other.

Every message names the group, the borrower and the leader's token, so that a message of a former
leader, or to one, is known as such wherever it turns up.  What concerns a unit carries the unit's
token as well: the claim under which it is owned.  A borrower's identifier is never used twice.

Progress travels as what was acked since the last confirmed report, and is only ever added to:
reports may be lost, repeated or overtaken without harm.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headrace.groups.progress import Progress

Unit: TypeAlias = str
"""A segment, by stream and number, as claims name it: ``orders/3``."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open ranges of offsets."""

NO_TOKEN = 0
"""The leader's token as a borrower states it before it knows one."""


def unit_of(stream: str, number: int) -> Unit:
    """The name of a segment as a unit."""
    return f"{stream}/{number}"


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """What all messages carry."""

    group: str
    borrower: str
    token: int


class UnitReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a borrower says about one of its units."""

    unit: Unit
    unit_token: int
    acked: Ranges = ()
    """Acked, and not yet confirmed by the leader."""
    attempts: Ranges = ()
    """(offset, deliveries so far) of events that were refused."""
    answered: bool = False
    """The consumer has refused events since the last report: it acks nothing, but it works."""
    final: bool = False
    """The session is done with the unit: nothing in flight, nothing will follow."""


# --- from the borrower ---


class LeaderWanted(Message, frozen=True, array_like=True, gc=False):
    """Whoever leads this group: take me in."""

    session: str


class Ping(Message, frozen=True, array_like=True, gc=False):
    """Still here.  `number` comes back in the response."""

    number: int

    @property
    def response(self) -> PingResponse:
        """The answer to it."""
        return PingResponse(self.group, self.borrower, self.token, self.number)


class UpdateProgress(Message, frozen=True, array_like=True, gc=False):
    """This was acked.  An empty report of a unit says that its grant has arrived."""

    report: int
    units: tuple[UnitReport, ...]


class RevokeFinished(Message, frozen=True, array_like=True, gc=False):
    """The borrower has deleted everything about the unit."""

    unit: Unit
    unit_token: int


class Disconnect(Message, frozen=True, array_like=True, gc=False):
    """Good-bye, with the last progress."""

    report: int
    units: tuple[UnitReport, ...]


# --- from the leader ---


class LeaderConnectResponse(Message, frozen=True, array_like=True, gc=False):
    """You are taken in; `leader` is where to send."""

    leader: str


class PingResponse(Message, frozen=True, array_like=True, gc=False):
    """The answer to a ping."""

    number: int


class Grant(Message, frozen=True, array_like=True, gc=False):
    """The unit is yours, from here on."""

    unit: Unit
    unit_token: int
    progress: Progress


class Revoke(Message, frozen=True, array_like=True, gc=False):
    """Finish what is in flight, and report."""

    unit: Unit
    unit_token: int


class Revoked(Message, frozen=True, array_like=True, gc=False):
    """Your final progress is durable; forget the unit."""

    unit: Unit
    unit_token: int


class ProgressConfirmed(Message, frozen=True, array_like=True, gc=False):
    """Everything in that report is durable."""

    report: int


class Invalidate(Message, frozen=True, array_like=True, gc=False):
    """You are unknown here, or no longer wanted: begin again."""

    reason: str


FromBorrower: TypeAlias = LeaderWanted | Ping | UpdateProgress | RevokeFinished | Disconnect
FromLeader: TypeAlias = (
    LeaderConnectResponse | PingResponse | Grant | Revoke | Revoked | ProgressConfirmed | Invalidate
)
