"""The driver's commit to an epoch stream: rows, line, advance and (query, batch), in one go.

The publisher belongs to the query: its lease names the query as the owner and does not run out,
since no process of a query lives long enough to renew it.  Another query is refused, or takes the
publisher over and fences the first: a query that owned it once and does not any more is refused for
good.  A batch write owns the publisher for its one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.catalog import Tx, epochs, leases, producers
from headrace.catalog.leases import Lease
from headrace.catalog.producers import Placed
from headrace.epochs.core import ledger, lines
from headrace.epochs.core.antichains import Frontier, join, leave_out
from headrace.epochs.core.commits import GiveUp, Publish, Step
from headrace.epochs.core.lines import Span
from headrace.epochs.core.times import Time
from headrace.epochs.runtime import recorded
from headrace.epochs.runtime.commit import Ledgered, Tenure, commit
from headrace.epochs.runtime.opening import Busy, find, finish, try_open
from headrace.epochs.runtime.progress_log import load_state
from headrace.epochs.runtime.rows import distinct, timed
from headrace.errors import (
    EpochStreamEndedError,
    EpochTimeMovedError,
    HeadraceError,
    SinkPublisherError,
)
from headrace.log.log import Log
from headrace.log.pending import EpochProgress
from headrace.log.shares import Share
from headrace.spark.epochs.sink_options import EpochWrite
from headrace.spark.epochs.sink_rows import Counts, added
from headrace.spark.epochs.texts import frontier_text, parse_frontier

LEASE_MS = 60_000
FOREVER_US = 100 * 365 * 86_400 * 1_000_000


class EpochCommitPart:
    """What a staged write does to its stream's epochs; an :class:`EpochProgress` of its rows."""

    joins = False
    publisher: object = None
    content = b""
    """A query may compute another advance when a batch is repeated; its first one counts."""
    different_times = 0
    """Of interest where appends are joined."""

    def __init__(
        self,
        log: Log,
        stream: str,
        wanted: EpochWrite,
        owner: str,
        *,
        keeps: bool,
        told: Sequence[str] = (),
        times: Sequence[Time] = (),
    ) -> None:
        """``keeps``: the owner is a query, and has the publisher after the commit.

        ``told`` are frontiers that tasks found in rows, and ``times`` the epochs they gave all of
        theirs (``epoch=batch``).
        """
        self._where: Ledgered = find(log, stream)
        self.wanted = wanted
        self._owner = owner
        self._keeps = keeps
        self._told = tuple(told)
        self._times = tuple(times)
        self._lease = epochs.lease_name(self._where.stream.id, wanted.publisher)
        self._files: dict[int, dict[Time, int]] = {}
        self._rows: dict[int, dict[Time, int]] = {}
        self._batch: npt.NDArray[np.int64] | tuple[int, ...] = ()

    @property
    def stream_id(self) -> int:
        return self._where.stream.id

    @property
    def locks(self) -> list[str]:
        own = [leases.lock(self._lease), *recorded.locks([self._where.stream.name])]
        return [*self._where.locks, *own]

    # -- counts -------------------------------------------------------------------------

    def take_files(self, found: Sequence[tuple[int, Counts]]) -> None:
        """(segment, counts) of the staged files."""
        self._files = {}
        for segment, counts in found:
            added(self._files.setdefault(segment, {}), counts)

    def take_rows(self, batch: object) -> None:
        """The rows that travelled to the driver."""
        _, self._batch = timed(self._where.shape, batch, None)

    def times(self) -> tuple[int, ...] | npt.NDArray[np.int64]:
        """See :class:`EpochProgress`."""
        return self._batch

    def joined(self, others: Sequence[EpochProgress]) -> EpochProgress:
        raise AssertionError(others)  # it never joins

    def prepare(self, shares: Sequence[Share]) -> None:
        """Count the rows of each time that the segments get."""
        self._rows = {}
        known, places = distinct(self._where.shape, self._batch) if shares else ((), np.empty(0))
        for share in shares:
            if len(known) == 1:
                counts = {known[0]: share.count}
            else:
                some = np.bincount(places if share.rows is None else places[share.rows])
                found = np.flatnonzero(some).tolist()
                counts = {known[at]: int(some[at]) for at in found}
            added(self._rows.setdefault(share.segment, {}), counts)

    def record(self, tx: Tx, placed: Sequence[Placed]) -> None:
        """The rows are placed; the line is written for them and the files together."""

    # -- the transaction ----------------------------------------------------------------

    def commit(self, tx: Tx, placed: Sequence[Placed], producer: str) -> None:
        """Write the line of everything that was placed, and advance."""
        held = self._bound(tx, producer)
        where = self._where
        totals: dict[int, dict[Time, int]] = {}
        for found in (self._files, self._rows):
            for segment, counts in found.items():
                added(totals.setdefault(segment, {}), counts)
        times = tuple(sorted({time for counts in totals.values() for time in counts}))
        place_of = {time: at for at, time in enumerate(times)}
        spans = []
        for spot in placed:
            counts = totals[spot.segment]
            assert sum(counts.values()) == spot.count
            shown = tuple(sorted((place_of[time], n) for time, n in counts.items()))
            spans.append(
                Span(
                    spot.segment,
                    spot.start,
                    spot.start + spot.count,
                    () if len(times) == 1 else shown,
                )
            )
        standing = epochs.standing(tx, where.stream.id, held.name).publisher
        assert standing is not None
        before = ledger.decode_publisher(standing, held.name, where.stream.name).frontier
        self._check_batch_time(before)
        after = self._after(before, times)
        advance = None if after == before or not after else after
        rows = sum(spot.count for spot in placed)
        steps = (Step(times, rows, advance),)
        commit(tx, where, Publish(held.name, held.token, steps, times, tuple(spans)), held)
        if not after and before:
            close(tx, where, held)
        elif self._keeps:
            far_us = tx.now_us() + FOREVER_US
            leases.set_expiry(tx, [(far_us, self._lease)])
        else:
            leases.release(tx, self._lease, held.token)

    def _check_batch_time(self, frontier: Frontier) -> None:
        wrong = [time for time in self._times if (time,) != frontier]
        if self.wanted.by_batch and wrong:
            raise EpochTimeMovedError(
                f"stream {self._where.stream.name!r}: tasks put this batch into epoch {wrong[0]}, "
                f"and publisher {self.wanted.publisher!r} is at {frontier_text(frontier)} by now; "
                "run the batch again"
            )

    def _after(self, before: Frontier, times: Sequence[Time]) -> Frontier:
        """The publisher's frontier after the commit; empty to close it."""
        shape, rule = self._where.shape, self.wanted.frontier
        if self.wanted.advance_to is not None:
            return parse_frontier(shape, self.wanted.advance_to, "advanceTo")
        match rule.kind:
            case "batch" if times:
                return leave_out(shape, before, times)
            case "delay" if times:
                last = max(times)
                assert isinstance(last, int)
                return join(shape, before, (max(0, last - rule.delay),))
            case "column":
                after = before
                for text in self._told:
                    after = join(shape, after, parse_frontier(shape, text, "frontier column"))
                return after
        return before

    def _bound(self, tx: Tx, producer: str) -> Tenure:
        """The publisher's token; binds it to this query if it is free, or may be taken over."""
        name, where = self.wanted.publisher, self._where
        owner, token, expires_us = leases.last(tx, self._lease)
        if owner == self._owner:
            return Tenure(name, token, LEASE_MS)
        known = epochs.standing(tx, where.stream.id, name).publisher
        if self._keeps and producers.last(tx, where.stream.id, producer) is not None:
            if known is None:
                raise self._closed(tx)
            raise SinkPublisherError(
                f"publisher {name!r} of stream {where.stream.name!r} was taken over from this "
                f"query by {owner or 'an operator'}; nothing was written. Start with a new "
                "checkpointLocation and takeover=true if it is to publish again"
            )
        over = None
        if owner is not None and self.wanted.takeover:
            over = Lease(self._lease, owner, token, expires_us)
        start = (self._times[0],) if self._times else None
        opened = try_open(
            tx,
            where,
            name,
            self._owner,
            LEASE_MS,
            start=None if known is not None else start,
            recover="rollback",
            over=over,
        )
        if isinstance(opened, Busy):
            raise SinkPublisherError(
                f"publisher {name!r} of stream {where.stream.name!r} belongs to "
                f"{opened.lease.owner}; set another publisher, or takeover=true to fence that one "
                "and take back what it put into epochs that are not complete"
            )
        return Tenure(name, opened.lease.token, LEASE_MS)

    def _closed(self, tx: Tx) -> HeadraceError:
        """Why a query whose publisher has given everything up writes no more."""
        stream, state = self._where.stream, load_state(tx, self._where.stream)
        if state.status != ledger.OPEN:
            return EpochStreamEndedError(stream.name, state.status, state.reason)
        return SinkPublisherError(
            f"publisher {self.wanted.publisher!r} of stream {stream.name!r} was closed, by an "
            "empty frontier of this query or by an operator; nothing was written. Start with a "
            "new checkpointLocation if it is to publish again"
        )


def close(tx: Tx, where: Ledgered, held: Tenure) -> None:
    """The publisher of a query gives its times up, and its lease: there is no more to come."""
    change = GiveUp(held.name, held.token, lines.CLOSED)
    finish(tx, where, change, held, "is closed: the frontier of its query is empty")
