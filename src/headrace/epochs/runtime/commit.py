"""Commits to an epoch stream: rows, line and ledger change in one transaction, or none does.

The order within it: a repeat is found before anything is judged (``Write.run``); the rows are
placed; then the token is checked, the ledger decides over what the catalog holds, and the line is
appended.  Whatever is refused undoes the placing, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Self

import msgspec
import numpy as np

from headrace.catalog import Tx, batches, epochs, leases, streams
from headrace.catalog.producers import Placed
from headrace.epochs.core import ledger
from headrace.epochs.core.commits import EpochCommit, Publish, Step
from headrace.epochs.core.ledger import Decided, LedgerState, PublisherState
from headrace.epochs.core.lines import Line, Span, encode_line
from headrace.epochs.core.times import Time, TimeShape, shape_of
from headrace.epochs.runtime import progress_log
from headrace.epochs.runtime.rows import RowTimes, distinct, distinct_of, one_each, together
from headrace.errors import Fenced
from headrace.log import events
from headrace.log.message import single
from headrace.log.pending import EpochProgress
from headrace.log.shares import Rows, Share, inline, share_of_blob

LINE_SUBJECT = "line"


class Ledgered(msgspec.Struct, frozen=True, dict=True):
    """Which stream, and where its progress log is; none of it changes while the stream is there."""

    stream: streams.Stream
    progress: streams.Stream

    @cached_property
    def locks(self) -> list[str]:
        """What every commit to the stream's epochs holds."""
        return [streams.lock(self.stream.id), streams.lock(self.progress.id)]

    @cached_property
    def shape(self) -> TimeShape:
        return shape_of(progress_log.epochs_of(self.stream).length)


class Tenure(msgspec.Struct, frozen=True):
    """Under which token a publisher commits, and for how long each commit extends its lease."""

    name: str
    token: int
    ttl_ms: int


def commit(
    tx: Tx, where: Ledgered, change: EpochCommit, held: Tenure | None = None
) -> tuple[Decided, LedgerState]:
    """Decide on a commit and store what it changes; with ``held``, only under its token.

    Returns the outcome, and the state before it.
    """
    stream_id, name = where.stream.id, change.publisher
    standing = epochs.standing(tx, stream_id, name)
    if held is not None and (standing.owner is None or standing.token != held.token):
        raise Fenced(f"epochs/{where.stream.name}", name, held.token, standing.token)
    publisher: PublisherState | None = None
    if standing.stream is None:
        before, declared = progress_log.begin(where.stream)
        for each in declared:
            publisher = each if each.name == name else publisher
    else:
        declared = ()
        before = ledger.decode_state(standing.stream, where.stream.name)
        if standing.publisher is not None:
            publisher = ledger.decode_publisher(standing.publisher, name, where.stream.name)
    decided = ledger.decide(before, publisher, change)
    now_us = tx.now_us()
    if held is not None and standing.expires_us - now_us < held.ttl_ms * 667:
        leases.set_expiry(tx, [(now_us + held.ttl_ms * 1000, epochs.lease_name(stream_id, name))])
    if decided.line is None:
        return decided, before
    for each in declared:
        epochs.put_publisher(tx, stream_id, each.name, ledger.encode_state(each), now_us, 0)
    append_line(tx, where, decided.line)
    moved = decided.state.lower != before.lower or standing.stream is None
    moved_us = now_us if moved else standing.moved_us
    epochs.put_stream(tx, stream_id, ledger.encode_state(decided.state), moved_us)
    after = decided.publisher
    if after is None:
        epochs.remove_publisher(tx, stream_id, name)
    elif publisher != after:
        stays = publisher is not None and publisher.held == after.held
        its_us = standing.publisher_moved_us if stays and standing.publisher_moved_us else now_us
        epochs.put_publisher(tx, stream_id, name, ledger.encode_state(after), its_us, now_us)
    return decided, before


