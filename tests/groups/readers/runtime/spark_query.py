"""A Spark query for tests, without Spark: what it asks of its reader, and what it keeps."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial

import headrace
from headrace.catalog import Tx, streams
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.groups.readers.core.spark_batches import SparkOpening, SparkPlan
from headrace.groups.readers.runtime import spark_lines
from headrace.groups.readers.runtime.spark_watched import WatchedSparkReader

LEASE_MS = 10_000
_runs = itertools.count()


@dataclass
class Directory:
    """A checkpoint directory."""

    query: str = "query"
    offsets: list[SparkPlan] = field(default_factory=list)
    commits: set[int] = field(default_factory=set)


class Query:
    """One run of a query on a checkpoint directory."""

    def __init__(
        self,
        hr: headrace.Headrace,
        directory: Directory,
        reader: str | None = "spark-1",
        stall_after_ms: int = 0,
    ) -> None:
        self.hr = hr
        self.directory = directory
        self.run = f"run-{next(_runs)}"
        settings = ReaderSettings(lease_ttl_ms=LEASE_MS, heartbeat_ms=3000)
        self.reader = WatchedSparkReader(hr.host, "report", reader, settings, stall_after_ms)
        self.written: list[tuple[str, int]] = []
        """What its sink has written: segment and offset."""

    @property
    def last(self) -> SparkPlan | None:
        """The last batch that is finished."""
        logged, commits = self.directory.offsets, self.directory.commits
        return logged[-1] if logged and len(logged) - 1 in commits else None

    async def plan(self) -> SparkPlan | None:
        """Plan the next batch, and log it."""
        plan = await self.reader.plan(self.last, None)
        if plan is not None:
            self.directory.offsets.append(plan)
        return plan

    async def bind(self, opening: SparkOpening) -> None:
        """The read tasks."""
        number = len(self.directory.offsets) - 1
        known = (self.directory.query, number, self.run, self.reader.line, opening.opening)
        if opening.spans:
            bind = partial(_bind, known=known)
            await self.hr.host.in_transaction(bind)

    async def count(self, opening: SparkOpening) -> bool | None:
        """The commit of a Headrace sink."""
        number = len(self.directory.offsets) - 1
        known = (self.directory.query, number, self.run)
        counted = await self.hr.host.in_transaction(partial(_count, known=known))
        if counted:
            self.write(opening)
        return counted

    def write(self, opening: SparkOpening) -> None:
        """The rows reach the output."""
        for span in opening.spans:
            for low, high in span.ranges:
                self.written += [(str(span.segment), offset) for offset in range(low, high)]

    def commit(self) -> None:
        """Spark notes that the batch is finished."""
        self.directory.commits.add(len(self.directory.offsets) - 1)

    async def batch(self, *, foreign: bool = False) -> list[tuple[str, int]]:
        """A whole batch, the last one again if it is not finished; what it has written."""
        before = len(self.written)
        logged = self.directory.offsets
        plan = logged[-1] if logged and self.last is None else await self.plan()
        if plan is None:
            return []
        opening = await self.reader.open(plan)
        await self.bind(opening)
        if foreign:
            self.write(opening)
        else:
            await self.count(opening)
        self.commit()
        return self.written[before:]

    def freeze(self) -> None:
        """Let it do nothing more, as if its process were stopped."""
        life = self.reader._life
        assert life is not None
        life.core.over = True
        life._ticking.clear()
        self.reader._looking.clear()


def _bind(tx: Tx, known: tuple[str, int, str, str, str]) -> None:
    if not spark_lines.is_bound(tx, *known):
        spark_lines.bind(tx, *known)


def _count(tx: Tx, known: tuple[str, int, str]) -> bool | None:
    return spark_lines.count(tx, *known, written=False)


def everything(hr: headrace.Headrace, stream: str = "orders") -> list[tuple[str, int]]:
    """Every event of a stream, as a query writes it down."""
    log = hr.host.log
    found = log.catalog.read(lambda tx: streams.require(tx, stream))
    return sorted(
        (f"{stream}/{segment.number}", offset)
        for segment in found.segments
        for offset in range(segment.head)
    )
