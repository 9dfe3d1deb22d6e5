"""Scale: seal segments and open others that cover the same keys, in one step.

Order per key survives because a key's events all go to one open segment, and a reader takes up
a segment only when it has finished every predecessor of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from headrace.catalog import Tx, tiling
from headrace.catalog.streams import KEY_SPACE, SEGMENTS_MAX, Segment, Stream
from headrace.errors import InvalidConfigError, SegmentSealedError, TilingError, UnknownSegmentError

Range = tuple[int, int]


def even_ranges(lo: int, hi: int, parts: int) -> list[Range]:
    """The range cut into ``parts`` of equal size (within one)."""
    if parts < 1 or parts > SEGMENTS_MAX or parts > hi - lo:
        raise TilingError(f"cannot cut the key range [{lo}, {hi}) into {parts} parts")
    cuts = [lo + (hi - lo) * part // parts for part in range(parts + 1)]
    return list(pairwise(cuts))


def split_ranges(segment: Segment, into: int) -> list[Range]:
    if into < 2:
        raise TilingError(f"segment {segment.number}: a split needs 2 parts or more, not {into}")
    return even_ranges(segment.range_lo, segment.range_hi, into)


def merged_range(segments: Sequence[Segment]) -> list[Range]:
    """The one range of neighbours, whatever order they are given in."""
    if len(segments) < 2:
        raise TilingError("a merge needs 2 segments or more")
    covered = _joined([(segment.range_lo, segment.range_hi) for segment in segments])
    if len(covered) > 1:
        numbers = ", ".join(str(segment.number) for segment in segments)
        raise TilingError(f"segments {numbers} are not neighbours: their key ranges leave gaps")
    return covered


def pick(stream: Stream, numbers: Sequence[int]) -> list[Segment]:
    """The open segments of these numbers; refuses unknown, repeated and sealed ones."""
    if not numbers:
        raise TilingError("name at least one segment to scale")
    if len(set(numbers)) != len(numbers):
        raise TilingError(f"a segment is named twice in {', '.join(map(str, numbers))}")
    found = []
    for number in numbers:
        segment = stream.segment(number)
        if segment is None:
            raise UnknownSegmentError(f"stream {stream.name!r} has no segment {number}")
        if segment.sealed:
            after = ", ".join(str(successor) for successor in segment.successors)
            raise SegmentSealedError(
                f"stream {stream.name!r}: segment {number} is sealed; its successors are {after}"
            )
        found.append(segment)
    return found


def check_tiling(sealed: Sequence[Segment], ranges: Sequence[Range]) -> list[Range]:
    """The new ranges in order, if they cover exactly what the sealed segments cover."""
    for lo, hi in ranges:
        if not 0 <= lo < hi <= KEY_SPACE:
            raise TilingError(f"[{lo}, {hi}) is not a key range within [0, {KEY_SPACE})")
    ordered = sorted(ranges)
    for (_, before_hi), (lo, hi) in pairwise(ordered):
        if lo < before_hi:
            raise TilingError(f"the new range [{lo}, {hi}) overlaps the one before it")
    old = _joined([(segment.range_lo, segment.range_hi) for segment in sealed])
    new = _joined(ordered)
    if old != new:
        raise TilingError(
            f"the new ranges cover {_shown(new)}, but the sealed segments cover {_shown(old)}"
        )
    return ordered


def apply(tx: Tx, stream: Stream, numbers: Sequence[int], ranges: Sequence[Range]) -> list[int]:
    """Seal the segments and open one for each range; returns the new numbers."""
    sealed = pick(stream, numbers)
    ordered = check_tiling(sealed, ranges)
    count = len(stream.open_segments) - len(sealed) + len(ordered)
    if count > SEGMENTS_MAX:
        raise InvalidConfigError(
            f"stream {stream.name!r} would have {count} open segments; {SEGMENTS_MAX} is the most"
        )
    for segment in sealed:
        tiling.seal(tx, segment.id)
    edges = [(segment.number, segment.range_lo, segment.range_hi) for segment in sealed]
    return tiling.open_segments(tx, stream.id, ordered, edges)


def _joined(ranges: Sequence[Range]) -> list[Range]:
    joined: list[Range] = []
    for lo, hi in sorted(ranges):
        if joined and joined[-1][1] == lo:
            joined[-1] = (joined[-1][0], hi)
        else:
            joined.append((lo, hi))
    return joined


def _shown(ranges: Sequence[Range]) -> str:
    return " and ".join(f"[{lo}, {hi})" for lo, hi in ranges) or "nothing"
