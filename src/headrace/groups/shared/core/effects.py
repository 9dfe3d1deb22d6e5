"""What a borrower asks of its session and its agent."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headrace.groups.progress import Progress
from headrace.groups.shared.core.messages import FromBorrower, Ping, Ranges, Unit


class ToRegistry(msgspec.Struct, frozen=True):
    """Send a message to whoever leads the group, through the local registry."""

    message: FromBorrower


class ToLeader(msgspec.Struct, frozen=True):
    """Send a message to a leader."""

    leader: str
    message: FromBorrower


class Beat(msgspec.Struct, frozen=True):
    """Send the pings of many borrowers to the leaders of one program: one heartbeat for all.

    Each proves one borrower alive, and each answer the leader of one group, so that a leader that
    is gone or has dropped somebody is known by what it does not answer.
    """

    leader: str
    pings: tuple[Ping, ...]


class Install(msgspec.Struct, frozen=True):
    """Session: start delivering a unit from this progress on."""

    borrower: str
    unit: Unit
    unit_token: int
    progress: Progress
    leader_token: int = 0
    """The token of the leader that granted it, and to which its progress is reported."""


class Release(msgspec.Struct, frozen=True):
    """Session: hand out nothing more of the unit; report `final` when nothing is in flight."""

    borrower: str
    unit: Unit
    unit_token: int


class Remove(msgspec.Struct, frozen=True):
    """Session: forget the unit.  Acks that were not confirmed do not count if `fenced`."""

    borrower: str
    unit: Unit
    unit_token: int
    fenced: bool
    reason: str


class Confirmed(msgspec.Struct, frozen=True):
    """Session: these acks are durable."""

    borrower: str
    unit: Unit
    unit_token: int
    acked: Ranges


class Gone(msgspec.Struct, frozen=True):
    """Agent: this borrower is over; make a new one if `recreate`."""

    borrower: str
    recreate: bool
    reason: str


Effect: TypeAlias = ToRegistry | ToLeader | Beat | Install | Release | Remove | Confirmed | Gone
