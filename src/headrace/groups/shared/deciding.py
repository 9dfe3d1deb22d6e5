"""What is decided about a shared group within transactions: its properties, and who leads it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.catalog import Query, Tx, leases
from headrace.groups import decisions
from headrace.groups.decisions import Decision, What
from headrace.groups.decisions.core.record import moment
from headrace.groups.decisions.keys import record_key
from headrace.groups.decisions.store import record_linked


def locks(group: str) -> list[str]:
    """The locks under which decisions about a group may be recorded."""
    return decisions.locks(record_key(group))


def asking(group: str) -> tuple[Query, ...]:
    """The queries of whoever records something about a group."""
    return decisions.asking(record_key(group))


def configured(tx: Tx, group: str, reason: str) -> None:
    """The group was made, or is led otherwise from now on."""
    key = record_key(group)
    fresh = [Decision(what=What.CONFIGURED, reason=reason)]
    decisions.record(tx, key, fresh, after=decisions.count(tx, key))


def elected(tx: Tx, group: str, leader: str, token: int, before: leases.Ended | None) -> None:
    """Somebody leads a group; ``before`` is who did, if that one let its lease run out."""
    told = []
    reason = "nobody led the group"
    if before is not None and before.owner != leader:
        reason = f"it takes over from {before.owner}, which was lost"
        if not before.told:
            told.append(leader_lost(before))
    told.append(Decision(what=What.ELECTED, reason=reason, target=leader, token=token))
    record_linked(tx, record_key(group), told)


def leader_lost(lease: leases.Ended) -> Decision:
    """A leader has let its lease run out."""
    return Decision(
        what=What.LOST,
        reason=f"the leader was last heard {moment(lease.heard_us)}; its lease ran out",
        source=lease.owner,
        token=lease.token,
        at_us=lease.expires_us,
    )


def led(tx: Tx, group: str, told: Iterable[Decision], asked_ms: int) -> None:
    """What a leader has decided, by its own clock, on which ``asked_ms`` is now."""
    behind_us = tx.now_us() - asked_ms * 1000
    timed = [msgspec.structs.replace(each, at_us=each.at_us + behind_us) for each in told]
    record_linked(tx, record_key(group), timed)
