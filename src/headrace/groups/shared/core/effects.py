"""What a borrower asks of its session and its agent."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headrace.groups.progress import Progress
from headrace.groups.shared.core.messages import FromBorrower, Ranges, Unit


class ToRegistry(msgspec.Struct, frozen=True):
    """Send a message to whoever leads the group, through the local registry."""

    message: FromBorrower


class ToLeader(msgspec.Struct, frozen=True):
    """Send a message to a leader."""

    leader: str
    message: FromBorrower


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


Effect: TypeAlias = ToRegistry | ToLeader | Install | Release | Remove | Confirmed | Gone
