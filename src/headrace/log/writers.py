"""Who may split, merge and delete a stream: it may be in other regions as well.

A segment ends at the same event in every region.  Of a stream that one region writes, that region
decides, and the others follow when they have come there.  Several regions that publish to a segment
at the same time could not end it at the same event: there it is refused.
"""

from __future__ import annotations

import msgspec

from headrace.catalog import Tx, entries, schema
from headrace.catalog.streams import Fixed, Scaling, Stream
from headrace.errors import LinkError, TilingError
from headrace.log import internal

LINKS_BUCKET = "region-links"
SEVERAL = "all"
"""Stands for the writer of a stream that is written in several regions."""


class _Writer(msgspec.Struct, frozen=True):
    """Of a link, who writes."""

    writers: str = SEVERAL


_writer_decoder = msgspec.json.Decoder(_Writer)


def writer_of(tx: Tx, stream: Stream) -> str | None:
    """The region that writes a linked stream, or :data:`SEVERAL`; None if it is not linked."""
    if all(segment.lane is None for segment in stream.segments):
        return None
    entry = entries.get(tx, LINKS_BUCKET, stream.name)
    if entry is None or entry.value is None:
        return SEVERAL
    try:
        return _writer_decoder.decode(entry.value).writers
    except (msgspec.MsgspecError, UnicodeError):
        return SEVERAL  # whoever shows the link says what is wrong with it


def scales_here(tx: Tx, stream: Stream) -> bool:
    """Whether a stream may be split and merged in this region."""
    return writer_of(tx, stream) in (None, schema.get_setting(tx, "region"))


def policy(tx: Tx, stream: Stream) -> Scaling:
    """How a stream is scaled in this region: by its policy, where it is written."""
    return stream.config.scaling if scales_here(tx, stream) else Fixed()


def check_policy(tx: Tx, stream: Stream, scaling: Scaling) -> None:
    """Refuse a policy that a stream could not follow."""
    if scaling not in (Fixed(), stream.config.scaling):
        refuse_several(tx, stream, "it cannot scale by itself")


def refuse_several(tx: Tx, stream: Stream, what: str) -> None:
    """Refuse what would split a stream that several regions write."""
    if writer_of(tx, stream) == SEVERAL:
        raise LinkError(
            f"stream {stream.name!r} is written in several regions, which cannot all end a segment "
            f"at the same event, so {what}; let one region write it: headrace region unlink "
            f"{stream.name} in each, then link it again with --writers REGION; or publish to a new "
            "stream with more segments"
        )


def refuse_scaling(tx: Tx, stream: Stream) -> None:
    """Refuse to split or merge what keeps its segments, or where other regions could not follow."""
    internal.refuse(stream, "scaled")
    if stream.config.partitions:
        raise TilingError(
            f"stream {stream.name!r} has {stream.config.partitions} partitions, one segment each; "
            "they cannot be split or merged"
        )
    refuse_several(tx, stream, "it cannot be split or merged")
    if not scales_here(tx, stream):
        writer = writer_of(tx, stream)
        raise LinkError(
            f"stream {stream.name!r} is written in {writer}; split or merge it there, and it is "
            f"done here at the same place; to write it here: headrace region promote {stream.name}"
        )


def refuse_deletion(stream: Stream) -> None:
    """Refuse to delete what other regions have as well."""
    if any(segment.lane is not None for segment in stream.segments):
        raise LinkError(
            f"stream {stream.name!r} is linked to other regions and cannot be deleted; take it out "
            f"of them first, with: headrace region unlink {stream.name}"
        )
