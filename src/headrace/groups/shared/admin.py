"""Shared groups and sessions from outside: declare, list, look at, explain, delete."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec

from headrace.catalog import Tx, claims, leases, markers, streams
from headrace.catalog.records import left_out
from headrace.groups import decisions
from headrace.groups.decisions import Decision
from headrace.groups.decisions.keys import record_key
from headrace.groups.letter_names import stream_of
from headrace.groups.progress import Progress
from headrace.groups.shared import ended_units, properties, sessions, starts
from headrace.groups.shared.core.settings import (
    Balance,
    InvalidSharedSettingsError,
    LeaderSettings,
)
from headrace.groups.shared.findings import findings
from headrace.groups.shared.properties import BorrowerStatus, GroupProperties, LeaderStatus
from headrace.groups.shared.runtime import state
from headrace.groups.shared.sessions import SessionInfo
from headrace.log import internal
from headrace.log.log import Log
from headrace.subjects import check_name, parse_filter
from headrace.subjects.arguments import checked_calls

if TYPE_CHECKING:
    from headrace.host import Host

P = ParamSpec("P")
T = TypeVar("T")


class UnitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One segment as a group sees it."""

    unit: str
    owner: str | None
    token: int
    floor: int
    head: int
    lag_events: int
    finished: bool


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group, who leads it, who takes part, and how far it has come."""

    properties: GroupProperties
    leader: str | None
    """The peer that leads it; None when nobody does."""
    leader_token: int
    members: tuple[BorrowerStatus, ...]
    units: tuple[UnitInfo, ...]
    decisions: tuple[Decision, ...]
    """The last ones, oldest first."""
    findings: tuple[str, ...] = ()
    """What is not as it should be, in words."""

    @property
    def lag_events(self) -> int:
        """Events that nobody has acked."""
        return sum(unit.lag_events for unit in self.units)


class SharedExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why members have what they have."""

    group: str
    leader: str | None
    members: tuple[tuple[str, int, str], ...]
    """(member, units, why it is idle)"""
    decisions: tuple[Decision, ...]
    """The last ones, oldest first."""
    findings: tuple[str, ...] = ()
    """What is not as it should be, in words."""


def look(tx: Tx, group: GroupProperties, limit: int = decisions.LIMIT) -> GroupInfo:
    """Everything that the catalog knows about a group."""
    lease = leases.get(tx, state.lease_name(group.key))
    status = properties.get_status(tx, group.key)
    if status is None or lease is None or status.token != lease.token:
        status = LeaderStatus(leader="", token=0, at_us=0)
    owners = {
        state.unit_of_claim(claim.unit): (claim.owner, claim.token)
        for claim in claims.of_group(tx, group.key)
    }
    over = ended_units.finished(tx, group.key)
    rows = {row.unit: row for row in state.load(tx, group.key, group.filter).units}
    present = {member.member for member in status.members}
    units = []
    for stream in starts.matching(tx, group.filter):
        for segment in stream.segments:
            unit = f"{stream.name}/{segment.number}"
            stored = rows.get(unit)
            acked = (stored.progress if stored else Progress(segment.tail)).acked()
            owner, token = owners.get(unit, (None, 0))
            finished = over.get(unit) == segment.id
            units.append(
                UnitInfo(
                    unit=unit,
                    owner=owner if owner in present and not finished else None,
                    token=token,
                    floor=acked.floor,
                    head=segment.head,
                    lag_events=markers.events_in(tx, segment, acked.missing(segment.head)),
                    finished=finished,
                )
            )
    return GroupInfo(
        properties=group,
        leader=lease.owner if lease else None,
        leader_token=lease.token if lease else 0,
        members=status.members,
        units=tuple(units),
        decisions=tuple(decisions.read(tx, record_key(group.key), limit)) if limit else (),
        findings=tuple(findings(tx, group, status)),
    )


def explain(info: GroupInfo) -> SharedExplanation:
    """The reasons, for people who ask."""
    return SharedExplanation(
        group=info.properties.key,
        leader=info.leader,
        members=tuple((m.member, m.units, m.why_idle) for m in info.members),
        decisions=info.decisions,
        findings=info.findings,
    )


