"""Markers: the records of the snapshot protocol, in line with the events of a segment.

A marker takes a position in the log like an event, is never shown to consumers, and is not
traffic.  Which regions it is replicated to depends on its kind (:func:`recipients`).

Compared with the protocol as first published, a request and a response carry their *round*, so
that an answer to the first round can never be taken for one to the second, and a snapshot
carries what its region had *seen* of every lane, so that applying an update never acks an event
that the consumers of the other region cannot have met.  Seek and delete are commands of their own
(:class:`Command`), and an update from before one is told by its *life*.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from headrace.errors import InvalidMarkerError
from headrace.regions.core.stamps import Life

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
LogPosition = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
RoundNumber = Annotated[int, msgspec.Meta(ge=1, le=2)]


class RegionPosition(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A position in a region's log."""

    region: Name
    position: LogPosition


class LaneEnd(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A region has seen every event of a lane below this sequence."""

    lane: Name
    sequence: LogPosition


class LaneHole(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Events of a lane from ``start`` up to ``end`` (exclusive) of which nobody speaks here."""

    lane: Name
    start: LogPosition
    end: LogPosition


class RequestMarker(msgspec.Struct, frozen=True, gc=False, tag="request"):
    """``source`` asks every member for the position at which this marker arrives."""

    snapshot_id: Name
    source: Name
    round: RoundNumber


class ResponseMarker(msgspec.Struct, frozen=True, gc=False, tag="response"):
    """``region`` answers a request of ``source``: the request arrived at ``position``."""

    snapshot_id: Name
    source: Name
    round: RoundNumber
    region: Name
    position: LogPosition


class SnapshotMarker(msgspec.Struct, frozen=True, gc=False, tag="snapshot"):
    """Who has acked everything up to ``local`` here has met everything up to ``positions`` there.

    ``seen`` is what this region had of every lane at ``local``.  ``missing`` names regions that
    an operator chose not to wait for.
    """

    snapshot_id: Name
    local: LogPosition
    positions: tuple[RegionPosition, ...]
    seen: tuple[LaneEnd, ...] = ()
    missing: tuple[Name, ...] = ()


class UpdateMarker(msgspec.Struct, frozen=True, gc=False, tag="update"):
    """The group has acked ``snapshot_id`` in ``source``: move its cursor elsewhere accordingly.

    ``holes`` were in ``source`` never, or no longer when its consumers came there: they are not
    acked.
    """

    group: Name
    source: Name
    snapshot_id: Name
    positions: tuple[RegionPosition, ...]
    seen: tuple[LaneEnd, ...] = ()
    life: Life = Life()
    holes: tuple[LaneHole, ...] = ()

    def position_in(self, region: str) -> int | None:
        """The position meant for a region, if it took part in the snapshot."""
        return next((p.position for p in self.positions if p.region == region), None)


class Command(msgspec.Struct, frozen=True, gc=False, tag="command"):
    """A user has deleted the group in ``source``, or set it anew: below ``floors`` all is acked.

    It counts in every region, unless a command with a higher stamp is known there.  ``holes`` never
    were in ``source``: they stay as they are.  ``at_end``: it is to the end of what ``source`` had,
    and what is acked beyond that stays acked.
    """

    group: Name
    source: Name
    life: Life
    floors: tuple[LaneEnd, ...] = ()
    holes: tuple[LaneHole, ...] = ()
    at_end: bool = False


Marker = RequestMarker | ResponseMarker | SnapshotMarker | UpdateMarker | Command

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Marker] = msgspec.msgpack.Decoder(Marker)


def recipients(marker: Marker, members: Iterable[str]) -> tuple[str, ...]:
    """The regions that a marker is replicated to, of those that the stream is replicated to."""
    match marker:
        case RequestMarker() | UpdateMarker() | Command():
            return tuple(members)
        case ResponseMarker(source=source):
            return tuple(member for member in members if member == source)
        case SnapshotMarker():
            return ()


def written_in(marker: Marker) -> str | None:
    """The region that wrote a marker which goes to other regions; none of a snapshot's own."""
    match marker:
        case ResponseMarker(region=region):
            return region
        case SnapshotMarker():
            return None
        case _:
            return marker.source


def encode_marker(marker: Marker) -> bytes:
    """The bytes of a marker as they stand in the log."""
    return _encoder.encode(marker)


def decode_marker(data: bytes) -> Marker:
    """The inverse of :func:`encode_marker`; anything else is refused."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidMarkerError(f"a marker of {len(data)} bytes cannot be read: {error}") from None
