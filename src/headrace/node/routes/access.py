"""Who gets in: codes, cookies, tokens, and who did what."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from headrace.node.access import audit, tokens
from headrace.node.access.audit import AuditLine
from headrace.node.access.roles import ADMIN, NOBODY
from headrace.node.access.sessions import COOKIE_S, cookie_of
from headrace.node.access.tokens import MadeToken, TokenLine
from headrace.node.problems import Problem, not_there
from headrace.node.routes.changes import ChangeDone
from headrace.node.routes.table import Call, Route


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A one-time code, or a token."""

    code: str = ""
    token: str = ""


class LoginLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that lets a browser in, once and within a minute."""

    path: str


class NewToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make."""

    token: str
    roles: tuple[str, ...]
    subjects: tuple[str, ...] = ()
    expires_s: Annotated[float, Meta(ge=1)] | None = None


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many of the last changes."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


async def login(call: Call) -> Response:
    """Exchange a code or a token for a cookie."""
    node, gate = call.node, call.node.gate
    gate.check_origin(call.request)
    body: Login = call.body
    now_s = time.time()
    who = node.codes.take(body.code) if body.code else None
    if who is None and body.token:
        who = gate.keyring.who(body.token.strip(), int(now_s * 1e6))
    if who is None:
        gate.failed(call.address)
        raise Problem(
            401,
            "CodeRefused",
            "this link was used already, or is older than a minute; get another one: "
            "headrace token link",
        )
    answer = Response(status_code=204)
    answer.set_cookie(
        gate.cookie,
        cookie_of(gate.keyring, who, now_s),
        max_age=COOKIE_S,
        path="/",
        httponly=True,
        secure=gate.secure,
        samesite="strict",
    )
    return answer


async def logout(call: Call) -> Response:
    answer = Response(status_code=204)
    answer.delete_cookie(
        call.node.gate.cookie, path="/", secure=call.node.gate.secure, httponly=True
    )
    return answer


async def link(call: Call) -> LoginLink:
    """For ``headrace token link``: whoever has the token gets a link for a browser."""
    return LoginLink(path=f"/#code={call.node.codes.give(call.who)}")


async def listed(call: Call) -> tuple[TokenLine, ...]:
    return await call.node.host.in_thread(tokens.listed, call.node.hr.log.catalog)


async def create(call: Call) -> MadeToken:
    body: NewToken = call.body
    made = await call.node.host.in_thread(
        tokens.create,
        call.node.hr.log.catalog,
        body.token,
        body.roles,
        body.subjects,
        body.expires_s,
    )
    await call.node.load_tokens()
    return made


async def remove(call: Call) -> ChangeDone:
    name = call.params["token"]
    known = await call.node.host.in_thread(tokens.listed, call.node.hr.log.catalog)
    if name not in {each.token for each in known}:
        raise not_there(f"token {name[:100]!r}")
    await call.node.host.in_thread(tokens.remove, call.node.hr.log.catalog, name)
    await call.node.load_tokens()
    return ChangeDone(done=f"token {name} is gone")


async def audited(call: Call) -> tuple[AuditLine, ...]:
    return await call.node.host.in_thread(audit.latest, call.node.hr.log, call.query.limit)


ROUTES = (
    Route(
        method="POST",
        path="/login",
        summary="Exchange a one-time code or a token for a cookie",
        handler=login,
        answer=None,
        role=NOBODY,
        body=Login,
    ),
    Route(
        method="POST",
        path="/logout",
        summary="Give the cookie up",
        handler=logout,
        answer=None,
    ),
    Route(
        method="POST",
        path="/link",
        summary="A link with a one-time code, for a browser",
        handler=link,
        answer=LoginLink,
        cli="headrace token link",
    ),
    Route(
        method="GET",
        path="/tokens",
        summary="Tokens, without their secrets",
        handler=listed,
        answer=tuple[TokenLine, ...],
        role=ADMIN,
        cli="headrace token ls",
    ),
    Route(
        method="POST",
        path="/tokens",
        summary="Make a token; its secret is in this answer alone",
        handler=create,
        answer=MadeToken,
        role=ADMIN,
        body=NewToken,
        changes=True,
        cli="headrace token create",
    ),
    Route(
        method="DELETE",
        path="/tokens/{token}",
        summary="Remove a token",
        handler=remove,
        answer=ChangeDone,
        role=ADMIN,
        changes=True,
        cli="headrace token rm",
    ),
    Route(
        method="GET",
        path="/audit",
        summary="Who changed what through a node, newest first",
        handler=audited,
        answer=tuple[AuditLine, ...],
        role=ADMIN,
        query=AuditQuery,
    ),
)
