"""Pins and claims in the catalog: the transactions of the instances of a member.

Each function runs inside a write transaction and lets ``pins`` judge over what it reads.  Many
requests of one process share a transaction; each is answered for itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from headrace.catalog import Query, Tx, claims, entries, leases, progress, streams
from headrace.errors import Fenced, InvalidNameError, UnknownGroupError
from headrace.groups import homes
from headrace.groups.consumer.types import OwnedUnit
from headrace.groups.partitioned.core.config import GroupConfig
from headrace.groups.partitioned.core.pins import (
    ClaimOwner,
    ClaimRefused,
    PartitionClaim,
    Pin,
    check_claim,
    judge_claim,
)
from headrace.groups.partitioned.names import ELASTIC_BUCKET, STATIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime.units import (
    Layout,
    claimed_config,
    layout_of,
    read_stream,
    unit_of_partition,
    units_of_share,
)
from headrace.groups.partitioned.stored import elastic_config, static_config

STEP_DOWN_BUCKET = "group-step-downs"
"""Requests to step down, by group and member; the value is the pin token that is meant."""


# --- reading -------------------------------------------------------------------------------


def asking_config(name: GroupName) -> list[Query]:
    """The queries of :func:`read_config`."""
    return [entries.asking(bucket, name.key) for bucket in (STATIC_BUCKET, ELASTIC_BUCKET)]


def asking_group(name: GroupName) -> list[Query]:
    """The queries for a group and how its partitions lie."""
    return [*asking_config(name), *streams.asking(name.stream), homes.asking(name.key)]


def read_config(tx: Tx, name: GroupName) -> GroupConfig | None:
    """The config of a group, static or elastic."""
    tx.foresee(*asking_config(name))
    for bucket, decode in ((STATIC_BUCKET, static_config), (ELASTIC_BUCKET, elastic_config)):
        entry = entries.get(tx, bucket, name.key)
        if entry is not None and entry.value is not None:
            return decode(name, entry.value)
    return None


class View(msgspec.Struct, frozen=True):
    """The config of a group as instances see it; `number` counts the looks of a hub."""

    number: int
    config: GroupConfig | None
    """The config by which units are claimed."""
    group: GroupConfig | None = None
    """The config as its administrator gave it."""
    layout: Layout = Layout.SEGMENTS
    unproven: bool = False
    """Whether other regions have to be asked before it is consumed."""
    elsewhere: str = ""
    """Why a group that is there is not consumed in this region."""


def read_view(
    tx: Tx, asked: int | None, name: GroupName, number: int
) -> tuple[homes.HomeStanding, View]:
    """A group and how its partitions lie, if it and its stream are there and it may be consumed.

    ``asked`` is the program's number of :class:`headrace.groups.homes.HomeAsking`.
    """
    tx.foresee(*asking_group(name))
    config = read_config(tx, name)
    source = streams.get(tx, name.stream)
    stands = homes.standing(tx, name.key, asked)
    if config is None or source is None or stands.waits:
        elsewhere = "" if config is None or source is None else stands.waits
        return stands, View(number, None, unproven=stands.unproven, elsewhere=elsewhere)
    layout = layout_of(config, source.config)
    return stands, View(number, claimed_config(config, layout), config, layout)


def read_pins(tx: Tx, names: Iterable[str]) -> dict[str, Pin]:
    """Pins by the name of their lease; those that nobody holds are left out."""
    return {
        lease.name: Pin(lease.owner, lease.token, _ms(lease.expires_us))
        for lease in leases.not_released(tx, list(names))
    }


def read_claims(tx: Tx, name: GroupName) -> dict[int, PartitionClaim]:
    """All claims of a group, by partition (or by share)."""
    return {
        int(claim.unit): PartitionClaim(_owner(claim.owner), claim.token)
        for claim in claims.of_group(tx, name.key)
    }


def _owner(text: str | None) -> ClaimOwner | None:
    try:
        return None if text is None else ClaimOwner.decode(text)
    except InvalidNameError:
        return None  # not written by a member; its token still counts


def _ms(us: int) -> int:
    return us // 1000


# --- pins ----------------------------------------------------------------------------------


class PinAnswer(msgspec.Struct, frozen=True):
    """Who has a pin: ``token`` is that of the asking instance, else ``holder`` has it."""

    token: int | None
    holder: str = ""
    expires_in_ms: int = 0


def acquire_pin(
    tx: Tx, pin: str, instance: str, ttl_ms: int, over: leases.Lease | None = None
) -> PinAnswer:
    """Take a pin that is free, or that was watched to be ``over``."""
    lease = leases.acquire(tx, pin, instance, ttl_ms, over)
    if lease is not None:
        return PinAnswer(lease.token)
    held = leases.get(tx, pin)
    if held is None:  # it ran out within this transaction
        return PinAnswer(None, "", 1)
    return PinAnswer(None, held.owner, expires_in_ms(held.expires_us, tx.now_us()))


def expires_in_ms(expires_us: int, now_us: int) -> int:
    """Milliseconds until a lease is over, rounded up."""
    return max(1, -((now_us - expires_us) // 1000))


def renew_pins(tx: Tx, pins: Sequence[tuple[str, int, int]]) -> list[bool]:
    """Prolong (pin, token, ttl_ms), also those that ran out, unless somebody else has them.

    Says which it has prolonged.  Nobody else acted under a pin that still has this token; but other
    members may have taken partitions of one that had run out.
    """
    now = tx.now_us()
    held = {lease.name: lease for lease in leases.hold(tx, [pin for pin, _, _ in pins])}
    answers = []
    due = []
    for pin, token, ttl_ms in pins:
        found = held.get(pin)
        kept = found is not None and found.token == token
        answers.append(kept)
        if kept:
            due.append((now + ttl_ms * 1000, pin))
    if due:
        leases.set_expiry(tx, due)
    return answers


def claims_under(tx: Tx, name: GroupName, owner: ClaimOwner) -> tuple[tuple[int, int], ...]:
    """(partition, token) of all claims that the catalog has for an owner."""
    held = claims.owned_by(tx, name.key, owner.encode())
    return tuple((int(claim.unit), claim.token) for claim in held)


def release_pin(tx: Tx, name: GroupName, member: str, token: int) -> bool:
    """Give a pin up, and with it the request to do so; false if it was not held any more."""
    released = leases.release(tx, name.pin(member), token)
    key = step_down_key(name, member)
    if entries.get(tx, STEP_DOWN_BUCKET, key) is not None:
        entries.delete(tx, STEP_DOWN_BUCKET, key)
    return released


def step_down_key(name: GroupName, member: str) -> str:
    """Where a request to step down stands."""
    return f"{name.key}.{member}"


# --- claims --------------------------------------------------------------------------------


class Taken(msgspec.Struct, frozen=True):
    """A partition (or share) that was claimed, and the units that it stands for."""

    partition: int
    token: int
    units: tuple[OwnedUnit, ...]


class Moment:
    """A cache for the claims of one transaction: the config and the stream of each group."""

    def __init__(self, tx: Tx) -> None:
        self.tx = tx
        self._groups: dict[GroupName, Group | None] = {}

    def group(self, name: GroupName) -> Group | None:
        """The group, if it and its streams are there."""
        if name not in self._groups:
            self._groups[name] = self._look(name)
        return self._groups[name]

    def _look(self, name: GroupName) -> Group | None:
        self.tx.foresee(*asking_group(name))
        config = read_config(self.tx, name)
        source = streams.get(self.tx, name.stream)
        if config is None or source is None or homes.waits_here(self.tx, name.key):
            return None
        read = read_stream(name, config)
        stream = source if read == name.stream else streams.get(self.tx, read)
        if stream is None:
            return None
        layout = layout_of(config, source.config)
        return Group(config, claimed_config(config, layout), layout, stream)


class Group(msgspec.Struct, frozen=True):
    """A group within a transaction."""

    config: GroupConfig
    judged: GroupConfig
    """The config by which claims are judged."""
    layout: Layout
    stream: streams.Stream
    """The stream that its members read."""


def claim(
    moment: Moment,
    name: GroupName,
    owner: ClaimOwner,
    partitions: Sequence[int],
    segments: Container[int] = (),
) -> list[Taken | ClaimRefused]:
    """Claim partitions for an owner, each judged for itself, under :func:`claim_locks`."""
    tx = moment.tx
    tx.foresee(
        *(claims.asking(name.key, str(partition)) for partition in partitions),
        claims.asking_floor(name.key),
        *leases.asking_not_released([name.pin(owner.member)]),
        *asking_group(name),
    )
    group = moment.group(name)
    if group is not None and group.layout is Layout.SEGMENTS:
        ids = (group.stream.segment(partition) for partition in partitions)
        tx.foresee(*(q for s in ids if s is not None for q in progress.asking(name.key, [s.id])))
    now_ms = _ms(tx.now_us())
    own_pin = _pin(tx, name, owner.member)
    floor = claims.floor(tx, name.key)
    answers: list[Taken | ClaimRefused] = []
    new: list[tuple[str, int]] = []
    for partition in partitions:
        row = claims.get(tx, name.key, str(partition))
        owner_before, last = (None, floor) if row is None else (_owner(row.owner), row.token)
        held = PartitionClaim(owner_before, last) if last else None
        holder = None if held is None else held.owner
        verdict = judge_claim(
            partition,
            owner,
            claimant_pin=own_pin,
            config=None if group is None else group.judged,
            claim=held,
            owner_pin=None if holder is None else _pin(tx, name, holder.member),
            now_ms=now_ms,
        )
        if isinstance(verdict, ClaimRefused):
            answers.append(verdict)
            continue
        assert group is not None
        if holder != owner:
            new.append((str(partition), verdict.token))
        units = _units(tx, name, group, owner, partition, verdict.token, segments)
        answers.append(Taken(partition, verdict.token, units))
    for unit, token in new:
        claims.hand_over(tx, name.key, unit, owner.encode(), token)
    return answers


def _units(
    tx: Tx,
    name: GroupName,
    group: Group,
    owner: ClaimOwner,
    partition: int,
    token: int,
    segments: Container[int],
) -> tuple[OwnedUnit, ...]:
    if group.layout is Layout.SEGMENTS:
        return (unit_of_partition(tx, name, group.config, group.stream, partition, token),)
    found = units_of_share(tx, name, group.config, group.stream, owner, held={}, locked=segments)
    return tuple(found)


def _pin(tx: Tx, name: GroupName, member: str) -> Pin | None:
    return read_pins(tx, [name.pin(member)]).get(name.pin(member))


def follow(
    tx: Tx,
    name: GroupName,
    owner: ClaimOwner,
    share: int,
    token: int,
    held: Mapping[int, int],
    segments: Container[int],
) -> list[OwnedUnit]:
    """Segments of a share that became readable; ``held`` are those it has, with their tokens.

    Raises Fenced when the share is no longer the owner's.
    """
    claims.check(tx, name.key, str(share), token)
    group = Moment(tx).group(name)
    if group is None:
        raise UnknownGroupError(name.stream, name.group)
    return units_of_share(tx, name, group.config, group.stream, owner, held=held, locked=segments)


def release(
    tx: Tx,
    name: GroupName,
    owner: ClaimOwner,
    partition: int,
    token: int,
    units: Iterable[tuple[str, str, int]] = (),
) -> bool:
    """Give a partition back, with the units (group, unit, token) of a share; false if too late."""
    held = claims.get(tx, name.key, str(partition))
    known = None if held is None else PartitionClaim(_owner(held.owner), held.token)
    for group, unit, unit_token in units:
        try:
            claims.release(tx, group, unit, unit_token)
        except Fenced:
            continue
    try:
        check_claim(name.key, partition, owner, token, known)
    except Fenced:
        return False
    claims.release(tx, name.key, str(partition), token)
    return True


def claim_locks(
    name: GroupName, owner: ClaimOwner, partitions: Iterable[int], segments: Iterable[int] = ()
) -> list[str]:
    """The locks for :func:`claim`, :func:`follow` and :func:`release`.

    ``segments`` are those of the stream, where the members read shares of it: a takeover must not
    pass an ack that is being committed.
    """
    share = name.share(owner.member)
    return [
        name.lock,
        leases.lock(name.pin(owner.member)),
        *(claims.lock(name.key, str(partition)) for partition in partitions),
        *(claims.lock(share, str(segment)) for segment in segments),
    ]
