"""Batches of a Spark query that is a reader: what each transaction decides.

Theory of operation
-------------------
The group's progress is the truth; the offset that Spark keeps is a *plan*: an id and absolute
spans, complete in itself.  A *line* stands for one checkpoint directory, for ever.  A batch is

*planned*  in the memory of the driver, and in the offset that Spark is about to log;
*open*     in the line's record, before a task runs: spans with the tokens of their claims, under
           an id of this very opening.  A line has one opening, the newest;
*bound*    in a row of its own: the first read task ties (query, run, number of the batch) to the
           opening before its first row.  The row outlives the opening.  So a driver that was
           replaced and wakes up is known by its binding, and does not pass for a query without
           a group;
*counted*  by a Headrace sink, in the one transaction that appends the output and acks the spans;
*settled*  by the next ``latestOffset``, where the sink is a foreign one.

Spark says that *some* run has finished a batch, not which.  A frozen driver may have opened it
with nothing and finish it after another has opened it with rows that were never written.  So a
batch is settled only if its opening is that of the process that asks, or if all there were read the
same: then the rows of these spans are out, whichever run wrote them.
Plans are numbered for this: a line keeps the highest number that was opened, also through a reset,
which forgets the opening itself.

A batch is opened once more when it is replayed: with what is left of it, as far as this reader has
its segments and nothing *before* it is missing, which keeps keys in order.  What was counted is
opened with nothing, whatever was reset since: the sink knows its number and would write nothing,
and then it would be acked.

Everything here is asked within a transaction, with what that has read, and changes nothing itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import msgspec

from headrace.errors import BatchFenced, CheckpointPutBackError
from headrace.groups.progress.ranges import AckedRanges
from headrace.groups.readers.core.segments import SegmentId

SpanRanges = tuple[tuple[int, int], ...]
Acks = dict[SegmentId, SpanRanges]


class PlannedSpan(msgspec.Struct, frozen=True, array_like=True):
    """What a batch is to read of a segment: ranges of offsets, ascending."""

    segment: SegmentId
    ranges: SpanRanges


class SparkPlan(msgspec.Struct, frozen=True):
    """A planned batch, as it stands in Spark's offset."""

    line: str
    batch: str
    spans: tuple[PlannedSpan, ...]
    number: int = 0
    """One more than that of the plan before it; 0 in checkpoints from before there were numbers."""

    @classmethod
    def after(
        cls, last: SparkPlan | None, line: str, batch: str, spans: tuple[PlannedSpan, ...]
    ) -> SparkPlan:
        """The plan that follows another."""
        return cls(line, batch, spans, 1 if last is None else last.number + 1)


class OpenSpan(msgspec.Struct, frozen=True, array_like=True):
    """What an open batch reads of a segment, under the token of its claim."""

    segment: SegmentId
    token: int
    ranges: SpanRanges


class SparkOpening(msgspec.Struct, frozen=True):
    """A batch that tasks may read."""

    batch: str
    opening: str
    """New for every process that opens it."""
    times: int
    """How often this batch was opened to read something else, this time included; 1: all openings
    of it read the same.  2 if it may have been opened before, and nobody knows to read what."""
    life: int
    """The token under which the reader that opened it had joined."""
    spans: tuple[OpenSpan, ...]
    settled: bool = False
    number: int = 0
    """That of its plan."""

    @property
    def events(self) -> int:
        """How many offsets it reads."""
        return sum(_size(span.ranges) for span in self.spans)

    @property
    def acks(self) -> Acks:
        """What is acked when it is settled or counted as it is."""
        return {span.segment: span.ranges for span in self.spans}


class SparkLine(msgspec.Struct, frozen=True):
    """What is stored of one checkpoint directory."""

    opening: SparkOpening | None = None
    counted: str = ""
    """The newest batch that a sink has counted; a reset does not forget it."""
    highest: int = 0
    """The highest number of a plan that was opened; a reset does not forget it."""
    counted_number: int = 0
    """The number of the plan of `counted`."""


class SparkBinding(msgspec.Struct, frozen=True):
    """Whose rows a (query, run, number of a batch) has; a row of its own."""

    line: str
    opening: str
    batch: str


class SegmentView(msgspec.Struct, frozen=True):
    """A segment as a transaction finds it; a claim that was given up keeps its token."""

    owner: int | None
    """The token under which its owner had joined; None if nobody has it."""
    token: int
    acked: AckedRanges


Views = Mapping[SegmentId, SegmentView]


