"""A Spark query as a reader of a group, in the process that plans its batches.

Theory of operation
-------------------
Between batches it is a reader like any other: one life after the other (:mod:`.life`), driven by
the core, whether Spark asks for anything or not.  Lease, state, detector, completions, claims,
releases and checkpoints go on while triggers are rare, slow or absent.

Spark asks for two things.  *Plan*: its last batch is finished, what is next?  *Open*: a batch is
going to run, what does it read?  The rules of both are in ``core/spark_batches.py`` and their
transactions in :mod:`.spark_lines`.  A batch that a Headrace sink has counted is heard of at once,
one of a foreign sink at the next plan.

A life that ends while a batch is open is not followed by another before Spark asks again: joining
gives the segments new tokens, and what the batch did under the old ones could not be acked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from headrace.catalog import leases, spark_readers
from headrace.errors import (
    CatalogClosedError,
    ForeignCheckpointError,
    HeadraceError,
    ReaderBusyError,
    ReaderGroupError,
)
from headrace.groups.consumer import OwnedUnit
from headrace.groups.delivery import Stalled
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.groups.readers.core.spark_batches import SpanRanges, SparkOpening, SparkPlan
from headrace.groups.readers.core.synchronizer import Followed
from headrace.groups.readers.names import ReaderGroupName, ReaderGroupRecord
from headrace.groups.readers.runtime import spark_lines
from headrace.groups.readers.runtime.automatic import AutomaticCheckpoints
from headrace.groups.readers.runtime.hub import Following, hub_of
from headrace.groups.readers.runtime.joining import JoinAttempts, give_back, take_name
from headrace.groups.readers.runtime.life import ReaderLife
from headrace.groups.readers.runtime.liveness import JoinedAs, NameHeld
from headrace.groups.readers.runtime.spark_lines import Finished
from headrace.groups.readers.runtime.spark_planning import Choose, SparkPlanning
from headrace.groups.readers.runtime.spark_records import stored_line
from headrace.groups.readers.runtime.spark_units import SparkUnits
from headrace.host import Host
from headrace.subjects import check_name

LOOK_S = 0.5
"""News of streams is looked at after this time at the latest, whether Spark asks or not."""
ATTEMPTS_MAX = 5

_log = logging.getLogger(__name__)


class SparkReader:
    """See the module's text; everything is called on the event loop."""

    def __init__(
        self, host: Host, group: str, reader: str | None, settings: ReaderSettings
    ) -> None:
        self.host = host
        self.name = ReaderGroupName(group)
        self.reader = "" if reader is None else check_name(reader, "reader name")
        self.line = ""
        self.dirty = True
        """Whether a plan may come to something else than the last one did."""
        self._settings = settings
        self._instance = host.clock.name()
        self._hub = hub_of(host)
        self._units = SparkUnits(self._touch)
        self._planning = SparkPlanning(host, self.name, self._units, self._news)
        self._following: Following | None = None
        self._automatic: AutomaticCheckpoints | None = None
        self._life: ReaderLife | None = None
        self._group_id = 0
        self._took = False
        self._joining = asyncio.Lock()
        self._joins = JoinAttempts(host, self._give_back)
        self._gone: HeadraceError | None = None
        self._left = self.stalled = False
        self._unlisten: Callable[[], None] | None = None
        self._looking = host.timer(self._look_soon)
        self._planned: tuple[str, SparkPlan] | None = None
        """After which batch, and what."""
        self._opened: dict[str, SparkOpening] = {}
        self._settled = ""

    def __str__(self) -> str:
        return f"reader {self.reader} of group {self.name.group} (Spark)"

    # -- what Spark asks for ----------------------------------------------------------------

    def freeze(self) -> None:
        """Read what there is once its share is claimed, and no more."""
        self._planning.freeze()
        self.dirty = True

    def let_data_go(self) -> None:
        """Go on without what was trimmed before the group read it."""
        self._planning.fail_on_data_loss = False

    async def plan(self, last: SparkPlan | None, choose: Choose | None) -> SparkPlan | None:
        """A batch is finished, or there was none: what is next, if anything."""
        finished = None
        if last is not None:
            opened = self._opened.get(last.batch)
            finished = Finished(last.batch, None if opened is None else opened.opening)
        await self._be_online(last, finished)
        if finished is not None:
            await self._settle(finished)
        after = "" if last is None else last.batch
        if self._planned is not None:
            before, plan = self._planned
            tokens = self._units.tokens
            if before == after and all(span.segment in tokens for span in plan.spans):
                return plan
        self._planned = None
        self.dirty = False
        assert self._following is not None
        spans = await self._planning.spans(self._following, self.reader, choose)
        if not spans:
            return None
        plan = SparkPlan.after(last, self.line, self.host.clock.name(), spans)
        self._planned = after, plan
        tokens = self._units.tokens
        self._units.occupy({s.segment: tokens[s.segment] for s in spans if s.segment in tokens})
        return plan

    async def open(self, plan: SparkPlan) -> SparkOpening:
        """A batch is going to run: what it reads, the same whenever it is asked."""
        for _ in range(ATTEMPTS_MAX):
            if plan.batch in self._opened:
                return self._opened[plan.batch]
            life = await self._be_online(plan, None)
            opening = self.host.clock.name()
            try:
                made = await self._hub.transact(
                    self.name,
                    lambda commit, life=life, opening=opening: spark_lines.open_batch(  # type: ignore[misc]
                        commit, self.reader, life.token, plan, opening
                    ),
                )
            except ReaderGroupError as error:  # it was put offline meanwhile
                _log.info("%s: %s", self, error)
                assert self._following is not None
                await self._following.refresh()
                await asyncio.sleep(0)  # its life hears that it is over
                continue
            life.took(made.committed)
            found: SparkOpening = made.opening
            self._opened = {**dict(list(self._opened.items())[-1:]), plan.batch: found}
            self._planned = None
            self._units.occupy({span.segment: span.token for span in found.spans})
            if not found.spans:
                self._units.settle({})
            return found
        raise ReaderBusyError(self.name.group, self.reader, "whoever puts it offline")

    async def segment_ids(self, plan: SparkPlan) -> dict[SegmentId, int]:
        """The catalog's ids of the segments that a batch reads."""
        return await self._planning.ids(self.record, [span.segment for span in plan.spans])

    @property
    def record(self) -> ReaderGroupRecord:
        """What the group was made with."""
        assert self._following is not None
        assert self._following.record is not None
        return self._following.record

    def behind(self) -> dict[SegmentId, int]:
        """How many offsets of each segment are still to be planned, as far as it is known."""
        planned = {}
        if self._planned is not None:
            planned = {span.segment: span.ranges for span in self._planned[1].spans}
        for opening in self._opened.values():
            if opening.batch != self._settled:
                planned |= {span.segment: span.ranges for span in opening.spans}
        return self._planning.behind(planned)

    async def leave(self) -> None:
        """Leave the group: give back what it has, and the name."""
        self._left = True
        self._looking.clear()
        if self._automatic is not None:
            self._automatic.stop()
        self._planning.stop()
        if self._unlisten is not None:
            self._unlisten()
        life, self._life = self._life, None
        try:
            await self._joins.end()
            if life is not None and not life.over:
                life.stop()
                await self._give_back(life)
        finally:
            if self._following is not None:
                self._hub.leave(self._following, self)

    async def _give_back(self, joined: ReaderLife | JoinedAs) -> None:
        await give_back(self._hub, self.name, self.reader, joined)

    # -- settling -----------------------------------------------------------------------------

    async def _settle(self, finished: Finished) -> None:
        if finished.batch == self._settled:
            return
        line = await self._planning.read(lambda tx: stored_line(tx, self.line))
        opening = None if line is None else line.opening
        acks: Mapping[SegmentId, SpanRanges] = {}
        if opening is not None and opening.batch == finished.batch:
            if not opening.settled:
                acks = await self._hub.transact(
                    self.name,
                    lambda commit: spark_lines.settle(commit, self.reader, self.line, finished),
                )
            elif opening.opening == finished.mine:
                acks = self._opened[finished.batch].acks
        self._over(finished.batch, acks)

    def _over(self, batch: str, acks: Mapping[SegmentId, SpanRanges]) -> None:
        self._settled = batch
        if self._planned is None:
            self._units.settle(acks)
        if self._life is not None:
            self._life.soon()

    def _counted_news(self) -> None:
        if not self._left:
            self.host.spawn(self._counted())

    async def _counted(self) -> None:
        """A sink may have counted the batch that is open."""
        try:
            line = await self._planning.read(lambda tx: stored_line(tx, self.line))
        except HeadraceError as error:
            _log.info("%s: %s", self, error)
            return
        opening = None if line is None else line.opening
        if opening is None or not opening.settled or opening.batch == self._settled:
            return
        mine = self._opened.get(opening.batch)
        if mine is not None and mine.opening == opening.opening:
            self._over(opening.batch, mine.acks)

    # -- being online -------------------------------------------------------------------------

    async def _be_online(self, plan: SparkPlan | None, finished: Finished | None) -> ReaderLife:
        """Join if it has to; raises if it cannot."""
        self._name_it(plan)
        if self._gone is None:
            self._gone = self._units.error
        if self._gone is not None:
            raise self._gone
        if self._following is None:
            self._following = await self._hub.follow(self.name, self)
            self._automatic = AutomaticCheckpoints(
                self.host, self._hub, self._following, self.reader
            )
            self._automatic.follow()
        if self._unlisten is None:
            channel = spark_readers.channel(self.line)
            self._unlisten = await self.host.listen(channel, self._counted_news)
        if self._following.record is None:
            await self._following.refresh()
        self._group_id = self._group_id or self.record.id
        if self.record.id != self._group_id:
            raise ForeignCheckpointError(
                f"reader group {self.name.group!r} was deleted and made anew since the "
                "checkpoint; choose another checkpointLocation"
            )
        async with self._joining:
            if self._life is None or self._life.over:
                wants = () if plan is None else tuple(span.segment for span in plan.spans)
                await self._join(finished, wants)
        assert self._life is not None
        return self._life

    def _name_it(self, plan: SparkPlan | None) -> None:
        if not self.line:
            self.line = self.host.clock.name() if plan is None else plan.line
            self.reader = self.reader or f"spark-{self.line}"
        elif plan is not None and plan.line != self.line:
            raise ForeignCheckpointError(
                "the checkpoint was replaced while the query runs; start it again"
            )

    async def _join(self, finished: Finished | None, wants: tuple[SegmentId, ...]) -> None:
        ttl_ms = self._settings.lease_ttl_ms

        async def ask(over: leases.Lease | None) -> JoinedAs | NameHeld:
            return await self._joins.ask(
                self._hub.transact(
                    self.name,
                    lambda commit: spark_lines.join(
                        commit,
                        self.reader,
                        owner=(self.line, self._instance),
                        ttl_ms=ttl_ms,
                        took=self._took,
                        over=over,
                        finished=finished,
                        wants=wants,
                    ),
                    locks=(leases.lock(self.name.lease(self.reader)),),
                )
            )

        answer, valid_until_s = await take_name(self.host, self.name, self.reader, ttl_ms, ask)
        self._joins.check()
        self._took = True
        self._planned = None
        self._units.valid_until_s = valid_until_s
        assert self._following is not None
        self._life = ReaderLife(
            self, self._units, self._hub, self._following, answer, self._settings
        )
        self._life.soon()
        self._touch()

    async def _rejoin(self) -> None:
        try:
            async with self._joining:
                if self._life is None and not self._left:
                    await self._join(None, ())
        except CatalogClosedError:
            return
        except HeadraceError as error:
            _log.warning("%s: %s", self, error)  # Spark hears of it when it asks

    def _touch(self) -> None:
        self.dirty = True
        self._planning.moved.set()

    def _news(self) -> None:
        """A stream has changed."""
        self.dirty = True
        if not self._left:
            self._looking.after(LOOK_S)

    def _look_soon(self) -> None:
        if self._life is not None and not self._left:
            self.host.spawn(self._look_quietly())

    async def _look_quietly(self) -> None:
        try:
            await self._planning.look(self.record)
        except HeadraceError as error:  # Spark hears of it when it asks
            if not isinstance(error, CatalogClosedError):
                _log.info("%s: %s", self, error)

    # -- what the group and its life tell -----------------------------------------------------

    def followed(self, news: Followed | None) -> None:  # noqa: ARG002
        """The state went on."""
        if self._automatic is not None:
            self._automatic.follow()
        if self._life is not None:
            self._life.soon()
        self._planning.moved.set()

    def group_gone(self, error: HeadraceError) -> None:
        """The group was deleted."""
        self._gone = error
        life, self._life = self._life, None
        if life is not None:
            life.end()
        self._touch()

    def assigned(self, segments: tuple[str, ...]) -> None:
        """Segments are read from now on."""
        del segments
        self._looking.after(0)

    def revoked(self, segments: tuple[str, ...]) -> None:
        """Segments are read no longer."""
        del segments
        self._touch()

    def life_over(self, life: ReaderLife) -> None:
        """It was put offline: begin another life, unless a batch is under way."""
        if self._life is life:
            self._life = None
            self._touch()
            if not (self._units.is_occupied or self._left or self.stalled):
                self.host.spawn(self._rejoin())

    def stalls(self, life: ReaderLife, stall: Stalled, unit: OwnedUnit) -> None:
        """Nothing is handed out here that could stall."""

    def stream_gone(self, error: HeadraceError) -> None:
        """Nothing of a stream is fetched here; its tasks and its looks find out."""

    async def may_answer(self, checkpoint: str, positions: dict[str, int]) -> bool:  # noqa: ARG002
        """Between batches there is nothing that stands in the way."""
        return True
