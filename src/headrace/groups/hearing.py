"""Who was not heard for long, though its lease has not ended: perhaps it is dead.

Whoever holds a lease renews it at least every half of its time.  Nobody takes over before it ends,
so until then a process that was killed looks as if it were well; when it was last heard tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from headrace.catalog.leases import Ended
from headrace.groups.findings import moment, moment_words, time_words
from headrace.groups.shapes import Finding, GroupMember

SILENT_PART = 0.6
"""Silent for more than this part of its lease, at least one renewal did not come."""


def heard_at(lease: Ended) -> datetime | None:
    """When the holder of a lease was last heard, if that is known."""
    return moment(lease.heard_us) if lease.heard_us else None


def silence_s(lease: Ended, now_us: int) -> float | None:
    """For how long the holder of a lease was not heard, if that is too long; else None."""
    if not lease.heard_us:
        return None
    silent_us = now_us - lease.heard_us
    return (
        silent_us / 1e6 if silent_us > SILENT_PART * (lease.expires_us - lease.heard_us) else None
    )


def heard(member: GroupMember, lease: Ended, now_us: int) -> GroupMember:
    """A member whose lease is held, with when it was last heard."""
    silent_s = silence_s(lease, now_us)
    if silent_s is None:
        return msgspec.structs.replace(member, heard_at=heard_at(lease))
    why = f"not heard for {time_words(silent_s)}; its lease ends {moment_words(lease.expires_us)}"
    return msgspec.structs.replace(member, state="silent", why=why, heard_at=heard_at(lease))


def silent(group: str, members: Iterable[GroupMember]) -> list[Finding]:
    """What is said of members that were not heard."""
    return [
        Finding(
            finding="member_silent",
            about=group,
            sentence=f"{_called(member)} is {member.why}",
            next="if it is dead, others take over then",
            needs_person=False,
        )
        for member in members
        if member.state == "silent"
    ]


def _called(member: GroupMember) -> str:
    return f"{member.member} ({member.instance})" if member.instance else member.member


def silent_leader(group: str, lease: Ended, now_us: int) -> Finding:
    """What is said of a leader that was not heard."""
    silent_s = silence_s(lease, now_us) or 0.0
    return Finding(
        finding="leader_silent",
        about=group,
        sentence=f"its leader {lease.owner} is not heard for {time_words(silent_s)}",
        next=f"if it is dead, another takes over {moment_words(lease.expires_us)}",
        needs_person=False,
    )
