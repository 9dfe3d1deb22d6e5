"""Find a key: where its events lie, who consumes them, and what became of the last ones.

A key has one open segment at a time, by its hash.  Its latest events are looked for in the last
``SCAN_EVENTS`` of each segment that it lives in or lived in.  What is in flight is known to the
program that has it, and stored nowhere, so that program is asked; if it does not answer, the result
tells which program knows.  The catalog knows what is not acked, and what was refused how often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog import Tx, claims, entries, leases
from headrace.catalog.streams import Segment, Stream
from headrace.errors import InvalidInputError
from headrace.groups.findings import moment
from headrace.groups.operations import targets
from headrace.groups.operations.letters import LIMIT, Selection, select, stream_of
from headrace.groups.operations.targets import Spot, Target
from headrace.groups.partitioned.names import ELASTIC_BUCKET
from headrace.groups.partitioned.stored import elastic_config
from headrace.groups.shapes import UnitView
from headrace.groups.shared.keys import session_lease
from headrace.groups.view import all_groups
from headrace.log import limits
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.subjects import key_hash, matches, partition, route_partition

if TYPE_CHECKING:
    from headrace.groups.consumer.in_hand import InHand, UnitPlace

SCAN_EVENTS = 20_000
EVENTS_SHOWN = 10


class KeyEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the key."""

    stream: str
    segment: int
    offset: int
    published_at: datetime
    subject: str
    size_bytes: int


class KeySegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that the key lives in, or lived in."""

    stream: str
    segment: int
    lives: bool
    """Whether the next event of the key goes there."""
    tail: int
    head: int
    found_events: int
    """Events of the key among the last ones."""


class KeyUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of a group that holds events of the key."""

    group: str
    kind: str
    unit: str
    member: str | None
    """Whose it is, or to whom it is given."""
    instance: str | None
    """The process that owns it; null if nobody does."""
    token: int
    floor: int
    unacked: tuple[int, ...]
    """Offsets of the key that are not acked."""
    in_flight: tuple[int, ...] | None = None
    """Those that the application has and has not answered; null: ``instance`` did not tell."""
    refused: tuple[tuple[int, int], ...]
    """(offset, attempts) of those that were refused."""
    dead: tuple[int, ...]
    """Dead letters of the key, of the whole group."""


