"""Acks by origin meet the local log: what is acked of the events that are here.

An event whose ack is known is never visible unacked: the commit that appends it acks it as well.
Several write the same row of progress, so whoever does holds the locks of the unit's owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.catalog import Tx, claims, lanes, replicas
from headrace.catalog.replicas import CursorRow
from headrace.errors import RoundOvertakenError
from headrace.groups.homes import this_region
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress import AckedRanges, Progress, store
from headrace.groups.readers.names import is_key
from headrace.regions.core.origins import Lane
from headrace.regions.core.progress import CursorDelta, OriginProgress
from headrace.regions.core.translation import is_ahead, offsets_of
from headrace.regions.runtime import readers

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CursorDelta)


def encode_cursor(progress: OriginProgress) -> bytes:
    """Progress by origin as it is stored and read by other regions."""
    return _encoder.encode(progress.whole())


def decode_cursor(reader: str, data: bytes) -> OriginProgress:
    """The inverse of :func:`encode_cursor`; what cannot have been written is refused."""
    progress = OriginProgress(reader)
    if data:
        progress.merge(decode_delta(data))
    return progress


def decode_delta(data: bytes) -> CursorDelta:
    """A neighbour's record of progress."""
    from headrace.errors import InvalidCursorDeltaError

    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidCursorDeltaError(
            "a cursor of another region", f"{len(data)} bytes", f"it cannot be read: {error}"
        ) from None


def locks(reader: str, stream: str, number: int) -> set[str]:
    """The locks under which a reader's progress in a segment may be joined."""
    from headrace.groups.partitioned.runtime.units import consumed_lock
    from headrace.groups.shared.keys import leader_lease

    unit = f"{stream}/{number}"
    if is_key(reader):
        return readers.locks(reader)
    found = {
        claims.lock(reader, str(number)),
        claims.lock(reader, f"{unit}@{reader}"),
        f"lease:{leader_lease(reader)}",
    }
    return found | {consumed_lock(reader)} if GroupName.is_consumed(reader) else found


def readers_ahead(tx: Tx, segment_ids: Sequence[int]) -> set[tuple[int, str]]:
    """(segment, reader) of cursors with acks of events that have not come yet."""
    return {(at, row.reader) for at in segment_ids for row in replicas.ahead_in(tx, at)}


def acks_that_were_ahead(
    tx: Tx, firsts: Mapping[int, Mapping[Lane, int]], locked: frozenset[tuple[int, str]]
) -> None:
    """Ack events that were acked elsewhere before they came.

    ``firsts`` are the first sequences of what has just come, by segment and lane.
    """
    for segment_id, lane_firsts in firsts.items():
        for row in replicas.ahead_in(tx, segment_id):
            if (segment_id, row.reader) not in locked:
                raise RoundOvertakenError(row.reader, "acks of another region came meanwhile")
            join_from(tx, row, lane_firsts)


def join_from(tx: Tx, row: CursorRow, firsts: Mapping[Lane, int]) -> None:
    """Ack here what a cursor knows to be acked of lanes, and note whether it is still ahead."""
    progress = decode_cursor(row.reader, row.state)
    found = AckedRanges()
    for lane, first in firsts.items():
        acked = progress.acked(lane)
        if acked is not None:
            ack_lane(tx, row.segment_id, lane, acked, found, first)
    join(tx, row.reader, row.segment_id, found)
    region = this_region(tx) or ""
    ahead = is_ahead(progress, lanes.ends(tx, row.segment_id), region)
    replicas.put_cursor(tx, msgspec.structs.replace(row, ahead=ahead))


def ack_lane(
    tx: Tx, segment_id: int, lane: Lane, acked: AckedRanges, into: AckedRanges, lo: int = 0
) -> None:
    """Add the offsets of a lane's acked events, from sequence ``lo`` on."""
    if acked.end > lo:
        for start, end in offsets_of(lanes.runs_of(tx, segment_id, lane, lo, acked.end), acked):
            into.ack_range(start, end)


def join(tx: Tx, reader: str, segment_id: int, acked: AckedRanges) -> None:
    """Join acked offsets to a reader's progress; running owners join it to what they know."""
    if acked.floor or len(acked):
        store.join(tx, reader, {segment_id: Progress.of(acked, {})})


def join_readers(tx: Tx, segment_id: int, acked: Mapping[str, AckedRanges]) -> None:
    """As :func:`join`, for many readers of one segment at once."""
    known = {
        reader: Progress.of(each, {}) for reader, each in acked.items() if each.floor or len(each)
    }
    store.join_groups(tx, segment_id, known)
