"""Live: what changed, as server-sent events.

Theory of operation
-------------------
There is no queue for a listener.  The last ``KEPT`` looks are kept in a ring; a listener remembers
the number of the look that it was told of, and whenever it is ready to send it gets what happened
since, or the whole state if that is more than the ring holds.  So whoever is slow gets the newest
state, and 200 listeners that do not read cost nothing but their sockets.

A listener watches the whole (``overview``), or a group or a stream as well, whose full view then
comes with each change of it, or the lag of groups.  Events of a stream that it follows are held for
it up to a bound (``tailing``); they begin when it begins to listen, and have no id.  The ids of
what else is sent are looks of this node: a browser that comes back after a cut says the last one
(``Last-Event-ID``) and goes on from there; one that comes from another node, or from before a
restart, gets the state.

Endless responses keep a server from ending, so they end themselves: ``close`` wakes all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from secrets import token_hex
from typing import Any

import msgspec

from headrace.api.client import Headrace
from headrace.groups.decisions import Decision
from headrace.groups.findings import moment
from headrace.groups.shapes import Finding, GroupView
from headrace.node.access.roles import READ, Who
from headrace.node.history import GROUP
from headrace.node.lines import group_line, seen_findings, stream_line
from headrace.node.observer import Observer
from headrace.node.problems import Problem
from headrace.node.shapes import DecisionLine, GroupLine, Look, StreamLine, decision_line
from headrace.node.tailing import Ration, Tail

KEPT = 50
LISTENERS_MAX = 200
_TOO_MANY = f"{LISTENERS_MAX} listen already; try later"
ALIVE_S = 15.0
WATCHES_MAX = 8
UNITS_SENT_MAX = 1_000
"""A watched group with more units is asked for by pages."""
LAGS_MAX = 1_000
"""Of more groups, those that are furthest behind."""
KINDS = ("group", "stream", "lag", "events")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a look saw that the one before it did not."""

    look: int
    seen_at: Any
    groups: tuple[GroupLine, ...] = ()
    streams: tuple[StreamLine, ...] = ()
    gone_groups: tuple[str, ...] = ()
    gone_streams: tuple[str, ...] = ()
    findings: tuple[Finding, ...] | None = None
    """None: as before."""