class Taking(StrEnum):
    """What a driver may do about the lease of its reader's name."""

    TAKE = "take"
    WAIT = "wait"
    """Another reader has the name."""
    OVER = "over"
    """Another run of this checkpoint took it: this one must end."""


def take_name(holder: tuple[str, str] | None, line: str, instance: str, *, took: bool) -> Taking:
    """T0: whether a process may take the name; `holder` is (line, instance) of a living lease.

    An earlier run of the same line need not be waited for, but each process takes the name
    from another once: otherwise two of them would steal it from each other for ever.
    """
    if holder is None or holder == (line, instance):
        return Taking.TAKE
    if holder[0] != line:
        return Taking.WAIT
    return Taking.OVER if took else Taking.TAKE


def settle(
    line: SparkLine, batch: str, *, mine: str | None, life: int | None, views: Views
) -> tuple[SparkLine, Acks]:
    """T1: Spark says that a batch is finished; what to ack of it.

    `mine` is the opening of that batch by the process that asks, if it opened it.  The spans are
    acked as they were opened and under those tokens: a segment that came back meanwhile stands
    at another place.
    """
    found = line.opening
    if found is None or found.batch != batch or found.settled:
        return line, {}
    if found.opening != mine if mine is not None else found.times > 1:
        return line, {}
    acks = {
        span.segment: span.ranges
        for span in found.spans
        if _holds(span, views, (None, life, found.life))
    }
    settled = msgspec.structs.replace(found, settled=True)
    return msgspec.structs.replace(line, opening=settled), acks


def open_batch(
    line: SparkLine, plan: SparkPlan, *, opening: str, life: int, views: Views
) -> SparkLine:
    """T2: open a planned batch, or what is left of it.

    The caller has claimed what of its segments was free.  An earlier opening of the batch comes
    with its spans.
    """
    spans = () if line.counted == plan.batch else tuple(_left(plan, life, views))
    earlier = line.opening
    if earlier is not None and earlier.batch == plan.batch:
        times = earlier.times + (_ranges(earlier.spans) != _ranges(spans))
    else:
        times = 1 if plan.number > line.highest else 2
    made = SparkOpening(
        plan.batch, opening, times, life, spans, settled=not spans, number=plan.number
    )
    highest = max(plan.number, line.highest)
    return msgspec.structs.replace(line, opening=made, highest=highest)


def _ranges(spans: Iterable[OpenSpan]) -> Acks:
    return {span.segment: span.ranges for span in spans}


def _left(plan: SparkPlan, life: int, views: Views) -> Iterable[OpenSpan]:
    for span in plan.spans:
        view = views.get(span.segment)
        if view is None or view.owner != life or not span.ranges:
            continue
        missing = view.acked.missing(span.ranges[-1][1])
        left = intersected(span.ranges, missing)
        if _size(left) == _size(missing) and left:  # else something before it is missing
            yield OpenSpan(span.segment, view.token, left)


def bind(line: SparkLine, name: str, opening: str) -> SparkBinding:
    """A read task, before its first row: tie what it reads to the opening, or end."""
    found = line.opening
    if found is None or found.opening != opening:
        raise BatchFenced("another run of the query has opened this batch")
    return SparkBinding(name, opening, found.batch)


class Counted(msgspec.Struct, frozen=True):
    """What the commit of a sink does beside appending."""

    repeated: bool
    """The batch was counted before: nothing is written."""
    lines: dict[str, SparkLine]
    acks: dict[str, Acks]
    """By line."""
    batches: frozenset[str]
    """To be recorded with (query, number of the batch)."""


