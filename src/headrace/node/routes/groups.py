"""Looking at groups of every kind."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.groups import decisions, names
from headrace.groups.decisions import LIMIT_MAX, Decision, What
from headrace.groups.findings import moment
from headrace.groups.shapes import Finding, GroupLag, GroupMember, GroupView, UnitView
from headrace.log.events import to_us
from headrace.node.core.past import OwnedThen, as_it_was
from headrace.node.history import GROUP
from headrace.node.in_flight import UnitLine, with_in_flight
from headrace.node.lines import group_line, seen_groups
from headrace.node.problems import Problem, not_there
from headrace.node.routes.table import Call, Paged, Route, page_of
from headrace.node.shapes import DecisionLine, GroupLine, Look, decision_line

PAST_MAX = LIMIT_MAX


class GroupPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the list of groups."""

    groups: tuple[GroupLine, ...]
    count: int
    look_age_s: float


class GroupsQuery(Paged, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which groups."""

    stream: str = ""
    kind: str = ""


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A group without its units, which have pages of their own."""

    line: GroupLine
    lag: GroupLag
    members: tuple[GroupMember, ...]
    findings: tuple[Finding, ...]
    units_count: int
    units_by_state: dict[str, int]
    seen_at: datetime
    look_age_s: float


class UnitPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a group's units."""

    units: tuple[UnitLine, ...]
    count: int


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a moment; of a group: lag in events, lag in seconds, acked a second."""

    at_s: int
    figures: tuple[float, ...]


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of which time."""

    seconds: Annotated[int, Meta(ge=60, le=86_400)] = 3_600


class DecisionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which decisions."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    before: Annotated[int, Meta(ge=1)] | None = None
    """Only those with a smaller number: the page before."""
    what: str = ""
    member: str = ""
    q: str = ""


class PastQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At which moment."""

    at: datetime


class PastAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it was."""

    group: str
    at: datetime
    leader: str | None
    units: tuple[OwnedThen, ...]
    members: tuple[str, ...]
    known_from_at: datetime | None
    last: DecisionLine | None
    """The last decision before that moment."""


async def group_of(call: Call) -> tuple[Look, GroupView]:
    """The group in the path, if whoever asks sees it."""
    look = await call.node.look()
    name = call.params["group"]
    found = look.whole(name)
    if found is None:
        await call.node.observer.next(0.5)
        look = await call.node.look()
        found = look.whole(name)
    if found is None or not call.who.sees_group(found, look):
        raise not_there(f"group {name[:200]!r}")
    return look, found


async def listed(call: Call) -> GroupPage:
    look = await call.node.look()
    query: GroupsQuery = call.query
    rows = [
        group_line(look, call.node.observer.history, each)
        for each in seen_groups(look, call.who)
        if (not query.stream or query.stream in (each.stream, *each.streams))
        and query.kind in ("", each.kind)
    ]
    part, count = page_of(rows, query, lambda row: row.group)
    age_s = round(call.node.observer.age_s, 3)
    return GroupPage(groups=tuple(part), count=count, look_age_s=age_s)


async def one(call: Call) -> GroupAnswer:
    look, view = await group_of(call)
    states: dict[str, int] = {}
    for unit in view.units:
        states[unit.state] = states.get(unit.state, 0) + 1
    return GroupAnswer(
        line=group_line(look, call.node.observer.history, view),
        lag=view.lag,
        members=view.members,
        findings=view.findings,
        units_count=len(view.units),
        units_by_state=states,
        seen_at=moment(look.seen_us),
        look_age_s=round(call.node.observer.age_s, 3),
    )


async def units(call: Call) -> UnitPage:
    _, view = await group_of(call)
    name = names.parse(view.group)
    assert name is not None, view.group
    query: Paged = call.query
    rows = view.units
    if query.sort.lstrip("-") == "in_flight_events":
        every = await with_in_flight(call.node.host, name, rows)
        part, count = page_of(every, query, _unit_text)
    else:  # of many units a few are shown
        few, count = page_of(list(rows), query, _unit_text)
        part = await with_in_flight(call.node.host, name, few)
    return UnitPage(units=tuple(part), count=count)


def _unit_text(unit: UnitView) -> str:
    return f"{unit.unit} {unit.member}"


async def lag(call: Call) -> GroupLag:
    _, view = await group_of(call)
    return view.lag


async def members(call: Call) -> tuple[GroupMember, ...]:
    _, view = await group_of(call)
    return view.members


async def history(call: Call) -> tuple[SeriesPoint, ...]:
    look, view = await group_of(call)
    now_s = look.seen_us / 1e6
    found = call.node.observer.history.points(GROUP, view.group, now_s - call.query.seconds, now_s)
    return tuple(SeriesPoint(at_s=at_s, figures=figures) for at_s, figures in found)


async def decided(call: Call) -> tuple[DecisionLine, ...]:
    _, view = await group_of(call)
    query: DecisionsQuery = call.query
    wanted = query.what.replace("_", " ")
    if wanted and wanted not in {each.value for each in What}:
        known = ", ".join(each.value for each in What)
        raise Problem(400, "InvalidInput", f"what={query.what!r}: there are {known}")
    plain = not (wanted or query.member or query.q)
    most = query.limit if plain else PAST_MAX
    found = await call.node.host.in_thread(
        call.node.hr.log.catalog.read,
        lambda tx: decisions.read(tx, view.group, most, query.before),
    )
    fitting = [one for one in found if _fits(one, wanted, query)]
    return tuple(decision_line(one) for one in fitting[-query.limit :])


def _fits(one: Decision, what: str, query: DecisionsQuery) -> bool:
    if what and one.what.value != what:
        return False
    if query.member and query.member not in (one.source, one.target, one.instance):
        return False
    return query.q.lower() in one.reason.lower()


async def past(call: Call) -> PastAnswer:
    _, view = await group_of(call)
    at = call.query.at
    if at.tzinfo is None:
        raise Problem(400, "InvalidInput", "at: give a time with its zone: 2026-11-17T14:03:00Z")
    at_us = to_us(at)
    found = await call.node.host.in_thread(
        call.node.hr.log.catalog.read, lambda tx: decisions.read(tx, view.group, PAST_MAX)
    )
    then = as_it_was(view.group, found, at_us)
    before = [one for one in found if one.at_us <= at_us]
    return PastAnswer(
        group=view.group,
        at=at,
        leader=then.leader,
        units=then.units,
        members=then.members,
        known_from_at=None if then.known_from_us is None else moment(then.known_from_us),
        last=decision_line(before[-1]) if before else None,
    )


_CLI = "headrace group info GROUP"

ROUTES = (
    Route(
        method="GET",
        path="/groups",
        summary="Groups of every kind, by pages",
        handler=listed,
        answer=GroupPage,
        query=GroupsQuery,
        cli="headrace group ls",
    ),
    Route(
        method="GET",
        path="/groups/{group}",
        summary="A group: its members, its lag, what is wanting",
        handler=one,
        answer=GroupAnswer,
        cli=_CLI,
    ),
    Route(
        method="GET",
        path="/groups/{group}/units",
        summary="The units of a group: who owns them, floors, heads, tokens, in flight, lag",
        handler=units,
        answer=UnitPage,
        query=Paged,
        cli=_CLI,
    ),
    Route(
        method="GET",
        path="/groups/{group}/lag",
        summary="How far a group is behind",
        handler=lag,
        answer=GroupLag,
        cli="headrace group lag GROUP",
    ),
    Route(
        method="GET",
        path="/groups/{group}/members",
        summary="Who takes part in a group, and who should",
        handler=members,
        answer=tuple[GroupMember, ...],
        cli="headrace group members GROUP",
    ),
    Route(
        method="GET",
        path="/groups/{group}/history",
        summary="Lag in events, lag in seconds, and acked events a second, over time",
        handler=history,
        answer=tuple[SeriesPoint, ...],
        query=HistoryQuery,
    ),
    Route(
        method="GET",
        path="/groups/{group}/decisions",
        summary="What was decided about a group and why, oldest first",
        handler=decided,
        answer=tuple[DecisionLine, ...],
        query=DecisionsQuery,
        cli="headrace group decisions GROUP",
    ),
    Route(
        method="GET",
        path="/groups/{group}/past",
        summary="A group as it was: who owned what at a moment",
        handler=past,
        answer=PastAnswer,
        query=PastQuery,
    ),
)
