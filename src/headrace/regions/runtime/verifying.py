"""Whether a source still is what it was: the last event of each lane is compared.

A region that was restored from a copy, and went on publishing, uses sequences a second time for
other events.  Offsets and sequences alone look right then.  So whoever opens a source compares the
last event that was copied of each lane with what the source has in its place.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.catalog import Tx, lanes, streams
from headrace.catalog.streams import Segment, Stream
from headrace.errors import HeadraceError, RegionWentBackError
from headrace.log.cursor import Cursor
from headrace.log.log import Log
from headrace.regions.records import get_region
from headrace.regions.runtime import evening
from headrace.regions.runtime.rounds import check_place, look_here


def verify_source(log: Log, source_log: Log, source: str) -> None:
    """Raise ``RegionWentBackError`` if what was copied is not what the source has.

    Of a source that began a new life, places of the old one mean nothing: they are found anew.
    """
    here = log.catalog.read(lambda tx: look_here(tx, source), snapshot=True)
    region = source_log.catalog.read(get_region)
    if here is None or region is None:
        return
    known = evening.latest_life(here, source)
    restarts: set[int] = set()
    for name, mine in here.streams.items():
        if known > region.incarnation:
            raise RegionWentBackError(source, name, f"events of its life {known} were copied")
        theirs = source_log.catalog.read(
            lambda tx, name=name: streams.get(tx, name),  # type: ignore[misc]
            snapshot=True,
        )
        if theirs is None:
            continue
        for segment in mine.segments:
            found = theirs.segment(segment.number)
            if found is None or segment.id not in here.places:
                continue
            ends = here.ends[segment.id]
            begun = {n: end for n, end in ends.items() if evening.is_current(n, region)}
            if region.incarnation > 1 and not begun:
                restarts.add(segment.id)
                continue
            check_place(source, name, here.places[segment.id], found)
            for lane, end in begun.items():
                if end > 0:
                    _compare(log, mine, segment, source_log, found, source, (lane, end - 1))
    if restarts:
        evening.restart_places(log, source_log, here, restarts)


def _compare(
    log: Log,
    stream: Stream,
    segment: Segment,
    source_log: Log,
    found: Segment,
    source: str,
    at: tuple[str, int],
) -> None:
    lane, sequence = at
    mine = _event(log, stream.name, segment, lane, sequence)
    if mine is None:
        return  # trimmed here, or never copied
    there = source_log.catalog.read(lambda tx: lanes.next_sequence(tx, found.id, lane))
    if there <= sequence:
        raise RegionWentBackError(
            source,
            stream.name,
            f"its lane {lane!r} ends at {there}, and {sequence + 1} were copied",
        )
    theirs = _event(source_log, stream.name, found, lane, sequence)
    if theirs is not None and theirs != mine:
        raise RegionWentBackError(
            source, stream.name, f"event {sequence} of lane {lane!r} is another one than it was"
        )


def _event(
    log: Log, stream: str, segment: Segment, lane: str, sequence: int
) -> dict[str, object] | None:
    def look(tx: Tx) -> int | None:
        runs = lanes.runs_of(tx, segment.id, lane, sequence, sequence + 1)
        return runs[0].start + sequence - runs[0].sequence if runs else None

    offset = log.catalog.read(look)
    if offset is None or offset < segment.tail:
        return None
    try:
        batch = Cursor(log.catalog, log.store, stream, segment, offset).next(offset + 1)
    except HeadraceError:
        return None  # trimmed meanwhile; damage is told by who reads it
    return None if batch is None or not batch.num_rows else _plain(batch)


def _plain(batch: pa.RecordBatch) -> dict[str, object]:
    (row,) = batch.slice(0, 1).to_pylist()
    return {name: row[name] for name in ("timestamp", "subject", "value")}
