"""Leases of readers: joining under a name, renewing, leaving, and finding the dead.

Each reader holds a lease; the state remembers its token.  Whoever looks and finds that a lease has
run out puts that reader offline, in a transaction that looks again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from headrace.catalog import Tx, leases
from headrace.catalog.leases import Ended, Lease
from headrace.groups.readers.core import failure
from headrace.groups.readers.core.failure import DeadReader, ReaderLease
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import RemoveReader, ReturnReader
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime import elsewhere
from headrace.groups.readers.runtime.transaction import Committed, GroupCommit


class NameHeld(msgspec.Struct, frozen=True):
    """Somebody else has the name of a reader, and is alive."""

    lease: Lease
    now_us: int
    ttl_ms: int
    """How long that lease lasts from one renewal to the next."""


def name_held(tx: Tx, lease: Lease) -> NameHeld:
    """Who has a name; its lease may be longer or shorter than that of whoever wants it."""
    found = leases.last_owner(tx, lease.name)
    heard_us = 0 if found is None else found.heard_us
    ttl_ms = (lease.expires_us - heard_us) // 1000 if heard_us else 0
    return NameHeld(lease, tx.now_us(), ttl_ms)


class JoinedAs(msgspec.Struct, frozen=True):
    """A reader is online, and has again what an earlier life of it had."""

    token: int
    lease_token: int
    committed: Committed


class DeadLook(msgspec.Struct, frozen=True):
    """What a look for dead readers found."""

    dead: tuple[DeadReader, ...]
    next_expiry_in_ms: int | None
    held: tuple[Ended, ...]
    """The leases of the group's readers."""
    now_us: int


def join(
    commit: GroupCommit,
    reader: str,
    instance: str,
    ttl_ms: int,
    over: Lease | None,
    number: int | None = None,
) -> JoinedAs | NameHeld:
    """Take the name, unless somebody alive has it, and join; one transaction.

    ``number`` is the program's, for groups that are at home in a region.
    """
    elsewhere.check_joining(commit.tx, commit.name, number)
    tx, name = commit.tx, commit.name.lease(reader)
    lease = leases.acquire(tx, name, instance, ttl_ms, over)
    if lease is None:
        held = leases.get(tx, name)
        if held is not None:
            return name_held(tx, held)
        lease = leases.seize(tx, name, instance, ttl_ms)  # it ran out within this transaction
    elsewhere.come_back(commit)
    committed = commit.put(ReturnReader(reader, lease.token))
    return JoinedAs(committed.outcome.revision, lease.token, committed)


def leave(commit: GroupCommit, reader: str, token: int, lease_token: int, why: str) -> Committed:
    """Leave the group and give the name up."""
    committed = commit.put(RemoveReader(reader, token=token, why=why))
    leases.release(commit.tx, commit.name.lease(reader), lease_token)
    return committed


def look(
    tx: Tx,
    name: ReaderGroupName,
    state: ReaderGroupState,
    unrenewed: Collection[Lease] = (),
) -> DeadLook:
    """Who is dead, by the catalog's clock or by leases that were watched (``unrenewed``).

    Also when to look again.  Only reads.
    """
    now_us = tx.now_us()
    now_ms = now_us // 1000
    found = leases.owned(tx, name.leases)
    over = {(lease.name, lease.token, lease.expires_us) for lease in unrenewed}
    held = {
        lease.name.removeprefix(name.leases): ReaderLease(
            lease.token,
            lease.expires_us // 1000,
            (lease.name, lease.token, lease.expires_us) in over,
        )
        for lease in found
    }
    expiry_ms = failure.next_expiry_ms(state, held, now_ms)
    return DeadLook(
        tuple(failure.dead_readers(state, held, now_ms)),
        None if expiry_ms is None else expiry_ms - now_ms,
        tuple(found),
        now_us,
    )


def bury(
    commit: GroupCommit, unrenewed: Collection[Lease] = ()
) -> list[tuple[DeadReader, Committed]]:
    """Put every dead reader offline where it has acked to."""
    found = look(commit.tx, commit.name, commit.state, unrenewed)
    return [
        (dead, commit.put(RemoveReader(dead.reader, token=dead.token, why=dead.why)))
        for dead in found.dead
    ]


def renew(tx: Tx, due: Sequence[tuple[str, int, int]]) -> list[bool]:
    """Prolong (lease, token, ttl_ms) that nobody else took; says which were.

    One that has run out is prolonged as well: until somebody puts the reader offline, or takes its
    name, everything is still its own.
    """
    now_us = tx.now_us()
    held = {lease.name: lease for lease in leases.hold(tx, [name for name, _, _ in due])}
    kept = [name in held and held[name].token == token for name, token, _ in due]
    prolonged = [
        (now_us + ttl_ms * 1000, name)
        for (name, _, ttl_ms), is_kept in zip(due, kept, strict=True)
        if is_kept
    ]
    if prolonged:
        leases.set_expiry(tx, prolonged)
    return kept
