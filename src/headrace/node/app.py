"""The ASGI app: health, metrics, the console's files, and the API by its table of routes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headrace.groups.findings import moment
from headrace.node import problems
from headrace.node.access import audit
from headrace.node.access.gate import NO_ONE
from headrace.node.access.roles import NOBODY, Who
from headrace.node.files import Files
from headrace.node.node import Node
from headrace.node.problems import Problem, not_there
from headrace.node.routes import PREFIX, table
from headrace.node.routes.table import Call, Route

BODY_BYTES_MAX = 2 * 1024 * 1024
HEARD_BYTES_MAX = 32 * 1024 * 1024
"""Of a body that is too large this much is heard, and dropped: who is cut off while he sends does
not read the answer."""
ABOUT_CHARS_MAX = 300

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class NodeApp:
    """What uvicorn runs."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._files = Files()
        self._routes = Routes(table(read_only=node.settings.read_only))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception as error:
            answer = problems.response(problems.problem_of(error))
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        if self._node.gate.secure:
            answer.headers.setdefault("strict-transport-security", "max-age=31536000")
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        node, path = self._node, request.scope["path"]
        node.gate.check_host(request)
        if path == "/healthz":
            return _plain(200, "alive")
        if path == "/readyz":
            return _plain(200, "ready") if node.is_ready else _plain(503, "not ready")
        if path == "/metrics":
            return await self._metrics(request)
        if path.startswith(PREFIX + "/") or path == PREFIX:
            return await self._api(request)
        if request.method not in ("GET", "HEAD"):
            raise Problem(405, "MethodNotAllowed", "only GET goes here", headers={"allow": "GET"})
        found = self._files.get(path, request.headers.get("accept-encoding", ""))
        if found is None:
            raise not_there("such page")
        return found

    async def _metrics(self, request: Request) -> Response:
        who = self._node.gate.who(request)
        if who.scoped:
            raise not_there("such page")
        media = "text/plain; version=1.0.0; charset=utf-8"
        await self._node.observer.recent()
        return Response(self._node.metrics(), media_type=media, headers=_NO_STORE)

    async def _api(self, request: Request) -> Response:
        gate = self._node.gate
        route, params = self._routes.find(request)
        who = NO_ONE if route.role == NOBODY else gate.who(request)
        if request.method != "GET":
            gate.check_origin(request)
            if route.role != NOBODY:
                gate.check_header(request, who)
        if not who.may(route.role):
            raise Problem(
                403, "RoleMissing", f"this needs the role {route.role}, which {who.name!r} lacks"
            )
        call = Call(
            node=self._node,
            who=who,
            request=request,
            params=params,
            query=_query(route, request),
            body=await _body(route, request),
        )
        if not route.changes:
            return _answered(await route.handler(call))
        return await self._change(route, call, who)

    async def _change(self, route: Route, call: Call, who: Who) -> Response:
        """A change is written down, whether it was done or refused."""
        dry = getattr(call.body, "dry_run", False)
        status = 200
        try:
            found = await route.handler(call)
        except Exception as error:
            status = problems.problem_of(error).status
            raise
        finally:
            if not dry:
                await self._record(route, call, who, status)
        if not dry:
            await self._node.observer.next()
        return _answered(found)

    async def _record(self, route: Route, call: Call, who: Who, status: int) -> None:
        node = self._node
        line = audit.AuditLine(
            at=moment(int(node.gate.now_s() * 1e6)),
            token=who.name,
            address=call.address,
            method=route.method,
            path=call.request.scope["path"][:ABOUT_CHARS_MAX],
            about=_about(call.body),
            status=status,
        )
        try:
            await node.host.in_thread(audit.record, node.hr.log, line)
        except Exception as error:
            _log.warning("a change by %s was not written down: %s", who.name, error)


_NO_STORE = {"cache-control": "no-store"}
_SECRET = {"value", "token", "code", "headers"}


def _about(body: Any) -> str:
    """A request in a line, without payloads."""
    if body is None:
        return ""
    said = [
        f"{each.name}={getattr(body, each.name)!r}"
        for each in msgspec.structs.fields(body)
        if getattr(body, each.name) not in (None, (), "", False, {}) and each.name not in _SECRET
    ]
    return ", ".join(said)[:ABOUT_CHARS_MAX]


def _plain(status: int, text: str) -> Response:
    return Response(text + "\n", status, _NO_STORE, media_type="text/plain")


def _answered(found: Any) -> Response:
    if isinstance(found, Response):
        found.headers.setdefault("cache-control", "no-store")
        return found
    return Response(_encode(found), 200, _NO_STORE, media_type="application/json")


def _query(route: Route, request: Request) -> Any:
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise Problem(400, "InvalidInput", f"{name[:80]} is given twice")
        given[name] = value
    try:
        return msgspec.convert(given, route.query, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(400, "InvalidInput", f"the address is not right: {error}") from None


async def _body(route: Route, request: Request) -> Any:
    if route.body is None:
        return None
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= BODY_BYTES_MAX:
            parts.append(part)
        elif size > HEARD_BYTES_MAX:
            break
    if size > BODY_BYTES_MAX:
        raise Problem(413, "TooLarge", f"a request has at most {BODY_BYTES_MAX:,} bytes")
    return msgspec.json.decode(b"".join(parts) or b"{}", type=route.body)


class Routes:
    """Which route an address means; names in it are decoded after it was split."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._by_length: dict[int, list[Route]] = {}
        for route in routes:
            self._by_length.setdefault(len(route.parts), []).append(route)
        for found in self._by_length.values():
            found.sort(key=lambda route: sum(part.startswith("{") for part in route.parts))

    def find(self, request: Request) -> tuple[Route, Mapping[str, str]]:
        """The route and the names in the address; raises where there is none."""
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        try:
            text = raw.decode("ascii").partition("?")[0]
            parts = [
                unquote(part, errors="strict")
                for part in text.removeprefix(PREFIX).strip("/").split("/")
            ]
        except UnicodeDecodeError:
            raise Problem(400, "InvalidInput", "the address is no UTF-8") from None
        allowed = []
        for route in self._by_length.get(len(parts), ()):
            params = _matched(route.parts, parts)
            if params is not None:
                if route.method == request.method:
                    return route, params
                allowed.append(route.method)
        if allowed:
            raise Problem(
                405,
                "MethodNotAllowed",
                f"this takes {', '.join(sorted(set(allowed)))}",
                headers={"allow": ", ".join(sorted(set(allowed)))},
            )
        raise not_there("such address; see /api/v1/openapi.json")


def _matched(wanted: tuple[str, ...], given: list[str]) -> dict[str, str] | None:
    params = {}
    for pattern, part in zip(wanted, given, strict=True):
        if pattern.startswith("{"):
            params[pattern[1:-1]] = part
        elif pattern != part:
            return None
    return params
