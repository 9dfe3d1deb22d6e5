"""The catalog of a simulated group with a Spark query in it.

Every method is one transaction; the decisions are those of the cores.  The output of a Headrace
sink and the acks of its rows change together; a foreign sink has its output before anything is
acked.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import ReaderGroupError
from headrace.groups.progress.ranges import AckedRanges
from headrace.groups.readers.core import spark_batches
from headrace.groups.readers.core.changes import Freed, SegmentClaimed, WasReset
from headrace.groups.readers.core.rules import apply
from headrace.groups.readers.core.segments import SegmentId, positions
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.core.spark_batches import (
    Acks,
    SegmentView,
    SpanRanges,
    SparkBinding,
    SparkLine,
    SparkOpening,
    SparkPlan,
    Taking,
)
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import (
    ClaimFree,
    RemoveReader,
    Reset,
    ReturnReader,
    Update,
)

SPARK = "spark"
BatchRun = tuple[int, str, int]
"""(query, run, number of the batch)."""


class DriverEnd(Exception):
    """A query ends with an error of Spark's own, or because another run has replaced it."""


class SparkCatalog:
    """Everything that survives a driver."""

    def __init__(self, heads: dict[SegmentId, int], *, foreign: bool) -> None:
        self.heads = heads
        self.foreign = foreign
        self.state = ReaderGroupState(GroupConfig(), dict.fromkeys(heads, 0))
        self.acked = {segment: AckedRanges() for segment in heads}
        self.claims: dict[SegmentId, tuple[int | None, int]] = dict.fromkeys(heads, (None, 0))
        self.lines: dict[str, SparkLine] = {}
        self.bindings: dict[BatchRun, SparkBinding] = {}
        self.recorded: dict[tuple[int, int], frozenset[str]] = {}
        self.holder: tuple[str, str] | None = None
        self.output: list[tuple[SegmentId, int]] = []
        self.version = 0
        """How often progress or output have changed."""
        self._ids = 0

    def new_id(self, what: str) -> str:
        """A name that nothing else has."""
        self._ids += 1
        return f"{what}{self._ids}"

    # --- the group ---

    def put(self, update: Update) -> bool:
        """Put an update to the group; claims follow it."""
        try:
            outcome = apply(self.state, update)
        except ReaderGroupError:
            return False
        for change in outcome.changes:
            match change:
                case SegmentClaimed(reader=reader, segment=segment, token=token):
                    self.claims[segment] = (self.state.members[reader].token, token)
                case Freed(segment=segment):
                    self.claims[segment] = (None, self.claims[segment][1])
                case WasReset():
                    for segment, (_, token) in self.claims.items():
                        self.claims[segment] = (None, token)
        return True

    def views(self) -> dict[SegmentId, SegmentView]:
        """What a transaction sees of all segments."""
        return {s: SegmentView(*claim, self.acked[s]) for s, claim in self.claims.items()}

    def life(self, reader: str) -> int | None:
        """The token of a reader that is online."""
        member = self.state.members.get(reader)
        return None if member is None else member.token

    def missing(self) -> bool:
        """Whether anything is left to read."""
        return any(self.acked[s].floor < head for s, head in self.heads.items())

    def ack(self, acks: Acks) -> None:
        """Add to the progress."""
        self.version += 1
        for segment, ranges in acks.items():
            for low, high in ranges:
                self.acked[segment].ack_range(low, high)

    def write(self, rows: Iterable[tuple[SegmentId, SpanRanges]]) -> None:
        """Rows reach the output, in the order of their offsets."""
        self.version += 1
        for segment, ranges in rows:
            self.output += [(segment, o) for low, high in ranges for o in range(low, high)]

    def expire(self) -> None:
        """The lease of the query ran out: somebody puts it offline."""
        self.holder = None
        self.put(RemoveReader(SPARK))

    def leave(self, line: str, instance: str, life: int) -> None:
        """A driver ends in order: it gives its segments and its name back."""
        if self.holder == (line, instance):
            self.holder = None
        self.put(RemoveReader(SPARK, token=life))

    def reset(self, kept: dict[SegmentId, int]) -> None:
        """Go back to floors; the output of what is to be read again is taken away."""
        self.version += 1
        self.acked = {segment: AckedRanges(floor) for segment, floor in kept.items()}
        self.output = [(s, offset) for s, offset in self.output if offset < kept[s]]
        self.put(Reset(positions(kept)))
        self.holder = None
        self.lines = {n: spark_batches.forget_opening(each) for n, each in self.lines.items()}

    def rewind(self, reader: str, segment: SegmentId, offset: int) -> None:
        """Put a reader offline, and take acks of a segment back."""
        self.version += 1
        self.put(RemoveReader(reader, positions({segment: offset}), rewind=True))
        if reader == SPARK:
            self.holder = None
        self.acked[segment] = AckedRanges(offset)
        self.output = [(s, at) for s, at in self.output if s != segment or at < offset]
        self.lines = {
            n: spark_batches.forget_opening(each, (segment,)) for n, each in self.lines.items()
        }

    # --- the transactions of the query ---

    def join(
        self,
        line: str,
        instance: str,
        wants: tuple[SegmentId, ...],
        finished: tuple[str, str | None] | None,
        *,
        took: bool,
    ) -> int:
        """T0, with T1 if a batch is known to be finished: join, and have the segments again."""
        taking = spark_batches.take_name(self.holder, line, instance, took=took)
        if taking is not Taking.TAKE:
            raise DriverEnd(taking)
        if finished is not None:
            self.settle(line, *finished)
        self.holder = (line, instance)
        self.put(ReturnReader(SPARK, 0, (), wants))
        life = self.life(SPARK)
        assert life is not None
        return life

    def settle(self, line: str, batch: str, mine: str | None) -> None:
        """T1."""
        found = self.lines.get(line, SparkLine())
        self.lines[line], acks = spark_batches.settle(
            found, batch, mine=mine, life=self.life(SPARK), views=self.views()
        )
        self.ack(acks)

    def open(self, plan: SparkPlan, life: int) -> SparkOpening:
        """T2."""
        segments = tuple(span.segment for span in plan.spans)
        self.put(ClaimFree(SPARK, life, segments))
        made = spark_batches.open_batch(
            self.lines.get(plan.line, SparkLine()),
            plan,
            opening=self.new_id("opening"),
            life=life,
            views=self.views(),
        )
        self.lines[plan.line] = made
        assert made.opening is not None
        return made.opening

    def bind(self, line: str, opening: str, run: BatchRun) -> None:
        """Before the first row of a read task."""
        found = self.lines.get(line, SparkLine())
        self.bindings[run] = spark_batches.bind(found, line, opening)

    def bindings_of(self, run: BatchRun) -> list[SparkBinding]:
        """Whose rows a batch of a run has."""
        return [self.bindings[run]] if run in self.bindings else []

    def bindings_elsewhere(self, run: BatchRun) -> list[SparkBinding]:
        """Whose rows other runs of a batch have."""
        query, _, number = run
        return [
            binding
            for (of, by, batch), binding in self.bindings.items()
            if (of, batch) == (query, number) and by != run[1]
        ]

    def sink(self, run: BatchRun, rows: list[tuple[SegmentId, SpanRanges]]) -> None:
        """T3, or the commit of a foreign sink."""
        if self.foreign:
            self.write(rows)
            return
        bound = self.bindings_of(run)
        query, _, number = run
        recorded = self.recorded.get((query, number))
        elsewhere = self.bindings_elsewhere(run)
        views = {binding.line: self.views() for binding in bound}
        counted = spark_batches.count(bound, self.lines, recorded, views, elsewhere)
        if counted.repeated:
            return
        self.write(rows)
        for acks in counted.acks.values():
            self.ack(acks)
        self.lines |= counted.lines
        if bound or rows:
            self.recorded[query, number] = counted.batches
