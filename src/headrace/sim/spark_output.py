"""What a simulated query has written, kept beside its output so that a look costs what is new.

It only ever says that all is well.  Where it does not, the scenario looks at everything and says
what is wrong.
"""

from __future__ import annotations

from headrace.groups.progress.ranges import AckedRanges
from headrace.groups.readers.core.segments import SegmentId
from headrace.sim.spark_catalog import SparkCatalog


class WrittenOutput:
    """The offsets in the output of a catalog, by segment."""

    def __init__(self, catalog: SparkCatalog) -> None:
        self._catalog = catalog
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._output = self._catalog.output
        self._seen = 0
        self._offsets: dict[SegmentId, set[int]] = {s: set() for s in self._catalog.heads}
        self._runs: dict[SegmentId, list[list[int]]] = {s: [] for s in self._catalog.heads}
        """Neighbouring offsets as [low, high), while they come in order."""
        self._in_order = True

    def _catch_up(self) -> None:
        if self._catalog.output is not self._output:  # a part of it was taken away
            self._begin_anew()
        for segment, offset in self._output[self._seen :]:
            self._offsets[segment].add(offset)
            runs = self._runs[segment]
            if runs and runs[-1][1] == offset:
                runs[-1][1] += 1
            else:
                self._in_order &= not runs or runs[-1][1] < offset
                runs.append([offset, offset + 1])
        self._seen = len(self._output)

    def holds(self) -> bool:
        """Whether everything acked was written."""
        self._catch_up()
        return all(
            self._offsets[segment].issuperset(range(*run))
            for segment, acked in self._catalog.acked.items()
            for run in _runs(acked)
        )

    def is_exact(self) -> bool:
        """Whether all that is acked was written, nothing else was, and each once and in order."""
        self._catch_up()
        return self._in_order and all(
            self._runs[segment] == _runs(acked) for segment, acked in self._catalog.acked.items()
        )


def _runs(acked: AckedRanges) -> list[list[int]]:
    below = [[0, acked.floor]] if acked.floor else []
    return below + [list(run) for run in acked.to_tuples()]
