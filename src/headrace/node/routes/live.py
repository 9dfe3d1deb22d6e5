"""The live stream."""

from __future__ import annotations

import msgspec
from starlette.responses import StreamingResponse

from headrace.node.routes.streams import stream_of
from headrace.node.routes.table import Call, Route


class LiveQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is watched."""

    watch: str = "overview"
    """``overview``, ``group:NAME``, ``stream:NAME``, ``lag`` or ``lag:NAME`` (of all groups, or of
    one), ``events:STREAM`` (for the role read); several with spaces."""


async def live(call: Call) -> StreamingResponse:
    call.node.gate.check_origin(call.request)
    watched = call.query.watch.split()
    listener = call.node.live.admit(call.who, watched, call.request.headers.get("last-event-id"))
    for name in listener.tailed:
        call.params = {"stream": name}
        await stream_of(call)
    return StreamingResponse(
        call.node.live.stream(listener),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


ROUTES = (
    Route(
        method="GET",
        path="/live",
        summary="What changes, as it changes (server-sent events); resumes after Last-Event-ID",
        handler=live,
        answer=None,
        query=LiveQuery,
        media="text/event-stream",
    ),
)
