"""What is decided about a partitioned group within transactions: its config, and who is pinned.

What its instances decide by themselves, they hand to the recorder of their program.
"""

from __future__ import annotations

from headrace.catalog import Query, Tx, claims, entries, leases
from headrace.groups import decisions
from headrace.groups.decisions import Decision, What, ranges
from headrace.groups.decisions.core.record import moment
from headrace.groups.decisions.store import record_linked
from headrace.groups.names import PARTITIONED, FullName
from headrace.groups.partitioned.core.pins import ClaimOwner
from headrace.groups.partitioned.names import ELASTIC_BUCKET, STATIC_BUCKET, GroupName


def key_of(name: GroupName) -> str:
    """The name of a group in the record of decisions."""
    return str(FullName(PARTITIONED, name.stream, name.group))


def locks(name: GroupName) -> list[str]:
    """The locks under which decisions about a group may be recorded."""
    return decisions.locks(key_of(name))


def asking(name: GroupName) -> list[Query]:
    """The queries of whoever records something about a group."""
    found = [entries.asking(bucket, name.key) for bucket in (ELASTIC_BUCKET, STATIC_BUCKET)]
    return [*found, *decisions.asking(key_of(name))]


def is_there(tx: Tx, name: GroupName) -> bool:
    """Whether there is such a group: nothing is recorded about one that was deleted."""
    buckets = (ELASTIC_BUCKET, STATIC_BUCKET)
    tx.foresee(*asking(name))
    return any(entries.get(tx, bucket, name.key) is not None for bucket in buckets)


def configured(tx: Tx, name: GroupName, told: list[Decision]) -> None:
    """The config was changed, and what follows from that."""
    [first] = decisions.record(tx, key_of(name), told[:1])
    decisions.record(tx, key_of(name), told[1:], cause=first.number)


def record(tx: Tx, name: GroupName, told: list[Decision]) -> None:
    """Record all that a transaction decides about a group at once, since links are looked up."""
    if told and is_there(tx, name):
        record_linked(tx, key_of(name), told)


def came(member: str, instance: str) -> Decision:
    """An instance has joined."""
    reason = f"an instance of {member} was started"
    return Decision(what=What.JOINED, reason=reason, target=member, instance=instance)


def pinned(
    tx: Tx, name: GroupName, member: str, instance: str, token: int, before: leases.Ended | None
) -> list[Decision]:
    """An instance has the pin; ``before`` is whose it was, if that one let it run out."""
    told = []
    reason = f"nobody held the pin of {member}"
    if before is not None and before.owner != instance:
        reason = f"it takes over from {before.owner}, which was lost"
        if not before.told:
            told.append(lost(tx, name, member, before))
    told.append(
        Decision(what=What.PINNED, reason=reason, target=member, instance=instance, token=token)
    )
    return told


def lost(tx: Tx, name: GroupName, member: str, pin: leases.Ended) -> Decision:
    """The pin of an instance has run out."""
    owner = ClaimOwner(member, pin.owner, pin.token)
    held = [claim.unit for claim in claims.owned_by(tx, name.key, owner.encode())]
    return Decision(
        what=What.LOST,
        reason=f"{pin.owner} of {member} was last heard {moment(pin.heard_us)}; its pin ran out",
        units=ranges(held),
        source=member,
        instance=pin.owner,
        token=pin.token,
        at_us=pin.expires_us,
    )


def unpinned(member: str, instance: str, token: int, reason: str, *, left: bool) -> Decision:
    """An instance has given its pin back, to leave or to stand by."""
    return Decision(
        what=What.LEFT if left else What.UNPINNED,
        reason=reason or "it gave up the pin",
        source=member,
        instance=instance,
        token=token,
    )
