"""Housekeeping: policies take effect while programs run, without anybody calling ``trim``.

Every open log looks now and then; a lease lets one of them do the work, so that many programs on
one catalog do not trip over each other.  What a policy lets go is trimmed, and progress logs behind
the rows of their epochs; segments of which nothing is left go, with their claims, others are split
and merged by the scaling policies of their streams, the store is swept once an hour, files whose
time in the graveyard is over are removed, checkpoints of Spark that nobody uses are forgotten, and
the catalog gives free space back.  When each was last done is written down (``groups/chores.py``).
Where no pipeline runs, a segment of more than ``BATCHES_MANY`` batches is compacted, for they are
read one by one.  A failure is logged and tried again at the next look.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from headrace.catalog import batches
from headrace.catalog.streams import Fixed, Segment, Stream
from headrace.epochs.runtime import holding, kept, subscriptions
from headrace.errors import HeadraceError
from headrace.groups import chores, vacant
from headrace.groups.chores import RETENTION, SCALING, SWEEP
from headrace.groups.partitioned.runtime.filling import PIPELINE
from headrace.groups.readers import spark_use
from headrace.host import Host, Stage
from headrace.log import reserve, retain

if TYPE_CHECKING:
    from headrace.log.log import Log

LEASE = "housekeeping"
EVERY_S = 30.0
SWEEP_EVERY_S = 3600
BATCHES_MANY = 10_000

_log = logging.getLogger(__name__)


class Housekeeper:
    """The task of one open log."""

    def __init__(self, host: Host, every_s: float = EVERY_S) -> None:
        self._host = host
        self._every_s = every_s
        self._owner = host.clock.local_name()
        self._compacting = Compacting(host.log)
        self._tried: Tried = {}
        self._tasks = host.tasks("housekeeping")
        self._tasks.spawn(self._run())
        host.serve(Stage.CHORES, self)

    async def close(self) -> None:
        """Start no further round."""
        self._compacting.closing = True
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            await self._host.sleep(self._every_s)
            try:
                tidied = await self._host.in_thread(
                    tidy, self._host.log, self._owner, int(self._every_s * 2000), self._tried
                )
                if tidied:
                    await self._host.in_thread(self._compacting.run)
            except HeadraceError as error:
                _log.warning("housekeeping: %s", error)


class Compacting:
    """Compaction of streams of very many batches, for catalogs without a pipeline."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._fruitless: dict[int, int] = {}
        """Heads of segments of which nothing could be compacted: until they have grown a lot."""
        self.closing = False

    def run(self) -> None:
        """One round; ends early when the log is closed."""
        log = self._log
        if log.store is None or log.catalog.leases.get(PIPELINE) is not None:
            return
        for stream in log.streams():
            due = [segment for segment in stream.segments if self._is_due(segment)]
            if due and not self.closing:
                fruitful = False
                for _ in log.compactor(stream.name).steps():
                    fruitful = True
                    if self.closing:
                        return
                if not fruitful:
                    self._fruitless.update({segment.id: segment.head for segment in due})

    def _is_due(self, segment: Segment) -> bool:
        if segment.head - max(segment.tail, self._fruitless.get(segment.id, 0)) <= BATCHES_MANY:
            return False
        return self._log.catalog.read(lambda tx: batches.has_many(tx, segment.id, BATCHES_MANY))


Tried: TypeAlias = dict[int, tuple[Stream, retain.Cuts]]
"""Streams as they were when they were last cut, and where: nothing more goes while both stay."""


def tidy(log: Log, owner: str, lease_ttl_ms: int, tried: Tried | None = None) -> bool:
    """One round, if this process gets the lease; whether it did.

    The lease is not given back, so that the same process does the next round, too, with what it
    has ``tried``.
    """
    held = log.catalog.leases.get(LEASE)
    if held is not None and held.owner != owner:
        return False
    with log.catalog.aside():
        lease = log.catalog.leases.acquire(LEASE, owner, lease_ttl_ms)
    if lease is None:
        return False
    done: dict[str, tuple[str, bool]] = {}
    retention = partial(_retain, tried={} if tried is None else tried)
    for name, chore in ((RETENTION, retention), (SCALING, _scale), (SWEEP, _sweep)):
        try:
            note = chore(log)
        except HeadraceError as error:
            _log.warning("%s: %s", name, error)
            note = str(error)
            done[name] = note, True
        else:
            if note is not None:
                done[name] = note, False
    with log.catalog.aside():
        chores.put_done(log.catalog, owner, done)
    log.empty_graveyard()
    reserve.fill(log.catalog)
    log.catalog.shrink()
    return True


def _retain(log: Log, tried: Tried) -> str:
    removed = 0
    subscriptions.expire(log.catalog)
    spark_use.forget_unused(log.catalog)
    holding.move_floors(log)
    vacant_segments = 0
    streams = log.streams(internal=True)
    over = log.catalog.read(lambda tx: retain.over(tx, streams), snapshot=True)
    for stream in streams:
        vacant_segments += vacant.drop_vacant(log, stream)
        cuts = over.get(stream.id)
        if cuts is not None and tried.get(stream.id) != (stream, cuts):
            tails = sum(segment.tail for segment in stream.segments)
            removed += sum(log.trim(stream.name).values()) - tails
            tried[stream.id] = stream, cuts
        if stream.config.epochs is not None and stream.config.epochs.stored:
            kept.trim_lines(log, stream)
    for gone in tried.keys() - over.keys():
        del tried[gone]
    if not vacant_segments:
        return f"{removed} events removed"
    vacant.drop_claims(log)
    return f"{removed} events removed, and {vacant_segments} segments of which nothing was left"


def _scale(log: Log) -> str:
    steps = [
        f"{stream.name}: {done.reason}"
        for stream in log.streams()
        if stream.config.scaling != Fixed()
        for done in log.autoscale(stream.name)
    ]
    return "; ".join(steps) or "nothing to scale"


def _sweep(log: Log) -> str | None:
    """Listing a store costs, so it is done once an hour; None: it is not time yet."""
    last = log.catalog.read(chores.last_done).get(SWEEP)
    now_us = log.catalog.read(lambda tx: tx.now_us())
    if last is not None and not last.failed and now_us - last.at_us < SWEEP_EVERY_S * 1_000_000:
        return None
    vacant.drop_claims(log)  # of streams that were deleted, and what a round that failed left
    if log.store is None:
        return "there is no store"
    return f"{log.sweep().orphans} files that nothing names removed"