@checked_calls()
class Groups:
    """Administration of shared groups, blocking; each call is one transaction."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def declare(
        self,
        group: str,
        filter: str,
        *,
        start: starts.Start = "now",
        balance: Balance | str | None = None,
        scale_for_members: bool = False,
        settings: LeaderSettings | None = None,
    ) -> GroupProperties:
        """Make a group ahead of its subscribers; it collects from `start` on.

        Declaring it again in the same way changes nothing.
        """
        chosen = settings or LeaderSettings()
        if balance is not None:
            if balance not in list(Balance):
                known = " or ".join(repr(each.value) for each in Balance)
                raise InvalidSharedSettingsError(f"balance is {balance!r}; it has to be {known}")
            chosen = msgspec.structs.replace(chosen, balance=Balance(balance))
        wanted = GroupProperties(
            group=check_name(group, "group name"),
            filter=parse_filter(filter),
            start=starts.describe(starts.check_start(start)),
            scale_for_members=scale_for_members,
            settings=chosen,
        )
        places = starts.places_at(self._log, wanted.filter, start)
        return self._log.catalog.write(
            lambda tx: properties.declare(tx, wanted, start, places, exist_ok=False),
            locks=properties.declare_locks(wanted.key),
        )

    def configure(
        self,
        /,
        group: str,
        filter: str | None = None,
        *,
        settings: LeaderSettings | None = None,
        balance: Balance | str | None = None,
        scale_for_members: bool | None = None,
        **changes: int,
    ) -> GroupProperties:
        """Change how a group is led while it runs; what is not given stays.

        Single settings go by their names (``stall_timeout_ms=120_000``), or all of them at once.
        """
        key = self.get(group, filter).properties.key
        return self._log.catalog.write(
            lambda tx: properties.configure(
                tx,
                key,
                settings=settings,
                balance=None if balance is None else Balance(balance),
                scale_for_members=scale_for_members,
                **changes,
            ),
            locks=properties.declare_locks(key),
        )

    def list(self) -> tuple[GroupInfo, ...]:
        """Every group."""

        def look_at_all(tx: Tx) -> tuple[GroupInfo, ...]:
            found = []
            for group in properties.all_groups(tx):
                with left_out(f"shared group {group.key!r}"):
                    found.append(look(tx, group, 0))
            return tuple(found)

        return self._log.catalog.read(look_at_all, snapshot=True)

    def get(
        self, group: str, filter: str | None = None, *, limit: int = decisions.LIMIT
    ) -> GroupInfo:
        """One group, with its last ``limit`` decisions.

        Its filter says which, if there are several of that name.
        """
        decisions.check_limit(limit)
        wanted = None if filter is None else parse_filter(filter)
        return self._log.catalog.read(
            lambda tx: look(tx, properties.find(tx, group, wanted), limit), snapshot=True
        )

    def explain(
        self, group: str, filter: str | None = None, *, limit: int = decisions.LIMIT
    ) -> SharedExplanation:
        """Why members are idle, and what was decided."""
        return explain(self.get(group, filter, limit=limit))

    def delete(self, group: str, filter: str | None = None, *, force: bool = False) -> int:
        """Delete a group with its progress; one with live members only with `force`.

        Its dead letters go with it; returns how many there were.
        """
        key = self._log.catalog.read(
            lambda tx: properties.find_key(tx, group, filter), snapshot=True
        )

        def run(tx: Tx) -> None:
            properties.delete(tx, key, force=force)

        return self._with_dead_letters([key], run, properties.delete_locks(key))

    def sessions(self) -> tuple[SessionInfo, ...]:
        """Every session."""
        return self._log.catalog.read(lambda tx: tuple(sessions.all_sessions(tx)), snapshot=True)

    def session(self, name: str) -> SessionInfo:
        """One session."""
        return self._log.catalog.read(lambda tx: sessions.require(tx, name), snapshot=True)

    def remove_session(self, name: str, *, force: bool = False) -> int:
        """Delete a session and the progress of its private subscriptions.

        Their dead letters go with it; returns how many there were.  One that somebody runs is
        deleted only with `force`.
        """
        record = self._log.catalog.read(
            lambda tx: sessions.removable(tx, name), snapshot=True
        ).record
        groups = [
            sessions.private_group(name, each.filter)
            for each in record.subscriptions
            if not each.shared
        ]

        def run(tx: Tx) -> None:
            sessions.remove(tx, name, force=force)

        return self._with_dead_letters(groups, run, sessions.locks(name))

    def _with_dead_letters(
        self, groups: Iterable[str], delete: Callable[[Tx], None], locks: Iterable[str]
    ) -> int:
        """Delete something, and with it the dead-letter streams that only it has."""
        names = [stream_of(group) for group in groups]
        found = self._log.catalog.read(
            lambda tx: [each for name in names if (each := streams.get(tx, name)) is not None],
            snapshot=True,
        )

        def run(tx: Tx) -> int:
            delete(tx)
            here = [each for name in names if (each := streams.get(tx, name)) is not None]
            gone = [each for each in here if internal.delete(tx, each.name)]
            return sum(segment.events for each in gone for segment in each.segments)

        owned = [streams.LOCK_ALL, *(streams.lock(each.id) for each in found)] if names else []
        letters = self._log.catalog.write(run, locks=(*locks, *owned))
        for each in found:
            self._log.routes.forget(each.name)
        return letters


def _in_thread(
    method: Callable[Concatenate[Groups, P], T],
) -> Callable[Concatenate[SharedGroups, P], Coroutine[Any, Any, T]]:
    """A method of :class:`Groups` as a coroutine that runs it on a thread."""

    async def call(self: SharedGroups, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._host.in_thread(method, Groups(self._host.log), *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


class SharedGroups:
    """``hr.shared_groups``: see :class:`Groups`."""

    def __init__(self, host: Host) -> None:
        self._host = host

    declare = _in_thread(Groups.declare)
    configure = _in_thread(Groups.configure)
    list = _in_thread(Groups.list)
    get = _in_thread(Groups.get)
    explain = _in_thread(Groups.explain)
    delete = _in_thread(Groups.delete)
    sessions = _in_thread(Groups.sessions)
    session = _in_thread(Groups.session)
    remove_session = _in_thread(Groups.remove_session)
