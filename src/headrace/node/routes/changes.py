"""Acting: everything that changes streams, groups and sessions; each with a preview."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.catalog.streams import ByBytes, ByEvents, Consumed, Fixed, Groups, Limits
from headrace.errors import InvalidInputError
from headrace.groups.findings import moment
from headrace.groups.operations import trim as trimming
from headrace.groups.operations.trim import TrimPlan
from headrace.node.access.roles import ADMIN, PUBLISH
from headrace.node.problems import Problem, not_there
from headrace.node.routes.streams import stream_of
from headrace.node.routes.table import Call, Route
from headrace.node.shapes import revision
from headrace.subjects import matches


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a change."""


class NewStream(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream to make."""

    stream: str
    subjects: tuple[str, ...]
    segments: Annotated[int, Meta(ge=1, le=4_096)] | None = None
    key_tokens: tuple[int, ...] = ()
    partitions: Annotated[int, Meta(ge=0, le=4_096)] = 0
    retention: Limits | Consumed | Groups | None = None
    scaling: Fixed | ByEvents | ByBytes | None = None


class StreamSettings(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New settings of a stream."""

    revision: str
    """The revision of the settings that the change is based on."""
    retention: Limits | Consumed | Groups | None = None
    scaling: Fixed | ByEvents | ByBytes | None = None


class ScaleStream(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Split one segment, or merge neighbours."""

    segments: tuple[int, ...]
    into: Annotated[int, Meta(ge=2, le=64)] | None = None
    """Into how many parts one segment is split; without it, the segments are merged."""


class TrimStream(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to trim: before a time, or by the stream's own policy."""

    before: datetime | None = None
    dry_run: bool = False


class Removal(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that goes for good."""

    name: str
    """The name once more, typed."""
    dry_run: bool = False
    force: bool = False


class Published(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event to publish."""

    subject: str
    value: Annotated[str, Meta(max_length=1_000_000)]
    key: str | None = None
    headers: dict[str, str] = {}


class ChangeDone(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, or what would be."""

    done: str
    dry_run: bool = False
    counts: dict[str, int] = {}


def _zoned(at: datetime | None, now_us: int) -> datetime | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise InvalidInputError("before: give a time with its zone: 2026-11-17T14:03:00Z")
    if at > moment(now_us):
        raise InvalidInputError("before lies in the future: everything would go; give a past time")
    return at


# --- streams -------------------------------------------------------------------------------------


async def create_stream(call: Call) -> ChangeDone:
    body: NewStream = call.body
    check_within(call, body.subjects)
    made = await call.node.hr.create_stream(
        body.stream,
        body.subjects,
        segments=body.segments,
        key_tokens=body.key_tokens,
        retention=body.retention,
        scaling=body.scaling,
        partitions=body.partitions,
    )
    return ChangeDone(
        done=f"stream {made.name} is there", counts={"segments": len(made.open_segments)}
    )


def check_within(call: Call, subjects: tuple[str, ...]) -> None:
    if call.who.scoped and not call.who.sees_subjects(subjects):
        raise Problem(403, "OutOfScope", "these subjects lie outside of what this token is for")


async def set_stream(call: Call) -> ChangeDone:
    _, stream = await stream_of(call)
    body: StreamSettings = call.body
    now = await call.node.hr.stream(stream.name)
    if revision(now.config) != body.revision:
        raise Problem(
            409,
            "RevisionMoved",
            f"the settings of {stream.name} have changed since; look at them again",
        )
    await call.node.hr.configure_stream(stream.name, retention=body.retention, scaling=body.scaling)
    return ChangeDone(done=f"the settings of {stream.name} are changed")


async def scale_stream(call: Call) -> ChangeDone:
    _, stream = await stream_of(call)
    body: ScaleStream = call.body
    log, host = call.node.hr.log, call.node.host
    if body.into is not None:
        if len(body.segments) != 1:
            raise InvalidInputError("split one segment at a time")
        done = await host.in_thread(log.split, stream.name, body.segments[0], body.into)
    else:
        done = await host.in_thread(log.merge, stream.name, list(body.segments))
    opened = ", ".join(str(each) for each in done.opened)
    return ChangeDone(done=f"segments {opened} are open", counts={"opened": len(done.opened)})


async def trim_stream(call: Call) -> TrimPlan:
    look, stream = await stream_of(call)
    before = _zoned(call.body.before, look.seen_us)
    work = trimming.plan if call.body.dry_run else trimming.trim
    return await call.node.host.in_thread(work, call.node.hr.log, stream.name, before)


async def remove_stream(call: Call) -> ChangeDone:
    _, stream = await stream_of(call)
    check_typed(call, stream.name)
    events = sum(segment.events for segment in stream.segments)
    if not call.body.dry_run:
        await call.node.hr.delete_stream(stream.name, force=call.body.force)
    return ChangeDone(
        done=f"stream {stream.name} with all its events",
        dry_run=call.body.dry_run,
        counts={"events": events, "segments": len(stream.segments)},
    )


def check_typed(call: Call, name: str) -> None:
    if not call.body.dry_run and call.body.name != name:
        raise Problem(400, "NameNotTyped", f"to remove it, give its name once more: {name}")


# --- events and sessions -------------------------------------------------------------------------


async def publish(call: Call) -> ChangeDone:
    body: Published = call.body
    seen = not call.who.scoped or any(matches(own, body.subject) for own in call.who.subjects)
    if not seen:
        raise Problem(403, "OutOfScope", "this subject lies outside of what this token is for")
    at = await call.node.hr.publish(
        body.subject,
        body.value.encode(),
        key=body.key,
        headers={name: value.encode() for name, value in body.headers.items()} or None,
    )
    return ChangeDone(
        done=f"published to {at.stream}", counts={"segment": at.segment, "offset": at.offset}
    )


async def remove_session(call: Call) -> ChangeDone:
    name = call.params["session"]
    look = await call.node.look()
    if name not in {each.record.name for each in look.sessions}:
        raise not_there(f"session {name[:100]!r}")
    check_typed(call, name)
    letters = 0
    if not call.body.dry_run:
        letters = await call.node.hr.remove_session(name, force=call.body.force)
    return ChangeDone(
        done=f"session {name} with the progress of its private subscriptions",
        dry_run=call.body.dry_run,
        counts={"dead_letters": letters},
    )


def change_route(
    method: str,
    path: str,
    summary: str,
    handler: object,
    body: type,
    answer: object = ChangeDone,
    role: str = ADMIN,
    cli: str = "",
) -> Route:
    return Route(
        method=method,
        path=path,
        summary=summary,
        handler=handler,  # type: ignore[arg-type]
        answer=answer,
        role=role,
        body=body,
        changes=True,
        cli=cli,
    )


ROUTES = (
    change_route(
        "POST", "/streams", "Make a stream", create_stream, NewStream, cli="headrace stream create"
    ),
    change_route(
        "PATCH",
        "/streams/{stream}",
        "Change how a stream is kept and scaled",
        set_stream,
        StreamSettings,
        cli="headrace stream set",
    ),
    change_route(
        "POST",
        "/streams/{stream}/scale",
        "Split or merge segments",
        scale_stream,
        ScaleStream,
        cli="headrace stream scale",
    ),
    change_route(
        "POST",
        "/streams/{stream}/trim",
        "Remove old events",
        trim_stream,
        TrimStream,
        TrimPlan,
        cli="headrace stream trim",
    ),
    change_route(
        "DELETE",
        "/streams/{stream}",
        "Remove a stream with all its events",
        remove_stream,
        Removal,
        cli="headrace stream rm",
    ),
    change_route(
        "POST",
        "/publish",
        "Publish an event",
        publish,
        Published,
        role=PUBLISH,
        cli="headrace publish",
    ),
    change_route(
        "DELETE",
        "/sessions/{session}",
        "Remove a session",
        remove_session,
        Removal,
        cli="headrace session rm",
    ),
)
