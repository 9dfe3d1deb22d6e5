"""Dead letters: list, reasons, put back, discard."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.groups.findings import moment
from headrace.groups.operations import dead_letters
from headrace.groups.operations.dead_letters import LetterReason, PutBack
from headrace.groups.operations.letters import Selection
from headrace.node.access.roles import ADMIN, READ
from headrace.node.routes.groups import group_of
from headrace.node.routes.table import Call, Route
from headrace.node.scan import shown


class LettersQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which letters."""

    reason: str | None = None
    key: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class LetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter."""

    id: int
    subject: str
    key: str | None
    form: str
    value: str
    size_bytes: int
    died_at: datetime | None
    reason: str
    error: str
    attempts: int
    lives: int
    member: str
    stream: str
    segment: int
    offset: int


class LettersChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which letters to put back or to discard."""

    ids: tuple[int, ...] | None = None
    """None: all that fit the rest."""
    reason: str | None = None
    key: str | None = None
    dry_run: bool = False


async def listed(call: Call) -> tuple[LetterView, ...]:
    _, view = await group_of(call)
    query: LettersQuery = call.query
    found = await call.node.hr.dead_letters(
        view.group, reason=query.reason, key=query.key, limit=query.limit
    )
    return tuple(
        LetterView(
            id=each.id,
            subject=each.subject,
            key=each.key,
            form=(how := shown(each.value, 16_384))[0],
            value=how[1],
            size_bytes=len(each.value),
            died_at=None if each.died_us is None else moment(each.died_us),
            reason=each.reason,
            error=each.error,
            attempts=each.attempts,
            lives=each.lives,
            member=each.member,
            stream=each.stream,
            segment=each.segment,
            offset=each.offset,
        )
        for each in found
    )


async def reasons(call: Call) -> tuple[LetterReason, ...]:
    _, view = await group_of(call)
    return await call.node.host.in_thread(dead_letters.reasons, call.node.hr.log, view.group)


async def put_back(call: Call) -> PutBack:
    _, view = await group_of(call)
    chosen, body = _selection(call.body), call.body
    return await call.node.host.in_thread(
        dead_letters.put_back, call.node.hr.log, view.group, chosen, dry_run=body.dry_run
    )


async def discard(call: Call) -> PutBack:
    _, view = await group_of(call)
    chosen, body = _selection(call.body), call.body
    return await call.node.host.in_thread(
        dead_letters.discard, call.node.hr.log, view.group, chosen, dry_run=body.dry_run
    )


def _selection(body: LettersChange) -> Selection:
    return Selection(ids=body.ids, reason=body.reason, key=body.key)


ROUTES = (
    Route(
        method="GET",
        path="/groups/{group}/dead-letters",
        summary="Dead letters of a group, oldest first",
        handler=listed,
        answer=tuple[LetterView, ...],
        role=READ,
        query=LettersQuery,
        cli="headrace group dead ls GROUP",
    ),
    Route(
        method="GET",
        path="/groups/{group}/dead-letters/reasons",
        summary="What they died of",
        handler=reasons,
        answer=tuple[LetterReason, ...],
        cli="headrace group dead reasons GROUP",
    ),
    Route(
        method="POST",
        path="/groups/{group}/dead-letters/put-back",
        summary="Have dead letters delivered again, each once",
        handler=put_back,
        answer=PutBack,
        role=ADMIN,
        body=LettersChange,
        changes=True,
    ),
    Route(
        method="POST",
        path="/groups/{group}/dead-letters/discard",
        summary="Forget dead letters for good",
        handler=discard,
        answer=PutBack,
        role=ADMIN,
        body=LettersChange,
        changes=True,
    ),
)
