"""A streaming query that reads for a reader group: what Spark calls.

The reader lives on an event loop in a thread of the process that plans the query
(:mod:`headrace.groups.readers.runtime.spark_reader`); Spark's calls are handed to it and waited
for.  Spark asks for the latest offset every few milliseconds, which is answered from memory as long
as nothing changed.

Spark ends this process by a signal, and does not call ``stop``; so the signal makes it leave the
group first.  A closed socket ends in ``stop``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.api import sync
from headrace.catalog import Tx, leases, markers, streams
from headrace.catalog.bell import Bell
from headrace.errors import ReaderBusyError, UnknownTaskError
from headrace.groups.readers import admin
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.groups.readers.core.spark_batches import SparkOpening
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime import spark_lines
from headrace.groups.readers.runtime.spark_planning import Missing
from headrace.groups.readers.runtime.spark_reader import SparkReader
from headrace.groups.readers.runtime.spark_watched import WatchedSparkReader
from headrace.groups.readers.spark_use import holder_of
from headrace.log.log import Log
from headrace.spark import group_offsets, weighing
from headrace.spark.connection import Connection
from headrace.spark.group_offsets import GroupOffset, GroupPlace
from headrace.spark.options import SourceOptions
from headrace.spark.planner import LOOK_S
from headrace.spark.planning import Span
from headrace.spark.source import OffsetRun, read_run, tasks_of
from headrace.spark.task import QUERY_ID, task_of
from headrace.subjects import check_name

NO_LIMIT = 1 << 62
LEAVE_S = 10.0
"""After that the lease has run out by itself."""
LEASE_VARIABLE = "HEADRACE_SPARK_LEASE_MS"
"""For tests: how long the lease of a query's reader lasts."""

T = TypeVar("T")


class GroupRun(OffsetRun):
    """What one task reads, and the opening that it belongs to."""

    def __init__(self, spans: Sequence[tuple[Span, int]], line: str, opening: str) -> None:
        super().__init__(spans)
        self.line = line
        self.opening = opening


def check_group(log: Log, options: SourceOptions) -> GroupPlace:
    """The group that a query is to read for; raises what is wrong with group or reader."""
    assert options.group is not None
    name = ReaderGroupName(options.group)
    record = admin.get(log, name.group)
    if options.reader is not None:
        reader = check_name(options.reader, "reader name")
        held = log.catalog.read(lambda tx: leases.get(tx, name.lease(reader)))
        if held is not None and not holder_of(held.owner)[0]:
            raise ReaderBusyError(name.group, reader, held.owner)
    return GroupPlace(record.id, name.group)


class GroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's text."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._log: Log | None = None
        self._place: GroupPlace | None = None
        self._filter: str | None = None
        self._loop: _ReaderLoop | None = None
        self._asked: dict[str, Any] | None = None
        self._asked_s = self._triggered_s = clock()
        self._frozen = False
        self._partitions: dict[str, list[InputPartition]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["schema"])  # type: ignore[misc]

    # -- planning, on the driver --------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        log, place = self._at()
        return GroupOffset(catalog=log.prefix, group=place).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.rows_max or options.rows_min or options.bytes_max:
            return ReadMaxRows(options.rows_max or NO_LIMIT)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        loop = self._reader_loop()
        if start == self._asked and not loop.reader.dirty and not self._due_by_time():
            loop.reader.hear()
            return start
        log, place = self._at()
        begin = group_offsets.parse(start, log.prefix, place)
        choose = None if isinstance(limit, ReadAllAvailable) else self._choose
        self._asked = None
        plan = loop.run(loop.reader.plan(begin.plan, choose))
        if plan is None:
            self._asked, self._asked_s = start, self._clock()
            return start
        self._triggered_s = self._clock()
        return group_offsets.offset_of(log.prefix, place, loop.reader.record, plan).to_json()

    def _due_by_time(self) -> bool:
        """Whether what was put off for want of events may be due by now."""
        return self._options.rows_min is not None and self._clock() >= self._asked_s + LOOK_S

    def _choose(self, tx: Tx, missing: Missing) -> dict[SegmentId, int] | None:
        """How far the next batch reaches, by the limits of events and bytes."""
        options = self._options
        ahead: dict[SegmentId, weighing.Ahead] = {}
        known = {name: streams.require(tx, name) for name in {s.stream for s in missing}}
        events = 0
        for segment, ranges in missing.items():
            found = known[segment.stream].segment(segment.number)
            if found is not None:
                first, end = ranges[0][0], ranges[-1][1]
                ahead[segment] = weighing.Ahead(found, first, end - first)
                events += markers.events_in(tx, found, ranges)
        waited_s = self._clock() - self._triggered_s
        if not self._frozen and options.wait_for_more(events, waited_s):
            return None
        return weighing.ends(tx, ahead, options.rows_max, options.bytes_max)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if self._loop is None:
            return None
        log, place = self._at()
        behind: dict[str, dict[int, int]] = {}
        found = self._loop.run(_behind(self._loop.reader))
        for segment, count in sorted(found.items()):
            behind.setdefault(segment.stream, {})[segment.number] = count
        return GroupOffset(catalog=log.prefix, group=place, behind=behind).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._frozen = True
        if self._loop is not None:
            self._loop.reader.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        log, place = self._at()
        plan = group_offsets.parse(end, log.prefix, place).plan
        if plan is None or start == end:
            return []
        if plan.batch not in self._partitions:
            loop = self._reader_loop()
            opening = loop.run(loop.reader.open(plan))
            ids = loop.run(loop.reader.segment_ids(plan))
            self._partitions = {plan.batch: self._runs(opening, plan.line, ids)}
        return self._partitions[plan.batch]

    def _runs(
        self, opening: SparkOpening, line: str, ids: Mapping[SegmentId, int]
    ) -> list[InputPartition]:
        spans = [
            Span(span.segment.stream, span.segment.number, low, high)
            for span in opening.spans
            for low, high in span.ranges
        ]
        return [
            GroupRun(
                [(span, ids[SegmentId(span.stream, span.segment)]) for span in task],
                line,
                opening.opening,
            )
            for task in tasks_of(spans, self._options)
        ]

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.close()

    def _at(self) -> tuple[Log, GroupPlace]:
        if self._log is None or self._place is None:
            self._log = self._options.connection.log()
            self._place = check_group(
                self._log, msgspec.structs.replace(self._options, reader=None)
            )
        return self._log, self._place

    def _reader_loop(self) -> _ReaderLoop:
        if self._loop is None:
            self._loop = _ReaderLoop(self._options)
            if self._frozen:
                self._loop.reader.freeze()
        return self._loop

    # -- reading, in tasks --------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, GroupRun)
        self._options.connection.check_reachable()
        log = self._options.connection.log()
        bind(log, partition.line, partition.opening)
        if self._filter is None:
            self._filter = admin.get(log, self._options.group or "").filter or ""
        options = msgspec.structs.replace(self._options, subject=self._filter or None)
        yield from read_run(options, self._schema, partition)


