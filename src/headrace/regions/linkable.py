"""Which streams can be in several regions, and how two of one name differ."""

from __future__ import annotations

from headrace.catalog import streams
from headrace.catalog.streams import Fixed, Segment, Stream
from headrace.errors import LinkError
from headrace.groups.shared import properties
from headrace.log.log import Log
from headrace.regions.core.scaling import conflict
from headrace.regions.records import ALL, NONE, get_link
from headrace.subjects import overlaps, parse_filter


def check_linkable(stream: Stream) -> None:
    """Refuse a stream that cannot be made in another region."""
    if stream.config.epochs is not None:
        raise LinkError(f"stream {stream.name!r} has epochs, which do not cross regions")
    first = [s for s in stream.segments if not s.predecessors]
    at = 0
    for segment in sorted(first, key=lambda each: each.range_lo):
        if segment.range_lo != at:
            break
        at = segment.range_hi
    if at != streams.KEY_SPACE:
        raise LinkError(
            f"stream {stream.name!r} was split or merged, and a part of that history is trimmed; "
            "trim it to the segments that are open, or copy it into a new stream first"
        )


def check_scaling(
    log: Log, there: Log, mine: Stream | None, theirs: Stream | None, writers: str
) -> None:
    """A stream that several regions are to write cannot be split, and has not been."""
    for side, stream in ((log, mine), (there, theirs)):
        if writers != ALL or stream is None:
            continue
        if not isinstance(stream.config.scaling, Fixed):
            raise LinkError(
                f"stream {stream.name!r} scales by itself, and several regions cannot split the "
                "same segment; set its scaling to fixed first, or let one region write it: "
                "--writers REGION"
            )
        if any(segment.sealed for segment in stream.segments):
            raise LinkError(
                f"stream {stream.name!r} was split or merged, and its history can be linked if one "
                "region writes it: --writers REGION; or copy it into a new stream first"
            )
        if found := side.catalog.read(lambda tx, s=stream: properties.splitting(tx, s)):  # type: ignore[misc]
            raise LinkError(
                f"shared group {found[0]!r} splits segments of stream {stream.name!r} for its "
                "members, which several regions cannot do; turn that off with: headrace group "
                "shared configure --no-scale-for-members, or let one region write it: "
                "--writers REGION"
            )


def check_filter(
    log: Log, there: Log, mine: Stream | None, theirs: Stream | None, given: str | None
) -> str:
    """The filter of a link; refused if it is none, or other than the stream is linked by."""
    wanted = "" if given is None else parse_filter(given)
    for side, stream in ((log, mine), (there, theirs)):
        if stream is None:
            continue
        link = side.catalog.read(lambda tx, name=stream.name: get_link(tx, name))  # type: ignore[misc]
        if link is not None and link.filter != wanted:
            has = f"the filter {link.filter!r}" if link.filter else "no filter"
            raise LinkError(
                f"stream {stream.name!r} is linked with {has}; link it with the same, or take it "
                "out of the other regions first, with: headrace region unlink"
            )
        captured = stream.config.subjects
        if wanted and not any(overlaps(wanted, subjects) for subjects in captured):
            raise LinkError(
                f"the filter {wanted!r} lets nothing pass of stream {stream.name!r}, which "
                f"captures {', '.join(captured)}"
            )
    return wanted


def check_history(mine: Stream | None, theirs: Stream | None, filter: str, backfill: str) -> None:
    """Refuse to copy what was published before there was a filter: nobody has judged it."""
    for stream in (mine, theirs):
        if not filter or backfill == NONE or stream is None:
            continue
        if any(segment.lane is None and segment.head > 0 for segment in stream.segments):
            raise LinkError(
                f"stream {stream.name!r} holds events, and a filter counts for what is published "
                "from now on: give backfill='none' (--backfill none), and they stay where they are"
            )


def tiles_of(stream: Stream) -> dict[int, Segment]:
    """The segments of a stream by number."""
    return {segment.number: segment for segment in stream.segments}


def differences(mine: Stream, theirs: Stream) -> list[str]:
    """How two streams of one name differ, in what regions must agree on."""
    found = []
    for what in ("subjects", "key_tokens", "partitions"):
        one, other = getattr(mine.config, what), getattr(theirs.config, what)
        if one != other:
            found.append(f"{what} {one!r} here and {other!r} there")
    if why := conflict(tiles_of(mine), tiles_of(theirs)):
        found.append(f"its segments: {why}")
    return found


def disagreements(mine: Stream, theirs: Stream) -> list[str]:
    """How two streams of one name differ now, also in what one of them is still to follow."""
    apart = tiles_of(mine).keys() ^ tiles_of(theirs).keys()
    return differences(mine, theirs) + [
        f"segment {number} was opened in one of the regions only" for number in sorted(apart)
    ]
