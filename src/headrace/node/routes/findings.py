"""What is wanting, of everything and of one group; and who was fenced off."""

from __future__ import annotations

from datetime import datetime

import msgspec

from headrace.groups import decisions
from headrace.groups.decisions import Decision, What
from headrace.groups.findings import moment
from headrace.groups.shapes import Finding
from headrace.node.lines import seen_findings
from headrace.node.routes.groups import PAST_MAX, group_of
from headrace.node.routes.table import Call, Paged, Route, page_of
from headrace.node.shapes import decision_line

FENCED_SHOWN = 100


class FindingPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the list of what is wanting, what needs a person first."""

    findings: tuple[Finding, ...]
    count: int
    look_age_s: float


class FencedInstance(
    msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}
):
    """An instance that was refused: it went on with what is no longer its own."""

    instance: str
    source: str
    """The member that it ran."""
    units: str
    """What it held, the last time."""
    token: int
    """The stale one."""
    reason: str
    times: int
    first_at: datetime
    last_at: datetime
    last_number: int
    """Of the decision that tells of it."""


async def listed(call: Call) -> FindingPage:
    look = await call.node.look()
    rows = list(seen_findings(look, call.who))
    part, count = page_of(rows, call.query, lambda row: f"{row.about} {row.sentence}")
    age_s = round(call.node.observer.age_s, 3)
    return FindingPage(findings=tuple(part), count=count, look_age_s=age_s)


async def of_group(call: Call) -> tuple[Finding, ...]:
    _, view = await group_of(call)
    return view.findings


async def fenced(call: Call) -> tuple[FencedInstance, ...]:
    _, view = await group_of(call)
    found = await call.node.host.in_thread(
        call.node.hr.log.catalog.read, lambda tx: decisions.read(tx, view.group, PAST_MAX)
    )
    return fenced_of(found)[:FENCED_SHOWN]


def fenced_of(found: list[Decision]) -> tuple[FencedInstance, ...]:
    """The instances that decisions, oldest first, say were fenced; the last one first."""
    by_instance: dict[tuple[str, str], list[Decision]] = {}
    for one in found:
        if one.what is What.FENCED:
            by_instance.setdefault((one.instance, one.source), []).append(one)
    every = [_fenced(own) for own in by_instance.values()]
    return tuple(sorted(every, key=lambda each: -each.last_number))


def _fenced(own: list[Decision]) -> FencedInstance:
    last = decision_line(own[-1])
    return FencedInstance(
        instance=last.instance,
        source=last.source,
        units=last.units,
        token=last.token,
        reason=last.reason,
        times=len(own),
        first_at=moment(own[0].at_us),
        last_at=last.at,
        last_number=last.number,
    )


ROUTES = (
    Route(
        method="GET",
        path="/findings",
        summary="What is wanting anywhere, what needs a person first, by pages",
        handler=listed,
        answer=FindingPage,
        query=Paged,
        cli="headrace status",
    ),
    Route(
        method="GET",
        path="/groups/{group}/findings",
        summary="What is wanting of a group",
        handler=of_group,
        answer=tuple[Finding, ...],
        cli="headrace group info GROUP",
    ),
    Route(
        method="GET",
        path="/groups/{group}/fenced",
        summary="Instances that were refused: which, when, holding what; the last first",
        handler=fenced,
        answer=tuple[FencedInstance, ...],
        cli="headrace group decisions GROUP",
    ),
)
