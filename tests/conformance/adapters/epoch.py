"""``epoch-cases/1``: what epoch subscribers are given, what is dropped, what is complete.

Publishers and subscribers are the cores; the links between them deliver at once.  A field of
``expect`` named ``…_after_event`` is compared after the event of that number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from headrace.epochs import (
    INTEGERS,
    PAIRS,
    Deliver,
    Dropped,
    Effect,
    Frontier,
    FrontierUpdate,
    Publisher,
    Ready,
    Snapshot,
    Subscriber,
    Time,
)
from headrace.errors import (
    EpochError,
    InvalidInputError,
    UnknownPartitionError,
    UnknownSubscriberError,
)
from tests.conformance.registry import Adapter

_Number = Annotated[int, msgspec.Meta(ge=0)]
_WireTime = int | list[int]
_AfterEvent = dict[str, list[_WireTime] | None]
"""None: nothing is judged yet."""


class Event(msgspec.Struct, frozen=True):
    op: Literal["data", "progress", "connect", "disconnect", "eof", "abort", "close"]
    p: _Number | list[_Number] | None = None
    s: str | None = None
    t: _WireTime | None = None
    d: list[Any] = []
    u: list[tuple[_WireTime, int]] = []
    violation: bool = False


class Initial(msgspec.Struct, frozen=True):
    lower: list[_WireTime]
    upper: list[_WireTime]


class Expected(msgspec.Struct, frozen=True):
    initial: Initial | None = None
    delivered: list[list[Any]] | None = None
    dropped: list[list[Any]] | None = None
    frontier: list[_WireTime] | None = None
    filter: list[_WireTime] | None = None
    end: str | None = None
    completed: list[tuple[_WireTime, bool]] = []
    filter_after_event: _AfterEvent = {}
    frontier_after_event: _AfterEvent = {}
    end_after_event: dict[str, str] = {}
    completed_after_event: dict[str, list[tuple[_WireTime, bool]]] = {}


class EpochCase(msgspec.Struct, frozen=True):
    id: str
    order: Literal["int", "pair"]
    partitions: Annotated[int, msgspec.Meta(ge=1)]
    events: list[Event]
    expect: dict[str, Expected]
    title: str = ""
    visible_updates: dict[str, list[tuple[_WireTime, int]]] = {}


def label(case: EpochCase) -> str:
    return f"{case.id} {case.title}"


def check(case: EpochCase) -> list[str]:
    world = _World(case)
    for number, event in enumerate(case.events, 1):
        world.happen(number, event)
    for name, expected in case.expect.items():
        world.compare_end(name, expected)
    return world.faults


def _time(value: _WireTime) -> Time:
    return tuple(value) if isinstance(value, list) else value


def _times(values: list[_WireTime]) -> set[Time]:
    return {_time(value) for value in values}


def _items(batches: list[list[Any]]) -> list[tuple[Time, Any]]:
    """A flat list of (time, item), however the items of a batch are grouped."""
    flat: list[tuple[Time, Any]] = []
    for time, *rest in batches:
        for item in rest:
            flat.extend((_time(time), one) for one in (item if isinstance(item, list) else [item]))
    return flat


class _Watched:
    """A subscriber and what it was given so far."""

    def __init__(self, core: Subscriber) -> None:
        self.core = core
        self.links: set[str] = set()
        self.initial: Ready | None = None
        self.delivered: list[tuple[Time, Any]] = []
        self.dropped: list[tuple[Time, Any]] = []

    def see(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ready():
                    self.initial = effect
                case Deliver(data=data):
                    self.delivered.extend((data.time, item) for item in data.payload)
                case Dropped(data=data):
                    self.dropped.extend((data.time, item) for item in data.payload)
                case _:
                    pass


class _World:
    def __init__(self, case: EpochCase) -> None:
        self.case = case
        self.shape = INTEGERS if case.order == "int" else PAIRS
        self.publishers = {str(p): Publisher(self.shape) for p in range(case.partitions)}
        self.watched: dict[str, _Watched] = {}
        self.faults: list[str] = []
        self.visible: set[tuple[Time, int]] = set()

    def happen(self, number: int, event: Event) -> None:
        before = self._state()
        self.visible = set()
        try:
            self._do(event)
        except (EpochError, InvalidInputError) as error:
            if not event.violation:
                self.faults.append(f"event {number} ({event.op}) was refused: {error}")
            if self._state() != before:
                self.faults.append(f"event {number} ({event.op}) was refused and changed the state")
        else:
            if event.violation:
                self.faults.append(f"event {number} ({event.op}) should have been refused")
        self._compare_after(str(number))

    def _do(self, event: Event) -> None:
        match event.op:
            case "data":
                if event.t is None:
                    raise InvalidInputError("field 't' is missing")
                self._publisher(event).data(_time(event.t), tuple(event.d), len(event.d))
            case "progress":
                updates = [(_time(time), delta) for time, delta in event.u]
                self._tell(self._publisher(event).progress(updates).message)
            case "close":
                self._tell(self._publisher(event).close().message)
            case "connect":
                self._connect(event)
            case "disconnect":
                self._disconnect(event)
            case "eof" | "abort":
                self._lose(event)
        self._pump()

    def _tell(self, message: object) -> None:
        if isinstance(message, FrontierUpdate):
            self.visible = set(message.changes)

    def _publisher(self, event: Event) -> Publisher:
        publisher = self.publishers.get(str(event.p))
        if publisher is None:
            raise UnknownPartitionError("no such partition", update=event, state=self.case.id)
        return publisher

    def _name(self, event: Event) -> str:
        if event.s is None:
            raise InvalidInputError("field 's' is missing")
        return event.s

    def _partitions(self, event: Event) -> list[str]:
        if event.p is None:
            return list(self.publishers)
        named = [str(p) for p in (event.p if isinstance(event.p, list) else [event.p])]
        if not self.publishers.keys() >= set(named):
            raise UnknownPartitionError("no such partition", update=event, state=self.case.id)
        return named

    def _connect(self, event: Event) -> None:
        name = self._name(event)
        partitions = self._partitions(event)
        watched = self.watched.get(name) or _Watched(self._subscriber())
        if not watched.links:
            watched.core = self._subscriber()  # one that has left begins anew
        missing = [partition for partition in partitions if partition not in watched.links]
        for partition in missing or partitions:
            self.publishers[partition].connect(name)
            watched.links.add(partition)
        self.watched[name] = watched

    def _subscriber(self) -> Subscriber:
        return Subscriber(self.publishers, self.shape)

    def _connected(self, event: Event) -> _Watched:
        name = self._name(event)
        if name not in self.watched:
            raise UnknownSubscriberError("it never connected", update=event, state=self.case.id)
        return self.watched[name]

    def _disconnect(self, event: Event) -> None:
        watched = self._connected(event)
        for partition in self._partitions(event):
            if partition in watched.links:
                self.publishers[partition].disconnect(self._name(event))
                watched.links.discard(partition)

    def _lose(self, event: Event) -> None:
        """A publisher dies; or, with a subscriber named, only the link between the two."""
        for partition in self._partitions(event):
            if event.s is None:
                self.publishers[partition].abort("end of the connection")
            else:
                watched = self._connected(event)
                self.publishers[partition].disconnect(event.s)
                watched.links.discard(partition)
                watched.see(watched.core.lost(partition, "end of the connection"))

    def _pump(self) -> None:
        for name, watched in self.watched.items():
            for partition in sorted(watched.links, key=int):
                for message in self.publishers[partition].take(name):
                    watched.see(watched.core.receive(partition, message))

    def _state(self) -> object:
        return (
            [(p.capabilities, p.lower, p.upper, p.subscribers) for p in self.publishers.values()],
            [
                (w.core.frontier, w.core.filter, w.core.end, list(w.delivered), list(w.dropped))
                for w in self.watched.values()
            ],
        )

    # --- comparing ---

    def _compare_after(self, number: str) -> None:
        if number in self.case.visible_updates:
            wanted = {(_time(t), delta) for t, delta in self.case.visible_updates[number]}
            self._same(f"visible updates of event {number}", wanted, self.visible)
        for name, expected in self.case.expect.items():
            where = f"{name} after event {number}:"
            core = self.watched[name].core if name in self.watched else None
            self._after(f"{where} filter", expected.filter_after_event, number, core, _filter)
            self._after(f"{where} frontier", expected.frontier_after_event, number, core, _frontier)
            if core is not None and number in expected.end_after_event:
                self._same(f"{where} end", expected.end_after_event[number], str(core.end))
            if core is not None:
                for time, complete in expected.completed_after_event.get(number, []):
                    got = core.completed(_time(time))
                    self._same(f"{where} completed({time})", complete, got)

    def _after(
        self,
        what: str,
        expected: _AfterEvent,
        number: str,
        core: Subscriber | None,
        read: Callable[[Subscriber], Frontier],
    ) -> None:
        if number in expected:
            wanted = expected[number]
            if wanted is None:
                self._same(f"{what} known", False, core is not None and core.ready)
            else:
                self._same(what, _times(wanted), None if core is None else set(read(core)))

    def compare_end(self, name: str, expected: Expected) -> None:
        watched = self.watched.get(name)
        if watched is None:
            self.faults.append(f"{name} never connected")
            return
        core = watched.core
        if expected.initial is not None:
            initial = watched.initial or Snapshot((), ())
            self._same(f"{name}: begun", True, watched.initial is not None)
            wanted = expected.initial
            self._same(f"{name}: initial lower", _times(wanted.lower), set(initial.lower))
            self._same(f"{name}: initial upper", _times(wanted.upper), set(initial.upper))
        if expected.delivered is not None:
            self._same(f"{name}: delivered", _items(expected.delivered), watched.delivered)
        if expected.dropped is not None:
            self._same(f"{name}: dropped", _items(expected.dropped), watched.dropped)
        if expected.frontier is not None:
            self._same(f"{name}: frontier", _times(expected.frontier), set(core.frontier))
        if expected.filter is not None:
            self._same(f"{name}: filter", _times(expected.filter), set(core.filter))
        if expected.end is not None:
            # How the stream stood when a subscriber left, or that it has left.
            ends = {str(core.end), *([] if watched.links else ["disconnected"])}
            self._same(f"{name}: end", expected.end, expected.end if expected.end in ends else ends)
        for time, complete in expected.completed:
            self._same(f"{name}: completed({time})", complete, core.completed(_time(time)))

    def _same(self, what: str, wanted: object, got: object) -> None:
        if wanted != got:
            self.faults.append(f"{what}: expected {wanted}, got {got}")


def _filter(core: Subscriber) -> Frontier:
    return core.filter


def _frontier(core: Subscriber) -> Frontier:
    return core.frontier


ADAPTER = Adapter(format="epoch-cases/1", case=EpochCase, label=label, check=check)
