"""The logs of the streams that a simulated reader group reads."""

from __future__ import annotations

from headrace.groups.readers.core.segments import SegmentId, Successor
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.sim.log import ModelLog, Segment


class StreamLogs:
    """Segments of all streams, and how much of them the group reads."""

    def __init__(self, logs: dict[str, ModelLog], state: ReaderGroupState) -> None:
        self.logs = logs
        self.streams = set(state.streams)
        """The streams that the group reads; others of the log are none of its business."""
        self.end_cut = dict(state.end_cut)
        self._ids: dict[str, list[SegmentId]] = {stream: [] for stream in logs}
        """The segments of each stream by number; there are ever more of them."""

    def segment(self, segment: SegmentId) -> Segment:
        """A segment of a stream."""
        return self.logs[segment.stream].segments[segment.number]

    def segments(self) -> list[SegmentId]:
        """Every segment of every stream that the group reads."""
        return [s for stream in self.logs if stream in self.streams for s in self.of_stream(stream)]

    def of_stream(self, stream: str) -> list[SegmentId]:
        """Every segment of a stream; predecessors have lower numbers."""
        known, segments = self._ids[stream], self.logs[stream].segments
        if len(known) < len(segments):
            known += [SegmentId(stream, n) for n in range(len(known), len(segments))]
        return known

    def graph(self) -> dict[SegmentId, tuple[SegmentId, ...]]:
        """Every segment with its predecessors."""
        return {
            SegmentId(stream, n): tuple(SegmentId(stream, p) for p in segment.predecessors)
            for stream, log in self.logs.items()
            for n, segment in log.segments.items()
        }

    def successors(self, segment: SegmentId) -> tuple[Successor, ...]:
        """What follows a segment, each with all its predecessors."""
        log = self.logs[segment.stream]
        return tuple(
            Successor(
                SegmentId(segment.stream, n),
                tuple(SegmentId(segment.stream, p) for p in log.segments[n].predecessors),
            )
            for n in log.segments[segment.number].successors
        )

    def limit(self, segment: SegmentId) -> int:
        """How many events of a segment the group reads, as far as is known."""
        head = len(self.logs[segment.stream].segments[segment.number].events)
        return min(head, self.end_cut.get(segment, head)) if self.end_cut else head

    def at_end(self, segment: SegmentId, floor: int) -> bool:
        """Whether a floor is the end of a segment for this group."""
        if segment in self.end_cut and floor >= self.end_cut[segment]:
            return True
        return self.segment(segment).sealed and floor >= self.limit(segment)
