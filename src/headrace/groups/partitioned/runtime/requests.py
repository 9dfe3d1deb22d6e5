"""What instances ask of the catalog, carried out many in one transaction.

A request holds all that its transaction needs, since that runs on another thread and may run
again: the instance itself is only told of the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog import Tx, entries, leases, streams
from headrace.errors import HeadraceError
from headrace.groups.decisions import Decision
from headrace.groups.partitioned import deciding
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
from headrace.groups.partitioned.core.pins import ClaimOwner, ClaimRefused
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import ownership
from headrace.groups.partitioned.runtime.ownership import STEP_DOWN_BUCKET, Moment, Taken

if TYPE_CHECKING:
    from headrace.groups.partitioned.runtime.member import MemberInstance

FORESEEN_MAX = 100
"""Instances for which is asked ahead, at most."""

_log = logging.getLogger(__name__)

Request = AcquirePin | ReleasePin | ClaimPartition | ReleasePartition


class Asked(msgspec.Struct, frozen=True, eq=False):
    """A request of an instance."""

    joined: MemberInstance
    request: Request
    pin_token: int
    """The pin token under which it is made."""
    units: tuple[tuple[str, str, int], ...] = ()
    """(group, unit, token) that a partition stands for, where that is not itself."""
    why: str = ""
    """Why a pin is given back."""
    leaves: bool = False
    """Whether it is given back for good."""

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


Told = tuple["MemberInstance", Event, Taken | None]
"""An instance, what it hears, and the units of a partition that it has claimed."""


def owner_of(joined: MemberInstance, pin_token: int) -> ClaimOwner:
    """The instance under a pin."""
    return ClaimOwner(joined.core.member, joined.core.instance, pin_token)


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
                locks |= {leases.lock(pin), *deciding.locks(name)}
            case ReleasePin():
                locks |= {
                    leases.lock(pin),
                    entries.lock(STEP_DOWN_BUCKET),
                    *deciding.locks(name),
                }
            case ClaimPartition(partition, token) | ReleasePartition(partition, token):
                owner = owner_of(asked.joined, token)
                shared = segments.get(name.stream, ())
                locks |= set(ownership.claim_locks(name, owner, (partition,), shared))
    return sorted(locks)


def _foresee(tx: Tx, batch: Sequence[Asked]) -> None:
    """Ask for the pins that are wanted, in one order, and for what was decided before."""
    acquiring = [a.joined for a in batch if isinstance(a.request, AcquirePin)][:FORESEEN_MAX]
    pins = sorted(joined.pin for joined in acquiring)
    tx.foresee(
        *(query for joined in acquiring for query in deciding.asking(joined.name)),
        *(leases.asking_last_owner(pin) for pin in pins),
        *(leases.asking_taking(tx, pin) for pin in pins),
        leases.asking_floor(),
    )


def carry_out(
    tx: Tx,
    batch: Sequence[Asked],
    segments: Mapping[str, Sequence[int]],
    over: Mapping[str, leases.Lease],
) -> list[Told]:
    """Do what was asked, and say what came of it; what fails has no answer.

    ``over`` are pins that nobody renews, as they were last seen.
    """
    _foresee(tx, batch)
    found: list[Told] = []
    told: dict[GroupName, list[Decision]] = {}
    claiming: dict[tuple[MemberInstance, int], list[int]] = {}
    for asked in batch:
        joined, name, core = asked.joined, asked.joined.name, asked.joined.core
        match asked.request:
            case AcquirePin(asked_ms):
                decided = told.setdefault(name, [])
                found.append((joined, _acquired(tx, joined, asked_ms, over, decided), None))
            case ReleasePin(token):
                if ownership.release_pin(tx, name, core.member, token):
                    about = (core.member, core.instance, token)
                    gave_up = deciding.unpinned(*about, asked.why, left=asked.leaves)
                    told.setdefault(name, []).append(gave_up)
                found.append((joined, PinReleased(token), None))
            case ReleasePartition(partition, token):
                owner = owner_of(joined, asked.pin_token)
                ownership.release(tx, name, owner, partition, token, asked.units)
                found.append((joined, Released(partition, token), None))
            case ClaimPartition(partition, pin_token):
                claiming.setdefault((joined, pin_token), []).append(partition)
    for name, decided in told.items():
        deciding.record(tx, name, decided)
    moment = Moment(tx)
    for (joined, pin_token), partitions in claiming.items():
        shared = frozenset(segments.get(joined.name.stream, ()))
        found.extend(_claims(moment, joined, pin_token, partitions, shared))
    return found


def _acquired(
    tx: Tx,
    joined: MemberInstance,
    asked_ms: int,
    over: Mapping[str, leases.Lease],
    decided: list[Decision],
) -> PinGranted | PinHeld:
    core = joined.core
    if not joined.announced:
        decided.append(deciding.came(core.member, core.instance))
    before = leases.last_owner(tx, joined.pin)
    answer = ownership.acquire_pin(
        tx, joined.pin, core.instance, core.timings.pin_ttl_ms, over.get(joined.pin)
    )
    if answer.token is None:
        return PinHeld(answer.holder, answer.expires_in_ms)
    about = (core.member, core.instance, answer.token)
    decided += deciding.pinned(tx, joined.name, *about, before)
    return PinGranted(answer.token, asked_ms)


def _claims(
    moment: Moment,
    joined: MemberInstance,
    pin_token: int,
    partitions: list[int],
    segments: frozenset[int],
) -> list[Told]:
    owner = owner_of(joined, pin_token)
    try:
        answers = ownership.claim(moment, joined.name, owner, partitions, segments)
    except HeadraceError as error:
        _log.warning("group %s, member %s: %s", joined.name.key, owner.member, error)
        return []
    found: list[Told] = []
    for partition, made in zip(partitions, answers, strict=True):
        if isinstance(made, ClaimRefused):
            denied = ClaimDenied(partition, pin_token, made.refusal, made.owner)
            found.append((joined, denied, None))
        else:
            found.append((joined, Claimed(partition, pin_token, made.token), made))
    return found
