"""The failure detector: which readers are dead, and what becomes of their segments.

Theory of operation
-------------------
Every reader holds a lease by the catalog's clock and renews it; the state remembers the token of
the lease that it joined with.  A reader is dead when that lease has run out or has passed on
(the process came back and took a new one).  Any living reader may find out, and puts the dead one
offline at its last acked positions.

The catalog's clock may be put back.  So whoever looks also counts by its own clock, and takes a
lease for over that stood unchanged for its time to live.

This is decided and carried out in one transaction with a look at the leases, so nobody is buried
that renewed in time.  A reader that was only slow and is still at work finds its claims gone:
its acks are refused and do not count, and it is told to start again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.groups.readers.core.segments import SegmentId, falls, positions
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import RemoveReader


class ReaderLease(msgspec.Struct, frozen=True):
    """The lease of a reader's name as the catalog has it."""

    token: int
    expires_ms: int
    unrenewed: bool = False
    """Whether somebody has watched it for its time to live, and it was not renewed.  That holds
    whatever the catalog's clock says, which may have been put back."""


class DeadReader(msgspec.Struct, frozen=True):
    """A reader to be put offline, and why."""

    reader: str
    token: int
    why: str


def dead_readers(
    state: ReaderGroupState, leases: Mapping[str, ReaderLease], now_ms: int
) -> list[DeadReader]:
    """Who is dead at this time of the catalog, in the order of joining."""
    found = []
    for member in state.members.values():
        lease = leases.get(member.name)
        if lease is None:
            why = "it has no lease"
        elif lease.token != member.lease_token:
            why = f"its lease passed on, from token {member.lease_token} to {lease.token}"
        elif lease.expires_ms <= now_ms:
            why = f"its lease ran out {now_ms - lease.expires_ms} ms ago"
        elif lease.unrenewed:
            why = "its lease was not renewed in its time to live"
        else:
            continue
        found.append(DeadReader(member.name, member.token, why))
    return found


def next_expiry_ms(
    state: ReaderGroupState, leases: Mapping[str, ReaderLease], now_ms: int
) -> int | None:
    """When the next living reader's lease runs out if it is not renewed."""
    return min(
        (
            leases[name].expires_ms
            for name in state.members
            if name in leases and leases[name].expires_ms > now_ms
        ),
        default=None,
    )


def offline(
    state: ReaderGroupState, dead: DeadReader, acked: Mapping[SegmentId, int]
) -> RemoveReader:
    """The update that puts a dead reader offline.

    `acked` holds the durably acked floors; where it has none, or less than is recorded already,
    the recorded position stands.
    """
    left = {
        segment: acked[segment]
        for segment, holding in state.owned(dead.reader).items()
        if segment in acked and not falls(holding.offset, acked[segment])
    }
    return RemoveReader(dead.reader, positions(left), dead.token)
