"""What is not as it should be in a shared group, from leases that have ended or are late."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.catalog import Tx, leases
from headrace.groups.decisions.core.record import moment
from headrace.groups.shared import sessions
from headrace.groups.shared.properties import GroupProperties, LeaderStatus
from headrace.groups.shared.runtime.state import lease_name
from headrace.groups.shared.view import unreached


def findings(tx: Tx, group: GroupProperties, status: LeaderStatus) -> Iterator[str]:
    """Who was lost, or was not heard for too long, and since when."""
    lease, now_us = leases.last_owner(tx, lease_name(group.key)), tx.now_us()
    if lease is not None and lease.expires_us <= now_us:
        yield (
            f"its leader {lease.owner} was lost: last heard {moment(lease.heard_us)}, its lease "
            f"ran out {moment(lease.expires_us)}; the next member that subscribes leads"
        )
    elif lease is not None and _is_late(lease, group, now_us):
        yield (
            f"its leader {lease.owner} was last heard {moment(lease.heard_us)}; if it stays silent "
            f"until {moment(lease.expires_us).removeprefix('at ')}, another takes over"
        )
    seen = set()
    for member in status.members:
        if member.session in seen:
            continue
        seen.add(member.session)
        if member.unreached:
            yield unreached(member.session, member.unreached)
        session = leases.ended(tx, sessions.lease_name(member.session))
        if session is not None:
            yield (
                f"member {member.session} was lost: {session.owner} was last heard "
                f"{moment(session.heard_us)}"
            )


def _is_late(lease: leases.Ended, group: GroupProperties, now_us: int) -> bool:
    """Whether two heartbeats of the leader have not come."""
    return bool(lease.heard_us) and (
        now_us - lease.heard_us > 2_000 * group.settings.heartbeat_ms + 500_000
    )