class LagLine(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is behind."""

    group: str
    lag_events: int
    lag_bytes: int
    lag_seconds: float
    exact: bool
    acked_per_s: float | None


class LagChange(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of groups that have changed."""

    look: int
    seen_at: Any
    groups: tuple[LagLine, ...]
    left_out: int
    """Groups that are less behind than those."""


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    groups: frozenset[str]
    streams: frozenset[str]
    gone_groups: tuple[str, ...]
    gone_streams: tuple[str, ...]
    findings: bool
    decisions: tuple[Decision, ...]


class Listener(msgspec.Struct, kw_only=True, eq=False):
    """Somebody who listens, and how far it was told."""

    who: Who
    watched: tuple[str, ...]
    told: int
    away: str | None = None
    news: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def tailed(self) -> tuple[str, ...]:
        """The streams whose events it follows."""
        parts = (each.partition(":") for each in self.watched)
        return tuple(dict.fromkeys(name for kind, _, name in parts if kind == "events"))


class Live:
    """The ring of what changed, and those who listen."""

    def __init__(self, hr: Headrace, observer: Observer) -> None:
        self._hr = hr
        self._host = hr.host
        self._observer = observer
        self._steps: deque[_Step] = deque(maxlen=KEPT)
        self._listening: dict[Listener, None] = {}
        self._tasks = self._host.tasks("live")
        self._closing = asyncio.Event()
        self.run = token_hex(4)
        """Names this run of the node in the ids of events."""
        observer.heard.append(self._heard)

    def close(self) -> None:
        """End every stream."""
        self._closing.set()
        self._tasks.cancel()
        self._wake()

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    @property
    def listeners(self) -> int:
        return len(self._listening)

    def _wake(self) -> None:
        for listener in self._listening:
            listener.news.set()

    def _heard(self, look: Look, before: Look | None, decisions: Sequence[Decision]) -> None:
        if before is not None:
            self._steps.append(_step(look, before, decisions))
        self._wake()

    # -- a listener ---------------------------------------------------------------------

    def admit(self, who: Who, watched: Sequence[str], last_id: str | None) -> Listener:
        """Somebody comes; raises when there are too many."""
        if self.listeners >= LISTENERS_MAX:
            raise Problem(503, "TooManyListeners", _TOO_MANY)
        if len(watched) > WATCHES_MAX:
            raise Problem(400, "InvalidInput", f"watch at most {WATCHES_MAX} things at once")
        for each in watched:
            kind, _, name = each.partition(":")
            if each not in ("overview", "lag") and not (kind in KINDS and name):
                raise Problem(
                    400,
                    "InvalidInput",
                    f"watch={each[:100]!r}: give overview, group:NAME, stream:NAME, lag, lag:NAME "
                    "or events:STREAM",
                )
            if kind == "events" and not who.may(READ):
                raise Problem(
                    403, "RoleMissing", f"events need the role {READ}, which {who.name!r} lacks"
                )
        run, _, number = (last_id or "").partition("-")
        told = int(number) if run == self.run and number.isdigit() else 0
        return Listener(who=who, watched=tuple(watched), told=told)

    async def stream(self, listener: Listener) -> AsyncIterator[bytes]:
        """What a listener is sent, until it goes or the node ends."""
        if self.listeners >= LISTENERS_MAX:  # many were admitted at once, before this one began
            yield _event("bye", "", {"reason": _TOO_MANY})
            return
        self._listening[listener] = None
        self._observer.watchers += 1
        self._observer.touch()
        ration = Ration(self._host.now_s)
        scope = listener.who.subjects
        tails = [Tail(self._hr, name, scope, listener.news.set) for name in listener.tailed]
        running = [self._tasks.spawn(tail.run()) for tail in tails]
        try:
            yield b"retry: 1000\n\n"
            while not self.closing:
                listener.news.clear()
                for part in (*self._due(listener), *_tailed(tails, ration)):
                    yield part
                if not self.closing and not await self._host.wait(listener.news, ALIVE_S):
                    yield b": alive\n\n"
            yield _event("bye", "", {"reason": "the node ends"})
        finally:
            del self._listening[listener]
            self._observer.watchers -= 1
            for task in running:
                task.cancel()

    def _due(self, listener: Listener) -> list[bytes]:
        observer = self._observer
        look = observer.look
        if observer.away != listener.away:
            listener.away = observer.away
            told = _event("away", "", {"away": observer.away})
            return [told, *self._looks(listener, look)]
        return self._looks(listener, look)

    def _looks(self, listener: Listener, look: Look | None) -> list[bytes]:
        if look is None or listener.told >= look.number:
            return []
        steps = [step for step in self._steps if step.number > listener.told]
        whole = len(steps) != look.number - listener.told
        listener.told = look.number
        id = f"{self.run}-{look.number}"
        if whole:
            sent = [_event("state", id, self._state(listener, look))]
            names = {*look.groups, *look.streams}
        else:
            names = {name for step in steps for name in (*step.groups, *step.streams)}
            sent = self._changed(listener, look, steps, id)
        return sent + self._views(listener, look, names, id) + self._lags(listener, look, names, id)

    def _state(self, listener: Listener, look: Look) -> object:
        from headrace.node.routes.overview import overview_of

        return overview_of(self._observer, look, listener.who)

    def _changed(self, listener: Listener, look: Look, steps: list[_Step], id: str) -> list[bytes]:
        who, history = listener.who, self._observer.history
        groups = {name for step in steps for name in step.groups} & look.groups.keys()
        streams = {name for step in steps for name in step.streams} & look.streams.keys()
        change = Change(
            look=look.number,
            seen_at=moment(look.seen_us),
            groups=tuple(
                group_line(look, history, look.groups[name])
                for name in sorted(groups)
                if who.sees_group(look.groups[name], look)
            ),
            streams=tuple(
                stream_line(look, history, look.streams[name], who)
                for name in sorted(streams)
                if who.sees_stream(look.streams[name])
            ),
            gone_groups=tuple(n for s in steps for n in s.gone_groups if n not in look.groups),
            gone_streams=tuple(n for s in steps for n in s.gone_streams if n not in look.streams),
            findings=seen_findings(look, who) if any(step.findings for step in steps) else None,
        )
        sent = [_event("change", id, change)]
        decided = [
            decision_line(one)
            for step in steps
            for one in step.decisions
            if sees_decision(who, look, one)
        ]
        return sent + ([_event("decision", id, decided)] if decided else [])

    def _views(self, listener: Listener, look: Look, names: set[str], id: str) -> list[bytes]:
        sent = []
        for watched in listener.watched:
            kind, _, name = watched.partition(":")
            if kind == "group" and name in names:
                view = look.whole(name)
                if view is not None and listener.who.sees_group(view, look):
                    sent.append(_event("group", id, _bounded(view)))
        return sent

    def _lags(self, listener: Listener, look: Look, names: set[str], id: str) -> list[bytes]:
        """The lag of those groups that changed and are watched for it."""
        wanted = {each.partition(":")[2] for each in listener.watched if each.startswith("lag")}
        if not wanted:
            return []
        chosen = look.groups.keys() & names if "" in wanted else look.groups.keys() & names & wanted
        seen = [look.groups[name] for name in sorted(chosen)]
        seen = [view for view in seen if listener.who.sees_group(view, look)]
        worst = seen if len(seen) <= LAGS_MAX else sorted(seen, key=lambda v: -v.lag.seconds)
        rates = self._observer.history.rates
        change = LagChange(
            look=look.number,
            seen_at=moment(look.seen_us),
            groups=tuple(
                LagLine(
                    group=view.group,
                    lag_events=view.lag.events,
                    lag_bytes=view.lag.bytes,
                    lag_seconds=round(view.lag.seconds, 3),
                    exact=view.lag.exact,
                    acked_per_s=rates.get((GROUP, view.group)),
                )
                for view in worst[:LAGS_MAX]
            ),
            left_out=max(0, len(seen) - LAGS_MAX),
        )
        return [_event("lag", id, change)] if seen else []


def _tailed(tails: Sequence[Tail], ration: Ration) -> list[bytes]:
    """Events that came since, and why a tail ended."""
    sent = []
    for tail in tails:
        found = tail.due(ration)
        if found is not None:
            sent.append(_event("event", "", found))
        if tail.problem:
            sent.append(_event("problem", "", {"stream": tail.stream, "detail": tail.problem}))
            tail.problem = ""
    return sent


def _bounded(view: GroupView) -> GroupView:
    if len(view.units) <= UNITS_SENT_MAX:
        return view
    return msgspec.structs.replace(view, units=())


def sees_decision(who: Who, look: Look, one: Decision) -> bool:
    """Whether somebody sees the group that a decision is about."""
    view = look.groups.get(one.group)
    return not who.scoped or (view is not None and who.sees_group(view, look))


def _step(look: Look, before: Look, decisions: Sequence[Decision]) -> _Step:
    return _Step(
        number=look.number,
        groups=frozenset(
            name for name, view in look.groups.items() if before.groups.get(name) != view
        ),
        streams=frozenset(
            name
            for name, stream in look.streams.items()
            if before.streams.get(name) != stream
            or look.consumers.get(name) != before.consumers.get(name)
        ),
        gone_groups=tuple(before.groups.keys() - look.groups.keys()),
        gone_streams=tuple(before.streams.keys() - look.streams.keys()),
        findings=look.findings != before.findings,
        decisions=tuple(decisions),
    )


_encode = msgspec.json.Encoder().encode


def _event(name: str, id: str, data: object) -> bytes:
    line = f"id: {id}\n".encode() if id else b""
    return b"event: " + name.encode() + b"\n" + line + b"data: " + _encode(data) + b"\n\n"


event_bytes = _event

__all__ = ["Change", "DecisionLine", "Live", "event_bytes", "sees_decision"]