def count(
    bindings: Iterable[SparkBinding],
    lines: Mapping[str, SparkLine],
    recorded: frozenset[str] | None,
    views: Mapping[str, Views | None],
    elsewhere: Iterable[SparkBinding] = (),
) -> Counted:
    """T3: count a batch, in one transaction with its output; or raise, and nothing is written.

    `bindings` are those of (query, run of the rows, number of the batch); none: no rows of a
    group.  `recorded` are the ids that were counted under that number, if it was.  `views` are
    those of each line, which may be of different groups; None: neither claims nor progress have
    changed since it was opened, so all of it is as it should be.  `elsewhere` are bindings of the
    same query and number by other runs: if one of them is to what is open now, its rows may be
    among these (Spark runs what is broadcast as a job of its own).
    """
    bound = list(bindings)
    batches = frozenset(binding.batch for binding in bound)
    if recorded is not None:
        # What was counted and is open again was reset since, and the checkpoint put back to before
        # it: taken for a repeat nothing would be written, and it would be acked as finished.
        if not batches <= recorded or any(_is_open(binding, lines) for binding in bound):
            raise CheckpointPutBackError
        return Counted(repeated=True, lines={}, acks={}, batches=recorded)
    for binding in elsewhere:
        if _is_open(binding, lines):
            raise BatchFenced(
                "the batch is read by another run of the query, or within a broadcast, where a "
                "reader of a group cannot tell whose rows it has"
            )
    changed: dict[str, SparkLine] = {}
    acks: dict[str, Acks] = {}
    for binding in bound:
        line = lines.get(binding.line, SparkLine())
        found = line.opening
        if found is None or found.opening != binding.opening:
            raise BatchFenced(
                "another run of the query has opened this batch, or the group was reset"
            )
        seen = views[binding.line]
        acks[binding.line] = found.acks if seen is None else _countable(found, seen)
        changed[binding.line] = _with_counted(line, found)
    return Counted(repeated=False, lines=changed, acks=acks, batches=batches)


def _with_counted(line: SparkLine, found: SparkOpening) -> SparkLine:
    """A line whose opening was counted.

    A driver that slept may open an older batch after a newer one was counted (with nothing, unless
    the group was reset), and count it late.  Spark may replay the newer one: it stays known.
    """
    settled = msgspec.structs.replace(found, settled=True)
    if found.number < line.counted_number:
        return msgspec.structs.replace(line, opening=settled)
    return msgspec.structs.replace(
        line, opening=settled, counted=found.batch, counted_number=found.number
    )


def _is_open(binding: SparkBinding, lines: Mapping[str, SparkLine]) -> bool:
    """Whether what a task is bound to is open now, and not settled."""
    found = lines.get(binding.line, SparkLine()).opening
    return found is not None and found.opening == binding.opening and not found.settled


def _countable(opening: SparkOpening, views: Views) -> Acks:
    """All spans of an opening; raises unless each is still its own, and none of it is acked."""
    for span in opening.spans:
        if not _holds(span, views, (opening.life,)):
            raise BatchFenced(f"{span.segment} is no longer this query's")
        acked = views[span.segment].acked
        if not len(acked) and acked.floor <= span.ranges[0][0]:
            continue  # the usual case: nothing is acked from here on
        missing = acked.missing(span.ranges[-1][1])
        if _size(intersected(span.ranges, missing)) != _size(span.ranges):
            raise BatchFenced(f"{span.segment} was acked by others meanwhile")
    return opening.acks


def forget_opening(line: SparkLine, segments: Collection[SegmentId] | None = None) -> SparkLine:
    """What was open is to be read again; what was counted stays known.

    So after a reset of the group, and after acks in some of its `segments` were taken back.
    """
    spans = () if line.opening is None else line.opening.spans
    if spans and segments is not None and not any(s.segment in segments for s in spans):
        return line
    return msgspec.structs.replace(line, opening=None)


def plan_spans(
    views: Views, life: int, heads: Mapping[SegmentId, int], paused: Iterable[SegmentId], limit: int
) -> tuple[PlannedSpan, ...]:
    """What to read next of what this reader owns, lowest first; `limit` events of each at most."""
    resting = frozenset(paused)
    found = []
    for segment, view in views.items():
        if view.owner != life or segment in resting:
            continue
        ranges = _first(view.acked.missing(heads[segment]), limit)
        if ranges:
            found.append(PlannedSpan(segment, ranges))
    return tuple(found)


# --- ranges --------------------------------------------------------------------------------


def intersected(some: SpanRanges, others: SpanRanges) -> SpanRanges:
    """What two lists of ranges, both ascending, have in common.

    >>> intersected(((0, 5), (8, 9)), ((3, 9),))
    ((3, 5), (8, 9))
    """
    found = []
    i = j = 0
    while i < len(some) and j < len(others):
        low, high = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if low < high:
            found.append((low, high))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def _first(ranges: SpanRanges, count: int) -> SpanRanges:
    found = []
    for low, high in ranges:
        if count <= 0:
            break
        found.append((low, min(high, low + count)))
        count -= high - low
    return tuple(found)


def _size(ranges: SpanRanges) -> int:
    return sum(high - low for low, high in ranges)


def _holds(span: OpenSpan, views: Views, lives: tuple[int | None, ...]) -> bool:
    """Whether a segment is still claimed as it was at the opening, or by nobody if that will do."""
    view = views.get(span.segment)
    return view is not None and view.token == span.token and view.owner in lives
