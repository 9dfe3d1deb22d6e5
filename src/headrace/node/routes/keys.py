"""Find a key, search for names, and sessions and pipeline."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.groups.operations.find_key import FoundKey
from headrace.node.lines import seen_groups, seen_streams
from headrace.node.problems import not_there
from headrace.node.routes.table import Call, Route
from headrace.node.shapes import PipelineView, SessionView, pipeline_view, session_view
from headrace.subjects import key_hash


class KeyQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which key."""

    key: Annotated[str, Meta(min_length=1, max_length=4_096)]
    stream: str | None = None
    scan_events: Annotated[int, Meta(ge=1, le=1_000_000)] = 20_000


class KeyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a key, and where it lies in the key space (0 to 1)."""

    at: float
    found: FoundKey


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is looked for."""

    q: Annotated[str, Meta(max_length=200)] = ""


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """Something with a name that fits."""

    kind: str
    """``stream`` or ``group``."""
    name: str
    about: str


async def find(call: Call) -> KeyAnswer:
    query: KeyQuery = call.query
    look = await call.node.look()
    streams = seen_streams(look, call.who)
    names = {each.name for each in streams}
    if query.stream is not None and query.stream not in names:
        raise not_there(f"stream {query.stream[:100]!r}")
    found = await call.node.hr.find_key(
        query.key, stream=query.stream, scan_events=query.scan_events
    )
    groups = {each.group for each in seen_groups(look, call.who)}
    if call.who.scoped:
        found = msgspec.structs.replace(
            found,
            segments=tuple(each for each in found.segments if each.stream in names),
            units=tuple(each for each in found.units if each.group in groups),
            events=tuple(
                each
                for each in found.events
                if each.stream in names and call.who.sees_subjects([each.subject])
            ),
        )
    return KeyAnswer(at=key_hash(query.key) / float(1 << 32), found=found)


async def search(call: Call) -> tuple[SearchHit, ...]:
    look = await call.node.look()
    text = call.query.q.lower()
    hits = [
        SearchHit(kind="stream", name=each.name, about=", ".join(each.config.subjects))
        for each in seen_streams(look, call.who)
        if text in each.name.lower()
    ]
    hits += [
        SearchHit(kind="group", name=each.group, about=each.kind)
        for each in seen_groups(look, call.who)
        if text in each.group.lower()
    ]
    hits.sort(key=lambda hit: (not hit.name.lower().startswith(text), len(hit.name), hit.name))
    return tuple(hits[:20])


async def sessions(call: Call) -> tuple[SessionView, ...]:
    look = await call.node.look()
    return tuple(
        session_view(each)
        for each in look.sessions
        if not call.who.scoped
        or any(call.who.sees_subjects([one.filter]) for one in each.record.subscriptions)
    )


async def pipeline(call: Call) -> PipelineView:
    look = await call.node.look()
    wanted = any(each.kind == "elastic" for each in look.groups.values())
    view = pipeline_view(look.pipeline, wanted=wanted)
    if call.who.scoped:
        names = {each.group for each in seen_groups(look, call.who)}
        names |= {each.name for each in seen_streams(look, call.who)}
        jobs = tuple(job for job in view.jobs if job.target.replace(".", "/", 1) in names)
        view = msgspec.structs.replace(view, jobs=jobs)
    return view


ROUTES = (
    Route(
        method="GET",
        path="/keys",
        summary="Find a key: where it lies, who consumes it, what became of it",
        handler=find,
        answer=KeyAnswer,
        query=KeyQuery,
        cli="headrace find KEY",
    ),
    Route(
        method="GET",
        path="/search",
        summary="Streams and groups by a part of their names",
        handler=search,
        answer=tuple[SearchHit, ...],
        query=SearchQuery,
    ),
    Route(
        method="GET",
        path="/sessions",
        summary="Sessions of workers",
        handler=sessions,
        answer=tuple[SessionView, ...],
        cli="headrace session ls",
    ),
    Route(
        method="GET",
        path="/pipeline",
        summary="Who leads the pipeline, and its jobs",
        handler=pipeline,
        answer=PipelineView,
        cli="headrace pipeline status",
    ),
)