def append_line(tx: Tx, where: Ledgered, line: Line) -> None:
    """Write a line; the caller holds the locks, and has found the stream to be still there."""
    segment = where.progress.segments[0]
    now_us = events.now_us()
    event = events.Event(subject=LINE_SUBJECT, value=encode_line(line))
    lone = single(event, now_us)
    if lone is None:
        batch = events.batch_of([event], now_us)
        layout = events.layout_of(batch.schema)
        new = inline(segment.id, Rows(batch, layout, events.stamps_of(batch)))
    else:
        (new,) = share_of_blob(segment, 1, lone.ts_us, lone.layout, lone.blob, None).batches
    placed = batches.append(tx, [new])
    assert placed is not None  # it is never sealed, and goes with the stream
    tx.notify(streams.channel(where.progress.id))


class LedgerPart:
    """What one append (or advance) does to its stream's epochs; an :class:`EpochProgress`."""

    def __init__(
        self,
        where: Ledgered,
        held: Tenure,
        steps: Sequence[Step] = (),
        times: RowTimes | None = None,
        rows: int = 0,
        *,
        joins: bool = False,
        publisher: object = None,
        take_back: bool = False,
    ) -> None:
        self._where = where
        self._held = held
        self.steps = tuple(steps)
        self._times = times
        self._rows = rows
        self.joins = joins
        self.publisher = publisher
        self._take_back = take_back
        self._known: tuple[Time, ...] = ()
        self._counts: list[tuple[tuple[int, int], ...]] = []
        self.decided: Decided | None = None
        """The outcome of the last run of the transaction, which counts once it is committed."""

    @property
    def locks(self) -> Iterable[str]:
        return self._where.locks

    @property
    def content(self) -> bytes:
        advances = [step.advance_to for step in self.steps if step.advance_to is not None]
        return repr(advances).encode() if advances else b""

    @property
    def different_times(self) -> int:
        """How many different times its rows have."""
        return sum(len(step.times) for step in self.steps)

    def times(self) -> RowTimes:
        """The time of all rows, or the parts of the time of each; without rows it says nothing."""
        return (0,) if self._times is None else self._times

    def joined(self, others: Sequence[EpochProgress]) -> EpochProgress:
        """This and those behind it as one: their steps in order, their rows one after another."""
        parts = [self, *(other for other in others if isinstance(other, LedgerPart))]
        if len(parts) == 1:
            return self
        timed = [(part._times, part._rows) for part in parts if part._times is not None]
        whole = LedgerPart(
            self._where,
            self._held,
            [step for part in parts for step in part.steps],
            together(timed) if timed else None,
            sum(part._rows for part in parts),
            joins=True,
            publisher=self.publisher,
        )
        whole._told = parts
        whole._parts = one_each(timed)
        return whole

    _told: Sequence[Self] = ()
    _parts: Sequence[tuple[tuple[int, ...], int]] | None = None
    """Of joined ones: the time and the rows of each, if each has one time."""

    def prepare(self, shares: Sequence[Share]) -> None:
        """Count the rows of each time in every share."""
        self._known, self._counts = (), []
        if self._times is None or not shares:
            return
        shape = self._where.shape
        if self._parts:
            self._known, places = distinct_of(shape, self._parts)
        else:
            self._known, places = distinct(shape, self._times)
        if len(self._known) == 1:
            self._counts = [()] * len(shares)
            return
        for share in shares:
            rows = share.rows
            counts = np.bincount(places if rows is None else places[rows])
            found = np.flatnonzero(counts)
            self._counts.append(tuple(zip(found.tolist(), counts[found].tolist(), strict=True)))

    def record(self, tx: Tx, placed: Sequence[Placed]) -> None:
        """Write the line of rows that are placed."""
        spans = tuple(
            Span(spot.segment, spot.start, spot.start + spot.count, counts)
            for spot, counts in zip(placed, self._counts, strict=True)
        )
        change = Publish(
            self._held.name,
            self._held.token,
            self.steps,
            self._known if spans else (),
            spans,
            take_back=self._take_back,
        )
        self.decided, _ = commit(tx, self._where, change, self._held)
        for part in self._told:
            part.decided = self.decided