class FoundKey(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a key."""

    key: str
    segments: tuple[KeySegment, ...]
    units: tuple[KeyUnit, ...]
    events: tuple[KeyEvent, ...]
    """The last ones, newest last, of every stream."""
    scanned_events: int
    """How many of the latest events of each segment were looked at, at most."""


def find_key(
    log: Log,
    key: str,
    *,
    stream: str | None = None,
    scan_events: int = SCAN_EVENTS,
    in_hand: InHand = MappingProxyType({}),
) -> FoundKey:
    """Look for a key in one stream, or in all; ``in_hand`` is what this program has in flight.

    Blocks, for up to a second if a program that is asked what it has in flight does not answer.
    """
    _check(key, scan_events)
    chosen = [log.stream(stream)] if stream is not None else list(log.streams())
    found: dict[tuple[str, int], list[KeyEvent]] = {}
    segments = []
    for each in chosen:
        for segment in _homes(each, key):
            events = _scan(log, each, segment, key, scan_events)
            found[each.name, segment.number] = events
            segments.append(
                KeySegment(
                    stream=each.name,
                    segment=segment.number,
                    lives=not segment.sealed,
                    tail=segment.tail,
                    head=segment.head,
                    found_events=len(events),
                )
            )
    names = {each.name for each in chosen}
    units: list[tuple[KeyUnit, UnitPlace]] = []
    every, seen = log.catalog.read(
        lambda tx: (list(targets.all_targets(tx)), all_groups(tx)), snapshot=True
    )
    views = {each.group: each.units for each in seen}
    for target in every:
        if any(reader.stream in names for reader in target.readers):
            units += _units(
                log, target, views.get(target.name, ()), key, found, scan_events, in_hand
            )
    latest = sorted((e for own in found.values() for e in own), key=lambda e: e.published_at)
    return FoundKey(
        key=key,
        segments=tuple(segments),
        units=_told(log, units),
        events=tuple(latest[-EVENTS_SHOWN:]),
        scanned_events=scan_events,
    )


def _check(key: str, scan_events: int) -> None:
    if not isinstance(key, str) or not key or len(key.encode()) > limits.KEY_BYTES_MAX:
        raise InvalidInputError(
            f"{str(key)[:80]!r} is not a key: a key has 1 to {limits.KEY_BYTES_MAX} bytes"
        )
    if type(scan_events) is not int or not 1 <= scan_events <= 10_000_000:
        raise InvalidInputError(f"scan_events={scan_events}: give 1 to 10000000")


def _homes(stream: Stream, key: str) -> list[Segment]:
    """The segments whose keys this one is among."""
    if stream.config.partitions:
        number = route_partition(key, "", (), stream.config.partitions)
        return [segment for segment in stream.segments if segment.number == number]
    at = key_hash(key)
    return [segment for segment in stream.segments if segment.range_lo <= at < segment.range_hi]


def _scan(log: Log, stream: Stream, segment: Segment, key: str, most: int) -> list[KeyEvent]:
    first = max(segment.tail, segment.head - most)
    found: list[KeyEvent] = []
    if first >= segment.head:
        return found
    query = Query(
        start={segment.number: first}, until={segment.number: segment.head},
        segments=[segment.number],
    )  # fmt: skip
    for rows in log.rows(stream.name, query):
        found += (
            KeyEvent(
                stream=stream.name,
                segment=segment.number,
                offset=row.offset or 0,
                published_at=moment(row.timestamp_us),
                subject=row.subject,
                size_bytes=len(row.value),
            )
            for row in rows
            if (row.subject if row.key is None else row.key) == key
        )
    return found


def _units(
    log: Log,
    target: Target,
    owned: Sequence[UnitView],
    key: str,
    found: dict[tuple[str, int], list[KeyEvent]],
    scan_events: int,
    in_hand: InHand,
) -> list[tuple[KeyUnit, UnitPlace]]:
    """The units of a group that hold the key.

    Those of an elastic group are in its work queue: where the key is there, and where its events
    go to that are not there yet, or not any more.
    """
    here = log.catalog.read(lambda tx: _held_spots(tx, target, owned), snapshot=True)
    dead = _dead(log, target, key)
    filled = _filled(log, target, found)
    units: list[tuple[KeyUnit, UnitPlace]] = []
    for spot, held in here:
        if spot.reader.fills:
            continue
        place = spot.stream.name, spot.segment.number
        if place not in found:
            if target.kind != "elastic":
                continue
            found_here = _scan(log, spot.stream, spot.segment, key, scan_events)
            if not found_here and spot.segment.number not in filled:
                continue
            events = found_here
        else:
            events = found[place]
        acked, attempts = spot.progress.acked(), dict(spot.progress.attempts)
        offsets = [event.offset for event in events]
        unacked = tuple(offset for offset in offsets if offset not in acked)
        own = spot.reader.reader, *place
        unit = KeyUnit(
            group=target.name,
            kind=target.kind,
            unit=target.unit(*place),
            member=held.member,
            instance=held.instance,
            token=held.token,
            floor=max(acked.floor, spot.segment.tail),
            unacked=unacked,
            in_flight=_in_flight(unacked, held.instance, in_hand.get(own)),
            refused=tuple((at, attempts[at]) for at in offsets if at in attempts),
            dead=dead,
        )
        units.append((unit, own))
    return units


def _filled(
    log: Log, target: Target, found: Mapping[tuple[str, int], Sequence[KeyEvent]]
) -> set[int]:
    """The partitions of an elastic group into which events of its source go."""
    name = target.partitioned
    if name is None or target.kind != "elastic":
        return set()
    stored = log.catalog.read(lambda tx: entries.get(tx, ELASTIC_BUCKET, name.key))
    if stored is None or stored.value is None:
        return set()
    config = elastic_config(name, stored.value)
    subjects = {
        e.subject for (stream, _), own in found.items() if stream == name.stream for e in own
    }
    return {
        partition(each, config.filter, config.partitioning_wildcards, config.max_members)
        for each in subjects
        if matches(config.filter, each)
    }


def _dead(log: Log, target: Target, key: str) -> tuple[int, ...]:
    """The dead letters of a key."""
    letters = stream_of(log, target)
    if letters is None:
        return ()
    return tuple(each.id for each in select(log, letters, Selection(key=key, limit=LIMIT)))


def _in_flight(
    unacked: tuple[int, ...], instance: str | None, known: frozenset[int] | None
) -> tuple[int, ...] | None:
    """What is in flight of what is not acked; None if another program knows."""
    if not unacked or instance is None:
        return ()
    return None if known is None else tuple(offset for offset in unacked if offset in known)


def _told(log: Log, units: Sequence[tuple[KeyUnit, UnitPlace]]) -> tuple[KeyUnit, ...]:
    """The units, with what other programs tell of what they have in flight."""
    unknown = {place: unit.unacked for unit, place in units if unit.in_flight is None}
    if not unknown:
        return tuple(unit for unit, _ in units)
    from headrace.groups.consumer.asking import ask  # looks seldom need it

    told = ask(log.catalog, {place: (every[0], every[-1]) for place, every in unknown.items()})
    return tuple(
        msgspec.structs.replace(
            unit, in_flight=_in_flight(unit.unacked, unit.instance, told.get(place))
        )
        if place in unknown
        else unit
        for unit, place in units
    )


def _held_spots(tx: Tx, target: Target, owned: Sequence[UnitView]) -> list[tuple[Spot, UnitView]]:
    """Where the group is, and whose each place is now."""
    spots = targets.spots(tx, target)
    if target.session:
        held = {claim.unit: claim for claim in claims.of_group(tx, target.key)}
        session = leases.get(tx, session_lease(target.session))
        found = []
        for spot in spots:
            unit = target.claim_of(spot.stream.name, spot.segment.number)
            claim = held.get(unit)
            mine = claim is not None and claim.owner is not None and session is not None
            view = UnitView(
                unit=unit,
                member=target.session,
                instance=session.owner if mine and session else None,
                token=claim.token if claim else 0,
            )
            found.append((spot, view))
        return found
    views = {view.unit: view for view in owned}
    nobody = UnitView(unit="")
    return [
        (
            spot,
            views.get(
                spot.reader.member or target.unit(spot.stream.name, spot.segment.number), nobody
            ),
        )
        for spot in spots
    ]


__all__ = ["FoundKey", "KeyEvent", "KeySegment", "KeyUnit", "find_key"]
