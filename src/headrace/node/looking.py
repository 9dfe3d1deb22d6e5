"""One look at everything, from one snapshot of the catalog."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from headrace.catalog import Catalog, Tx
from headrace.groups import decisions, names, view
from headrace.groups.decisions import Decision
from headrace.groups.lag import unit_view
from headrace.groups.letter_names import stream_of
from headrace.groups.names import FullName
from headrace.groups.partitioned.filling import PIPELINE
from headrace.groups.picture import Memories, Picture
from headrace.groups.shapes import GroupView, UnitView
from headrace.groups.shared import sessions
from headrace.groups.status import status_of
from headrace.node.shapes import Look
from headrace.spark import records

DECISIONS_FIRST = 200
"""How many of the latest decisions a node reads when it begins."""
DECISIONS_AT_ONCE = 500


_ANY = UnitView(unit="")


class Looked(msgspec.Struct, frozen=True):
    """A look, and what was decided since the one before it."""

    look: Look
    decisions: tuple[Decision, ...]


def look(catalog: Catalog, before: Look | None, memories: Memories | None = None) -> Looked:
    """Read everything; blocks, so it is for a thread.

    Whoever looks again and again gives the same memories each time.
    """
    began_s = time.thread_time()
    memories = memories or Memories()
    found = catalog.read(lambda tx: _read(tx, before, memories), snapshot=True)
    size = catalog.size_bytes()
    spent_s = time.thread_time() - began_s
    done = msgspec.structs.replace(found.look, catalog_bytes=size, cpu_s=spent_s)
    return Looked(done, found.decisions)


def _read(tx: Tx, before: Look | None, memories: Memories) -> Looked:
    every = names.all_names(tx)
    picture = view.picture_of_all(tx, every, memories)
    seen, units_us = view.views_again(picture, every)
    status = status_of(picture, seen, thorough=False)
    counts = decisions.counts(tx)
    made = Look(
        number=1 if before is None else before.number + 1,
        seen_us=picture.now_us,
        streams={stream.name: stream for stream in picture.public},
        groups={each.group: each for each in seen},
        units_us=units_us,
        consumers=_consumers(seen),
        findings=status.findings,
        pipeline=records.status_of(
            picture.entries.get(PIPELINE, {}), led=picture.held(PIPELINE) is not None
        ),
        sessions=tuple(sessions.all_sessions(tx)),
        chores=status.chores,
        letters=_letters(picture, every),
        epochs=tuple(s.name for s in picture.public if s.config.epochs is not None),
        counts=counts,
        catalog_bytes=0,
        cpu_s=0.0,
    )
    return Looked(made, tuple(_decided(tx, counts, before)))


def _consumers(seen: list[GroupView]) -> dict[str, tuple[str, ...]]:
    """The groups of each stream: by name, or by the units of one that has a filter."""
    found: dict[str, list[str]] = {}
    for each in seen:
        if each.stream and not each.streams:
            found.setdefault(each.stream, []).append(each.group)
            continue
        named = {*each.streams, *([each.stream] if each.stream else ())}
        for stream in sorted(named or {unit.stream for unit in each.units}):
            found.setdefault(stream, []).append(each.group)
    return {stream: tuple(groups) for stream, groups in found.items()}


def _letters(picture: Picture, every: list[FullName]) -> dict[str, int]:
    """How many letters of each group are neither put back nor discarded."""
    found = {}
    for name, called in picture.memory.made("dead letters", every, _called):
        stream = picture.streams.get(called)
        if stream is not None and stream.segments:
            segment = stream.segments[0]
            reached = picture.reached(stream.name, segment)
            left = unit_view(_ANY, reached, segment, picture.now_us).events
            if left:
                found[name] = left
    return found


def _called(every: list[FullName]) -> list[tuple[str, str]]:
    """Groups, and what the streams of their letters are called."""
    return [(str(name), stream_of(name.key)) for name in every]


def _decided(tx: Tx, counts: Mapping[str, int], before: Look | None) -> list[Decision]:
    if before is None:
        return decisions.newest(tx, DECISIONS_FIRST)
    found: list[Decision] = []
    for group, number in counts.items():
        known = before.counts.get(group, 0)
        if number > known:
            first = max(known, number - DECISIONS_AT_ONCE)
            found += decisions.after(tx, group, first, DECISIONS_AT_ONCE)
    return sorted(found, key=lambda one: (one.at_us, one.number))