def bind(log: Log, line: str, opening: str) -> None:
    """In a read task, before its first row: tie query, run and batch to the opening."""
    task = task_of()
    if task is None:
        raise UnknownTaskError(
            f"Spark does not tell a task which query, run and batch it works for ({QUERY_ID}), so "
            "it cannot read for a group; use a Spark release that Headrace supports"
        )
    known = (task.query, task.batch, task.run, line, opening)
    if not log.catalog.read(lambda tx: spark_lines.is_bound(tx, *known), snapshot=True):
        log.catalog.write(lambda tx: spark_lines.bind(tx, *known))


class _ReaderLoop:
    """The reader on its event loop in a thread, and the end of both."""

    def __init__(self, options: SourceOptions) -> None:
        self._open = _opened(options.connection)
        self._hr = self._open.__enter__()
        lease_ms = int(os.environ.get(LEASE_VARIABLE, "10000"))
        settings = ReaderSettings(lease_ttl_ms=lease_ms, heartbeat_ms=max(1, lease_ms * 3 // 10))
        try:
            self.reader = self._hr.run(_made(self._hr, options, settings))
        except BaseException:
            self._open.__exit__(None, None, None)
            raise
        if not options.fail_on_data_loss:
            self.reader.let_data_go()
        self._closed = False
        self._closing = threading.Lock()
        self._told = Bell()
        self._leave_on_signal()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for it."""
        return self._hr.run(work)

    def close(self) -> None:
        """Leave the group at once, and end the thread; whoever calls second waits for the first."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(Exception):  # without an answer the lease runs out by itself
                self.run(_within(self.reader.leave(), LEAVE_S))
            with contextlib.suppress(Exception):
                self._open.__exit__(None, None, None)
            self._told.ring()  # nobody has to wait for a signal any more

    def _leave_on_signal(self) -> None:
        """Leave on another thread, then end.

        The thread that a signal interrupts may hold what leaving needs, and Spark sends the signal
        twice: so the handler does nothing but ring, and everything else goes on.
        """
        if threading.current_thread() is not threading.main_thread():
            return

        def leave_and_end() -> None:
            self._told.wait()
            if self._closed:
                return
            leaving = threading.Thread(target=self.close, daemon=True)
            leaving.start()
            leaving.join(LEAVE_S)
            os._exit(128 + signal.SIGTERM)

        def hear(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
            self._told.ring()

        threading.Thread(target=leave_and_end, name="headrace-leave", daemon=True).start()
        signal.signal(signal.SIGTERM, hear)


def _opened(connection: Connection) -> sync.Headrace:
    return sync.open(
        connection.catalog, store=connection.store, store_options=dict(connection.store_options)
    )


async def _made(
    hr: sync.Headrace, options: SourceOptions, settings: ReaderSettings
) -> WatchedSparkReader:
    assert options.group is not None
    stall_after_ms = round(options.stall_after_s * 1000)
    return WatchedSparkReader(
        hr.client.host, options.group, options.reader, settings, stall_after_ms
    )


async def _behind(reader: SparkReader) -> dict[SegmentId, int]:
    return reader.behind()


async def _within(work: Coroutine[Any, Any, None], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await work
