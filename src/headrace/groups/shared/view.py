"""Shared groups as everybody sees them: leader, members, units, lag and what is wanting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from headrace.catalog.overview import Claimed
from headrace.catalog.records import Records
from headrace.catalog.streams import Stream
from headrace.groups import findings, hearing, lag
from headrace.groups.kinds import Basis, KindOfGroups
from headrace.groups.names import SHARED, SHARED_BUCKET, FullName
from headrace.groups.picture import CatalogReach, Picture, UnitFrame
from headrace.groups.shapes import Finding, GroupLag, GroupMember, GroupView, UnitView
from headrace.groups.shared.keys import (
    FINISHED,
    SESSIONS_BUCKET,
    STATUS_BUCKET,
    finished_bucket,
    leader_lease,
    session_lease,
    unit_of_claim,
)
from headrace.subjects import overlaps, parse_share


class SeenMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as its leader wrote it down."""

    member: str
    session: str
    units: int
    share: int
    benched_ms: int = 0
    unreached: str = ""


class SeenGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What matters here of what a leader last wrote down."""

    leader: str
    token: int
    members: tuple[SeenMember, ...] = ()


class _Subscribed(msgspec.Struct, frozen=True):
    text: str
    shared: bool = False


class _Session(msgspec.Struct, frozen=True):
    name: str
    subscriptions: tuple[_Subscribed, ...] = ()


_statuses = Records(SeenGroup, "the status of shared group")
_sessions = Records(_Session, "session", "remove it: headrace session rm {name}")


class Shared(KindOfGroups):
    """Groups that a leader leads."""

    family = SHARED
    buckets = (SHARED_BUCKET, STATUS_BUCKET)

    def whole(self, name: FullName | None) -> Sequence[str]:
        return [SESSIONS_BUCKET, FINISHED if name is None else finished_bucket(name.key)]

    def reach(
        self,
        name: FullName,
        entries: Mapping[str, Mapping[str, bytes]],  # noqa: ARG002
        own: object,  # noqa: ARG002
    ) -> CatalogReach:
        return CatalogReach(
            readers=[name.key], streams=None, leases=[leader_lease(name.key), session_lease("")]
        )

    def view(self, name: FullName, picture: Picture) -> GroupView:
        lease = picture.held(leader_lease(name.key))
        seen = _seen(name.key, picture)
        if lease is None or seen is None or seen.token != lease.token:
            seen = SeenGroup(leader="", token=0)
        units = _units(name, picture, {m.member: m.session for m in seen.members})
        text = str(name)
        behind = lag.total(text, SHARED, units)
        members = _members(name, picture, seen)
        return GroupView(
            group=text,
            kind=SHARED,
            filter=name.scope,
            members=members,
            members_active=sum(member.instance is not None for member in members),
            members_wanted=len(members),
            leader=None if lease is None else lease.owner,
            leader_heard_at=None if lease is None else hearing.heard_at(lease),
            lag=behind,
            units=tuple(units),
            findings=(
                *_findings(name, picture, members, behind),
                *(_unreached(name, each) for each in seen.members if each.unreached),
            ),
        )

    def basis(self, name: FullName, picture: Picture) -> Basis:
        key, leases = name.key, picture.leases
        seen = _seen(key, picture)
        subscribed = _subscribers(picture).get((name.group, name.scope), ())
        sessions = (*subscribed, *(() if seen is None else (m.session for m in seen.members)))
        return Basis(
            (
                seen,
                sessions,
                picture.entries.get(finished_bucket(key)),
                _overlapping(picture, name.scope),
                picture.claims.get(key),
                picture.progress.get(key),
            ),
            (key,),
            (leases.get(leader_lease(key)), *[leases.get(session_lease(s)) for s in sessions]),
        )


KIND = Shared()


def _seen(key: str, picture: Picture) -> SeenGroup | None:
    """What the leader of a group last wrote down."""
    stored = picture.entries[STATUS_BUCKET].get(key)
    if stored is None:
        return None
    read = partial(_statuses.decode_or, key, otherwise=None)
    return picture.memory.made(("status", key), stored, read)


def _units(name: FullName, picture: Picture, present: Mapping[str, str]) -> list[UnitView]:
    reader = name.key
    claims = picture.claims.get(reader, {})
    finished = picture.entries.get(finished_bucket(reader), {})
    streams = _overlapping(picture, name.scope)
    basis = name.scope, streams, claims, finished, present
    found = picture.units(picture.memory.made(("units", name), basis, _frames), reader)
    return [_unless_finished(unit) for unit in found] if finished else found


def _unless_finished(unit: UnitView) -> UnitView:
    """A unit of which nothing is lost if it is finished: what was trimmed there counted no more."""
    if not unit.lost_to_trimming or unit.state != "finished":
        return unit
    return msgspec.structs.replace(unit, lost_to_trimming=0)


_FramesBasis: TypeAlias = tuple[
    str, tuple[Stream, ...], Claimed, Mapping[str, bytes], Mapping[str, str]
]
"""Filter; streams; claims; units that are finished; sessions of the members that are there."""


def _frames(basis: _FramesBasis) -> list[UnitFrame]:
    """The units but for what was acked of them."""
    filter, streams, stored, finished, present = basis
    claims = {unit_of_claim(unit): held for unit, held in stored.items()}
    found = []
    for stream in streams:
        exact = lag.is_exact([filter], stream)
        for segment in stream.segments:
            unit = f"{stream.name}/{segment.number}"
            owner, token = claims.get(unit, (None, 0))
            over = bool(finished) and finished.get(unit) == str(segment.id).encode()
            mine = owner in present and not over
            frame = UnitView(
                unit=unit,
                stream=stream.name,
                member=present[owner] if mine and owner is not None else None,
                instance=owner if mine else None,
                token=token,
                state="finished" if over else "owned" if mine else "unowned",
                exact=exact,
            )
            found.append((segment, frame))
    return found


def _overlapping(picture: Picture, filter: str) -> tuple[Stream, ...]:
    """The streams that may hold events of a filter."""
    return picture.memory.made(
        ("streams of", filter), picture.public, lambda public: _of_filter(public, filter)
    )


def _of_filter(public: Sequence[Stream], filter: str) -> tuple[Stream, ...]:
    return tuple(
        stream
        for stream in public
        if any(overlaps(filter, subject) for subject in stream.config.subjects)
    )


def _members(name: FullName, picture: Picture, seen: SeenGroup) -> tuple[GroupMember, ...]:
    found = []
    for each in seen.members:
        lease = picture.leases.get(session_lease(each.session))
        if lease is None or lease.expires_us > picture.now_us:
            one = GroupMember(
                member=each.session,
                instance=each.member,
                state="active" if each.units else "stands by",
                units=each.units,
                share=each.share,
                why=_why_idle(each),
            )
            found.append(one if lease is None else hearing.heard(one, lease, picture.now_us))
    present = {member.member for member in found}
    for session in _subscribers(picture).get((name.group, name.scope), ()):
        lease = picture.leases.get(session_lease(session))
        if session in present or lease is None:
            continue
        if lease.expires_us > picture.now_us:
            waits = GroupMember(
                member=session,
                state="stands by",
                why=f"{lease.owner} runs it; no leader has taken it in",
            )
            found.append(hearing.heard(waits, lease, picture.now_us))
            continue
        found.append(
            GroupMember(
                member=session,
                state="lost",
                lost_at=findings.moment(lease.expires_us),
                why=f"{lease.owner} was lost at {findings.moment_words(lease.expires_us)}",
            )
        )
    return tuple(found)


def _why_idle(member: SeenMember) -> str:
    if member.units:
        return ""
    if member.benched_ms:
        return f"evicted; gets nothing for another {member.benched_ms / 1000:.0f} s"
    if member.share:
        return "its units are on their way"
    return "there are more members than segments with something to read"


def _subscribers(picture: Picture) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """{(group, filter): sessions that are subscribed}."""
    return picture.memory.made("subscribers", picture.entries[SESSIONS_BUCKET], _subscribed)


def _subscribed(stored: Mapping[str, bytes]) -> dict[tuple[str, str], tuple[str, ...]]:
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for key, data in stored.items():
        session = _sessions.decode_or(key, data, None)
        for each in () if session is None else session.subscriptions:
            parsed = parse_share(each.text) if each.shared else None
            if parsed is not None:
                found[parsed] = (*found.get(parsed, ()), key)
    return found


def unreached(session: str, why: str) -> str:
    """What is said of a member that cannot dial its leader."""
    return (
        f"member {session} takes part through the catalog, which is slower: it cannot dial its "
        f"leader ({why})"
    )


def _unreached(name: FullName, member: SeenMember) -> Finding:
    return Finding(
        finding="leader_unreached",
        about=str(name),
        sentence=unreached(member.session, member.unreached),
        next="give programs addresses that the others reach: --listen, --advertise",
    )


def _findings(
    name: FullName, picture: Picture, members: Sequence[GroupMember], behind: GroupLag
) -> list[Finding]:
    found = []
    for member in members:
        if member.state == "lost":
            found.append(
                Finding(
                    finding="member_lost",
                    about=str(name),
                    sentence=f"session {member.member!r} was lost: {member.why}, and nobody runs "
                    "it since",
                    next="start its program again, or remove it: headrace session rm "
                    f"{member.member}",
                )
            )
    lease = picture.leases.get(leader_lease(name.key))
    if lease is not None and lease.expires_us <= picture.now_us:
        found.append(
            Finding(
                finding="leader_lost",
                about=str(name),
                sentence=f"its leader {lease.owner} was lost at "
                f"{findings.moment_words(lease.expires_us)}, and nobody leads it since",
                next=f"start a member: headrace subscribe '{name}'",
                needs_person=behind.events > 0,
            )
        )
    elif lease is not None and hearing.silence_s(lease, picture.now_us) is not None:
        found.append(hearing.silent_leader(str(name), lease, picture.now_us))
    elif not any(member.instance for member in members) and not found:
        found.append(
            Finding(
                finding="no_members",
                about=str(name),
                sentence="nobody consumes it",
                next=f"start a member: headrace subscribe '{name}'",
                needs_person=behind.events > 0,
            )
        )
    return [*found, *hearing.silent(str(name), members), *findings.of_lag(behind)]
