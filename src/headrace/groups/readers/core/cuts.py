"""Cuts in the graph of segments: what lies behind one, within it, and ahead of it.

The log knows every segment's predecessors.  Seen from a cut a segment is *within* it (it has a
position there), *ahead* of it (it follows one within it) or *behind* it (neither: its events come
before the cut).  A segment ahead may have predecessors behind; those are done, and it must wait
for the others only.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import InvalidReaderUpdateError
from headrace.groups.readers.core.segments import Cut, SegmentId, Successor, positions
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import Reset
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


def check_cut(cut: Cut, graph: Graph) -> None:
    """Refuse a cut with unknown segments, with one that follows another, or with a hole.

    A hole is a segment without successors that is neither within nor ahead: its keys would
    never be read again, though others of its stream are.
    """
    for segment in cut:
        if segment not in graph:
            raise InvalidReaderUpdateError(f"cut: there is no segment {segment}")
    ahead = order.following(cut, graph)
    for segment in sorted(cut):
        if segment in ahead:
            raise InvalidReaderUpdateError(
                f"cut: {segment} follows another segment of the cut; name one of them"
            )
    streams = {segment.stream for segment in cut}
    followed = {before for predecessors in graph.values() for before in predecessors}
    for segment in sorted(graph):
        if segment.stream in streams and segment not in followed:
            if segment in cut or segment in ahead:
                continue
            raise InvalidReaderUpdateError(f"cut: it says nothing of the keys of {segment}")


def reset_to(cut: Cut, graph: Graph) -> Reset:
    """The update that begins again at a cut, with what waits for only some predecessors."""
    check_cut(cut, graph)
    return Reset(positions(cut), waits_of(cut, graph))


def begin_at(
    cut: Cut, graph: Graph, config: GroupConfig, *, end_cut: Cut | None = None
) -> ReaderGroupState:
    """A new group that begins at a cut, and ends at another if one is given."""
    check_cut(cut, graph)
    for segment in end_cut or ():
        if segment not in graph:
            raise InvalidReaderUpdateError(f"end cut: there is no segment {segment}")
    return ReaderGroupState(config, cut, waits=waits_of(cut, graph), end_cut=end_cut)
