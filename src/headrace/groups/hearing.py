"""Who was not heard for long, though its lease has not ended: perhaps it is dead.

Whoever holds a lease renews it at least every half of its time.  Nobody takes over before it ends,
so until then a process that was killed looks as if it were well; when it was last heard tells.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

import msgspec

from headrace.catalog.leases import Ended
from headrace.groups.findings import moment, moment_words, time_words
from headrace.groups.shapes import Finding, GroupMember, GroupView

SILENT_PART = 0.6
"""Silent for more than this part of its lease, at least one renewal did not come."""
SETTLED_S = 60.0
"""So long after a lease has ended, time alone changes nothing of what is said of its holder."""
FOREVER_US = sys.maxsize
SILENT = "silent"

_moment = lru_cache(maxsize=1)(moment)


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


def same_until(lease: Ended | None, now_us: int) -> int:
    """Up to when it is with the holder of a lease as it is now: well, silent or gone.

    Just after the end of the lease much is still said: that is now and no longer.
    """
    if lease is None:
        return FOREVER_US
    if lease.expires_us <= now_us:
        return FOREVER_US if now_us - lease.expires_us > SETTLED_S * 1e6 else now_us
    if not lease.heard_us or silence_s(lease, now_us) is not None:
        return lease.expires_us - 1
    return lease.heard_us + int(SILENT_PART * (lease.expires_us - lease.heard_us))


def heard(member: GroupMember, lease: Ended, now_us: int) -> GroupMember:
    """A member whose lease is held, with when it was last heard."""
    silent_s = silence_s(lease, now_us)
    if silent_s is None:
        return msgspec.structs.replace(member, heard_at=heard_at(lease))
    why = f"{_silence(silent_s)}; its lease ends {moment_words(lease.expires_us)}"
    return msgspec.structs.replace(member, state=SILENT, why=why, heard_at=heard_at(lease))


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
        if member.state == SILENT
    ]


def _called(member: GroupMember) -> str:
    return f"{member.member} ({member.instance})" if member.instance else member.member


def silent_leader(group: str, lease: Ended, now_us: int) -> Finding:
    """What is said of a leader that was not heard."""
    silent_s = silence_s(lease, now_us) or 0.0
    return Finding(
        finding="leader_silent",
        about=group,
        sentence=_silent_leader(lease.owner, silent_s),
        next=f"if it is dead, another takes over {moment_words(lease.expires_us)}",
        needs_person=False,
    )


def tells_silence(view: GroupView) -> bool:
    """Whether a view tells for how long somebody was not heard."""
    return any(each.finding in _OF_SILENCE for each in view.findings)


def aged(view: GroupView, now_us: int) -> GroupView:
    """A view that :func:`tells_silence`, where only that silence is longer now."""
    now = _moment(now_us)
    members = tuple([_aged(each, now) if each.state == SILENT else each for each in view.members])
    told = iter(silent(view.group, members))
    found = []
    for each in view.findings:
        if each.finding not in _OF_SILENCE:
            pass
        elif each.finding == "member_silent":
            each = next(told)
        elif view.leader and view.leader_heard_at:
            silent_s = (now - view.leader_heard_at).total_seconds()
            sentence = _silent_leader(view.leader, silent_s)
            each = msgspec.structs.replace(each, sentence=sentence)
        found.append(each)
    return msgspec.structs.replace(view, members=members, findings=tuple(found))


_OF_SILENCE = ("member_silent", "leader_silent")


def _aged(member: GroupMember, now: datetime) -> GroupMember:
    if member.heard_at is None:
        return member
    _, _, rest = member.why.partition("; ")
    said = _silence((now - member.heard_at).total_seconds())
    return msgspec.structs.replace(member, why=f"{said}; {rest}")


def _silence(seconds: float) -> str:
    return f"not heard for {time_words(seconds)}"


def _silent_leader(owner: str, seconds: float) -> str:
    return f"its leader {owner} is {_silence(seconds)}"
