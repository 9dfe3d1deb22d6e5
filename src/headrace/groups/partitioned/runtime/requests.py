"""What instances ask of the catalog, carried out many in one transaction.

A request holds all that its transaction needs, since that runs on another thread and may run
again: the instance itself is only told of the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from headrace.catalog import Tx, entries, leases, streams
from headrace.errors import Fenced, HeadraceError
from headrace.groups.partitioned.core.membership import Instance
from headrace.groups.partitioned.core.messages import (
    AcquirePin,
    ClaimDenied,
    Claimed,
    ClaimPartition,
    Event,
    PinGranted,
    PinHeld,
    PinReleased,
    Released,
    ReleasePartition,
    ReleasePin,
)
from headrace.groups.partitioned.core.pins import ClaimRefused, Owner
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import ownership
from headrace.groups.partitioned.runtime.ownership import STEP_DOWN_BUCKET, Moment, Taken

_log = logging.getLogger(__name__)

Request = AcquirePin | ReleasePin | ClaimPartition | ReleasePartition


class Joined(Protocol):
    """An instance in this process, as the hub sees it."""

    @property
    def name(self) -> GroupName:
        """Its group."""
        ...

    @property
    def core(self) -> Instance:
        """The core, which decides."""
        ...

    @property
    def pin(self) -> str:
        """The lease of its member."""
        ...

    @property
    def held(self) -> list[tuple[str, str, int]]:
        """(group, unit, token) of what it consumes."""
        ...

    def feed(self, event: Event) -> None:
        """Let the instance hear of something, and carry out what it asks for."""
        ...

    def lost(self, units: Sequence[Fenced]) -> None:
        """Some units are not its own any more, by what the catalog says."""
        ...

    def took(self, taken: Taken) -> None:
        """A partition was claimed; its units, before the instance hears of it."""
        ...


class Asked(msgspec.Struct, frozen=True, eq=False):
    """A request of an instance."""

    joined: Joined
    request: Request
    pin_token: int
    """The pin token under which it is made."""
    units: tuple[tuple[str, str, int], ...] = ()
    """(group, unit, token) that a partition stands for, where that is not itself."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for a request that is made again, so that it is queued once."""
        request = self.request
        match request:
            case AcquirePin():
                return self.joined, AcquirePin
            case ReleasePin(token):
                return self.joined, ReleasePin, token
            case ClaimPartition(partition, token) | ReleasePartition(partition, token):
                return self.joined, type(request), partition, token


Answer = tuple[Joined, Event, Taken | None]


def owner_of(joined: Joined, pin_token: int) -> Owner:
    """The instance under a pin."""
    return Owner(joined.core.member, joined.core.instance, pin_token)


def segments_of(tx: Tx, *, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The segments of streams of which members read shares."""
    found = {name: streams.get(tx, name) for name in names}
    return {
        name: () if stream is None else tuple(s.number for s in stream.segments)
        for name, stream in found.items()
    }


def locks_of(batch: Sequence[Asked], segments: Mapping[str, Sequence[int]]) -> list[str]:
    """The locks for the transaction of a batch."""
    locks: set[str] = set()
    for asked in batch:
        name, pin = asked.joined.name, asked.joined.pin
        match asked.request:
            case AcquirePin():
                locks.add(leases.lock(pin))
            case ReleasePin():
                locks |= {leases.lock(pin), entries.lock(STEP_DOWN_BUCKET)}
            case ClaimPartition(partition, token) | ReleasePartition(partition, token):
                owner = owner_of(asked.joined, token)
                shared = segments.get(name.stream, ())
                locks |= set(ownership.claim_locks(name, owner, (partition,), shared))
    return sorted(locks)


def carry_out(
    tx: Tx, batch: Sequence[Asked], segments: Mapping[str, Sequence[int]]
) -> list[Answer]:
    """Do what was asked, and say what came of it; what fails has no answer."""
    found: list[Answer] = []
    claiming: dict[tuple[Joined, int], list[int]] = {}
    for asked in batch:
        joined, name, core = asked.joined, asked.joined.name, asked.joined.core
        match asked.request:
            case AcquirePin(asked_ms):
                answer = ownership.acquire_pin(
                    tx, joined.pin, core.instance, core.timings.pin_ttl_ms
                )
                if answer.token is not None:
                    found.append((joined, PinGranted(answer.token, asked_ms), None))
                else:
                    found.append((joined, PinHeld(answer.holder, answer.expires_in_ms), None))
            case ReleasePin(token):
                ownership.release_pin(tx, name, core.member, token)
                found.append((joined, PinReleased(token), None))
            case ReleasePartition(partition, token):
                owner = owner_of(joined, asked.pin_token)
                ownership.release(tx, name, owner, partition, token, asked.units)
                found.append((joined, Released(partition, token), None))
            case ClaimPartition(partition, pin_token):
                claiming.setdefault((joined, pin_token), []).append(partition)
    moment = Moment(tx)
    for (joined, pin_token), partitions in claiming.items():
        shared = frozenset(segments.get(joined.name.stream, ()))
        found.extend(_claims(moment, joined, pin_token, partitions, shared))
    return found


def _claims(
    moment: Moment,
    joined: Joined,
    pin_token: int,
    partitions: list[int],
    segments: frozenset[int],
) -> list[Answer]:
    owner = owner_of(joined, pin_token)
    try:
        answers = ownership.claim(moment, joined.name, owner, partitions, segments)
    except HeadraceError as error:
        _log.warning("group %s, member %s: %s", joined.name.key, owner.member, error)
        return []
    found: list[Answer] = []
    for partition, made in zip(partitions, answers, strict=True):
        if isinstance(made, ClaimRefused):
            denied = ClaimDenied(partition, pin_token, made.refusal, made.owner)
            found.append((joined, denied, None))
        else:
            found.append((joined, Claimed(partition, pin_token, made.token), made))
    return found
