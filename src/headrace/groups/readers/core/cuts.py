"""Cuts in the graph of segments: what lies behind one, within it, and ahead of it.

The log knows every segment's predecessors.  Seen from a cut a segment is *within* it (it has a
position there), *ahead* of it (it follows one within it) or *behind* it (neither: its events come
before the cut).  A segment ahead may have predecessors behind; those are done, and it must wait
for the others only.

A cut that a group begins at, and one that it ends at, are checked against the graph and against
each other before anything is decided: the rules have no graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.errors import InvalidReaderUpdateError
from headrace.groups.readers.core.segments import END, Cut, SegmentId, Successor, falls, positions
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import AddStreams, Reset
from headrace.log import order

Graph = Mapping[SegmentId, tuple[SegmentId, ...]]
"""Every segment that the log knows, with its predecessors."""


def waits_of(cut: Cut, graph: Graph) -> tuple[Successor, ...]:
    """Segments ahead of a cut with predecessors behind it, and whom they still wait for."""
    ahead = order.following(cut, graph)
    behind = graph.keys() - ahead - cut.keys()
    waits = []
    for segment in sorted(ahead):
        open_ = order.awaited(graph[segment], behind)
        if len(open_) < len(graph[segment]):
            waits.append(Successor(segment, tuple(sorted(open_))))
    return tuple(waits)


def check_cut(cut: Cut, graph: Graph, what: str = "cut") -> None:
    """Refuse a cut with unknown segments, with one that follows another, or with a hole.

    A hole is a segment without successors that is neither within nor ahead: its keys would
    never be read again, though others of its stream are.
    """
    ahead = _check_known(cut, graph, what)
    streams = {segment.stream for segment in cut}
    followed = {before for predecessors in graph.values() for before in predecessors}
    for segment in sorted(graph):
        if segment.stream in streams and segment not in followed:
            if segment in cut or segment in ahead:
                continue
            raise InvalidReaderUpdateError(f"{what}: it says nothing of the keys of {segment}")


def _check_known(cut: Cut, graph: Graph, what: str) -> set[SegmentId]:
    """Every segment is known and follows no other of the cut; what lies ahead of it."""
    for segment in cut:
        if segment not in graph:
            raise InvalidReaderUpdateError(f"{what}: there is no segment {segment}")
    ahead = order.following(cut, graph)
    for segment in sorted(cut):
        if segment in ahead:
            raise InvalidReaderUpdateError(
                f"{what}: {segment} follows another segment of the cut; name one of them"
            )
    return ahead


def check_end(start: Cut, end: Cut, graph: Graph) -> None:
    """Refuse an end that a group which begins at `start` would never come to.

    What is read whole, up to the end, must go on into the end cut: a segment that nothing
    follows would be read for ever, and one that is merged with a segment of the end cut leads
    into a segment that never opens.
    """
    beyond = _check_known(end, graph, "end cut")
    ahead = order.following(start, graph)
    for segment, offset in end.items():
        if offset == END:
            raise InvalidReaderUpdateError(
                f"end cut: give the offset at which {segment} ends, not {END}"
            )
        at = start.get(segment)
        if at is None and segment not in ahead:
            raise InvalidReaderUpdateError(
                f"end cut: {segment} lies behind the start; the group would begin after its end"
            )
        if at is not None and falls(at, offset):
            shown = "its end" if at == END else at
            raise InvalidReaderUpdateError(
                f"end cut: {segment} ends at {offset}, and the group begins there at {shown}"
            )
    followers: dict[SegmentId, list[SegmentId]] = {}
    for segment, predecessors in graph.items():
        for before in predecessors:
            followers.setdefault(before, []).append(segment)
    for segment in sorted({*start, *ahead} - beyond - end.keys()):
        if segment not in followers:
            raise InvalidReaderUpdateError(f"end cut: it says nothing of the keys of {segment}")
        for after in followers[segment]:
            if after in beyond:
                raise InvalidReaderUpdateError(
                    f"end cut: {segment} leads into {after}, which lies beyond the end; "
                    f"name {segment}, too"
                )


def floors_at(
    cut: Cut, waiting: Iterable[SegmentId], graph: Graph, heads: Mapping[SegmentId, int]
) -> dict[SegmentId, int]:
    """How far every segment counts as read by a group that stands at a cut.

    What lies behind it is read to its head, so that neither retention nor lag waits for it, and of
    what lies ahead nothing.
    """
    ahead = order.following(cut, graph) | set(waiting)
    found = {}
    for segment, head in heads.items():
        offset = 0 if segment in ahead else cut.get(segment, END)
        found[segment] = head if offset == END else min(offset, head)
    return found


def reset_to(
    cut: Cut, graph: Graph, state: ReaderGroupState | None = None, *, end_cut: Cut | None = None
) -> Reset:
    """The update that begins again at a cut, with what waits for only some predecessors.

    With a state, the cut must speak of all streams of the group and come before its end.
    """
    check_cut(cut, graph)
    if state is not None:
        named = {segment.stream for segment in cut}
        for stream in state.streams:
            if stream not in named:
                raise InvalidReaderUpdateError(f"cut: it says nothing of stream {stream!r}")
        kept = state.end_cut if end_cut is None else end_cut
        if kept:
            check_end(cut, kept, graph)
    elif end_cut:
        check_end(cut, end_cut, graph)
    return Reset(
        positions(cut), waits_of(cut, graph), None if end_cut is None else positions(end_cut)
    )


def begin_at(
    cut: Cut, graph: Graph, config: GroupConfig, *, end_cut: Cut | None = None, revision: int = 0
) -> ReaderGroupState:
    """A new group that begins at a cut, and ends at another if one is given."""
    check_cut(cut, graph)
    if end_cut:
        check_end(cut, end_cut, graph)
    waits = waits_of(cut, graph)
    return ReaderGroupState(config, cut, waits=waits, end_cut=end_cut, revision=revision)


def add_streams(cut: Cut, graph: Graph, *, end_cut: Cut | None = None) -> AddStreams:
    """The update that adds the streams of a cut."""
    check_cut(cut, graph)
    if end_cut:
        check_end(cut, end_cut, graph)
    return AddStreams(positions(cut), waits_of(cut, graph), positions(end_cut or {}))
