"""Internal streams: those that a group or an epoch stream makes for itself.

A work queue, a dead-letter stream, a progress log.  Their names hold a ``.``, so that none is a
name that a person can choose; they capture no subjects, so that nothing is routed to them; and
whoever appends names the segment.  They are read like any other stream, and go with their owner.

The functions run inside a transaction, because a stream of a group comes and goes with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.catalog import Tx, streams, tiling
from headrace.catalog.keys import check_key
from headrace.catalog.streams import KEY_SPACE, SEGMENTS_MAX, Limits, Retention, StreamConfig
from headrace.errors import InternalStreamError, InvalidConfigError, StreamExistsError
from headrace.log import scale


def progress_log(stream: str) -> str:
    """The name of the stream that holds the progress of an epoch stream."""
    return f"{stream}.epochs"


def create(
    tx: Tx,
    name: str,
    segments: int,
    retention: Retention | None = None,
    *,
    key_tokens: Iterable[int] = (),
) -> streams.Stream:
    """Create an internal stream; one that exists with the same configuration is left as it is.

    ``key_tokens`` are the subject tokens that make the key of an event without one.  The caller
    holds ``streams.LOCK_ALL``.
    """
    check_key(name, "the name of an internal stream")
    if "." not in name:
        raise InvalidConfigError(f"{name!r} is no name for an internal stream: it holds no '.'")
    if not 1 <= segments <= SEGMENTS_MAX:
        raise InvalidConfigError(f"segments={segments}: a stream has 1 to {SEGMENTS_MAX}")
    config = StreamConfig(
        subjects=(),
        key_tokens=tuple(key_tokens),
        retention=retention or Limits(),
        internal=True,
    )
    existing = streams.get(tx, name)
    if existing is None:
        return tiling.create(tx, name, config, scale.even_ranges(0, KEY_SPACE, segments))
    if existing.config != config or len(existing.segments) != segments:
        raise StreamExistsError(f"internal stream {name!r} exists in another form")
    return existing


def delete(tx: Tx, name: str) -> bool:
    """Remove an internal stream, if it is there.

    The caller holds ``streams.LOCK_ALL`` and the stream's own lock.
    """
    if streams.id_of(tx, name) is None:
        return False
    stream = streams.removable(tx, name)
    if not stream.config.internal:
        return False
    streams.delete(tx, stream)
    return True


def refuse(stream: streams.Stream, what: str) -> None:
    """Raise unless people may do ``what`` to the stream."""
    if stream.config.internal:
        whose = "a group", "the group"
        if stream.name.endswith(progress_log("")):
            whose = "an epoch stream", "that stream"
        raise InternalStreamError(
            f"stream {stream.name!r} belongs to {whose[0]} and is not {what} by hand; "
            f"it goes when {whose[1]} is deleted"
        )
