"""The overview, and who asks."""

from __future__ import annotations

import msgspec

from headrace.groups.findings import moment, needs_person
from headrace.node.access.roles import ROLES, Who
from headrace.node.lines import (
    group_line,
    seen_findings,
    seen_groups,
    seen_streams,
    stream_line,
    worst_first,
)
from headrace.node.observer import Observer
from headrace.node.routes.table import Call, Route
from headrace.node.shapes import Look, Overview, decision_line, pipeline_view

GROUPS_SHOWN = 200
STREAMS_SHOWN = 200
DECISIONS_SHOWN = 50
FINDINGS_SHOWN = 100


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and of which node."""

    token: str
    roles: tuple[str, ...]
    """All that it may, by role."""
    subjects: tuple[str, ...]
    read_only: bool
    catalog: str
    version: str


async def overview(call: Call) -> Overview:
    look = await call.node.look()
    return overview_of(call.node.observer, look, call.who)


def overview_of(observer: Observer, look: Look, who: Who) -> Overview:
    """Everything in a page, for somebody."""
    from headrace.node.live import sees_decision

    groups, streams = seen_groups(look, who), seen_streams(look, who)
    findings = seen_findings(look, who)
    latest = [one for one in observer.decisions if sees_decision(who, look, one)]
    wanted = any(each.kind == "elastic" for each in groups)
    return Overview(
        look=look.number,
        seen_at=moment(look.seen_us),
        look_age_s=round(observer.age_s, 3),
        away=observer.away,
        well=not needs_person(findings) and observer.away is None,
        findings=findings[:FINDINGS_SHOWN],
        streams=tuple(
            stream_line(look, observer.history, each, who) for each in streams[:STREAMS_SHOWN]
        ),
        groups=tuple(
            group_line(look, observer.history, each) for each in worst_first(groups)[:GROUPS_SHOWN]
        ),
        groups_count=len(groups),
        streams_count=len(streams),
        decisions=tuple(decision_line(one) for one in latest[-DECISIONS_SHOWN:]),
        pipeline=pipeline_view(look.pipeline, wanted=wanted),
        sessions_running=sum(each.node is not None for each in look.sessions),
        sessions_count=len(look.sessions),
        chores=look.chores,
        epochs=tuple(name for name in look.epochs if who.sees_stream(look.streams[name])),
    )


async def me(call: Call) -> Me:
    from headrace import __version__

    return Me(
        token=call.who.name,
        roles=tuple(role for role in ROLES if call.who.may(role)),
        subjects=call.who.subjects,
        read_only=call.node.settings.read_only,
        catalog=call.node.hr.log.catalog.where,
        version=__version__,
    )


ROUTES = (
    Route(
        method="GET",
        path="/overview",
        summary="Everything in a page: what needs attention, groups, streams, decisions",
        handler=overview,
        answer=Overview,
        cli="headrace status",
    ),
    Route(method="GET", path="/me", summary="Who asks, and what they may", handler=me, answer=Me),
)
