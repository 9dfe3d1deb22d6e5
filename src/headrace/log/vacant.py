"""Segments that are over for good: sealed, trimmed to the last event, and passed by every group.

A stream that is scaled and trimmed for months has had thousands of segments, and everybody who
looks at it would read them all.  So a segment goes when nothing can be read of it any more.  The
order of keys (:mod:`headrace.log.order`) is kept, since a segment stays as long as one of its
predecessors does: those that go are finished for everybody, and what follows them begins the
stream from then on.

Whoever holds a place in a segment that is gone is told so, and never passed over in silence: a read
gets a :class:`~headrace.errors.TrimmedError`, a query of Spark a ``DataLossError``.  They have an
hour (:data:`~headrace.log.limits.VACANT_GRACE_S`) from the sealing on.  The streams of groups,
linked streams and streams with epochs keep their segments: there, numbers of segments stand in
other records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from headrace.catalog import Catalog, Tx, streams, vacant
from headrace.catalog.streams import Segment, Stream
from headrace.log import limits, order


def may_go(stream: Stream) -> bool:
    """Whether a stream has segments that might be over."""
    config = stream.config
    if config.internal or config.epochs is not None:
        return False
    found = any(segment.sealed and segment.tail == segment.head for segment in stream.segments)
    return found and all(segment.lane is None for segment in stream.segments)


def drop_vacant(
    catalog: Catalog,
    name: str,
    *,
    named: Callable[[Tx, Stream], Collection[int]] = lambda _tx, _stream: (),
    locks: Sequence[str] = (),
    also: Callable[[Tx, Stream, Sequence[Segment]], None] = lambda _tx, _stream, _going: None,
    grace_s: float = limits.VACANT_GRACE_S,
) -> tuple[int, ...]:
    """Remove the segments of a stream that are over; returns their numbers.

    ``named`` tells the segments that somebody speaks of elsewhere, and ``also`` is done with those
    that go; both hold ``locks``.
    """
    stream_id = catalog.read(lambda tx: streams.id_of(tx, name))
    if stream_id is None:
        return ()

    def drop(tx: Tx) -> tuple[int, ...]:
        stream = streams.get(tx, name)
        if stream is None or stream.id != stream_id or not may_go(stream):
            return ()
        passed = vacant.passed(tx, stream.id, tx.now_us() - int(grace_s * 1_000_000))
        through = set(passed) - set(named(tx, stream))
        graph = {segment.number: segment.predecessors for segment in stream.segments}
        over = order.standing(graph, through).finished
        going = [segment for segment in stream.segments if segment.number in over]
        if going:
            also(tx, stream, going)
            vacant.remove(tx, stream.id, going)
        return tuple(segment.number for segment in going)

    return catalog.write(drop, locks=(streams.lock(stream_id), *locks))
