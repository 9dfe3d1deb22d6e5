"""The one store of progress: every row of it is read and written here.

Theory of operation
-------------------
A row says how far a group has come in a segment.  Several may write the same one: the owner of the
unit, in the commits of its acks; the same owner, in transactions that join an ack with a publish;
the leader of a shared group, for the owner; the round of a partition job.  They overlap, so nobody
replaces what is there: what is written is *joined* to it.

*Floors never fall*, and nothing that is acked is forgotten, whatever is written in whatever order.
There is one exception, :func:`seek`, which puts a group where it is told to.  It takes the units
from their owners in the same transaction.  An ack that was given before it is refused after it
(``Fenced``), so none is carried across; whoever owns the unit next begins at the new place.  Each
kind of writer is stopped by what it checks before it writes: a member, a private subscription and
a transaction by the claim of the unit, a leader by its lease (``shared.state.seek`` takes it
away), the round of a job by the place that it was planned from.

*Compare and swap* saves reading most rows.  :class:`Joining` remembers, per row and token, what
one owner tried to write last.  What an owner knows only grows while its token is the same.  So if
the row still equals that, a write that was made later holds all of it, and replaces it unread; it
does not matter whether the commit that is remembered was the one that wrote it.  A write that was
made before and is committed after it is joined.  A new token begins with no memory, since a seek
may have come in between.

*Bases* (:mod:`headrace.groups.progress.base`) are written when a row first names them, and the
last row that named one takes it along.  A row that is replaced unread names the same one as before.

Whoever writes tells of it on the group's channel (:func:`headrace.catalog.progress.channel`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from headrace.catalog import Tx, claims, replicas
from headrace.catalog import progress as stored
from headrace.catalog.calls import AckCall, AckRow
from headrace.errors import AlreadyAckedError, Fenced
from headrace.groups.progress.record import Progress

_made = itertools.count(1)


class Write(stored.Progress, frozen=True, gc=False):
    """What an owner knows of a segment: the row, if nobody else has written anything."""

    token: int = 0
    progress: Progress = Progress()
    """What ``state`` encodes."""
    made: int = 0
    """Which of two writes of this program was made later, whichever is committed later."""


class HasProgress(Protocol):
    """A row that holds progress: of a group, or of what trimming took."""

    @property
    def floor(self) -> int: ...
    @property
    def state(self) -> bytes: ...
    @property
    def base(self) -> bytes: ...


class SeekPlace(NamedTuple):
    """Where a group is to go on in a segment, and the unit whose owner has it."""

    unit: str
    segment_id: int
    progress: Progress


# --- reading ---------------------------------------------------------------------------------


def decode(row: HasProgress) -> Progress:
    """A row as the record that it holds; old rows with a floor alone have no ``state``."""
    return Progress.decode(row.state, row.base) if row.state else Progress(row.floor)


def load(tx: Tx, group: str, segment_id: int) -> Progress | None:
    """A group's progress in a segment; None where it has none."""
    return load_all(tx, group, (segment_id,)).get(segment_id)


def load_all(tx: Tx, group: str, ids: Sequence[int] | None = None) -> dict[int, Progress]:
    """A group's progress by segment, everywhere or in some; those without a row are left out."""
    return {row.segment_id: decode(row) for row in stored.of_group(tx, group, ids)}


def decode_kept(tx: Tx, group: str, segment_id: int, state: bytes) -> Progress:
    """A state that was kept of a row; if its base is there no longer, nothing of it."""
    base = stored.base_of(tx, group, segment_id, state)
    if not state or (stored.base_name(state) and not base):
        return Progress()
    return Progress.decode(state, base)


def alone(row: stored.Progress) -> stored.Progress:
    """A row that stands on no base, to be kept elsewhere."""
    return msgspec.structs.replace(row, state=decode(row).encode(), base=b"") if row.base else row


# --- writing ---------------------------------------------------------------------------------


class Joining:
    """The writes of one owner; see the module's text for what it remembers."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Write] = {}

    def put(self, tx: Tx, writes: Sequence[Write]) -> list[int]:
        """Join progress to what is stored; returns the segments that had no row before."""
        quick, rest = [], []
        group = None
        for write in writes:
            before = self._before(write)
            if before is None:
                rest.append(write)
            else:
                quick.append((write, before))
            self._last[write.group, write.segment_id] = write
            if write.group != group:
                group = write.group
                tx.notify(stored.channel(group))
        if quick and stored.replace(tx, quick) != len(quick):
            rest = list(writes)  # somebody else has changed a row: read and join all
        return self._join(tx, rest) if rest else []

    def _before(self, write: Write) -> bytes | None:
        """What the row holds if this owner wrote it last, and may be replaced unread."""
        last = self._last.get((write.group, write.segment_id))
        if last is None or last.token != write.token or last.made > write.made:
            return None
        same = stored.base_name(last.state) == stored.base_name(write.state)
        return last.state if same else None

    def put_if_mine(
        self, tx: Tx, writes: Sequence[Write], units: Sequence[str]
    ) -> list[Fenced | None]:
        """Join progress under the claims of units; for each, None or why it does not count."""
        results = [_check(tx, write, unit) for write, unit in zip(writes, units, strict=True)]
        mine = [w for w, fenced in zip(writes, results, strict=True) if fenced is None]
        if mine:
            self.put(tx, mine)
        return results

    def saying(
        self,
        writes: Sequence[Write],
        units: Sequence[str],
        done: Callable[[], Any],
        partly: Callable[[Sequence[int]], None],
    ) -> AckCall | None:
        """What :meth:`put_if_mine` does if nothing is amiss; a base cannot be said."""
        befores = [self._before(write) for write in writes]
        for write, before in zip(writes, befores, strict=True):
            if before is None and (stored.base_name(write.state) or self._stands_on_base(write)):
                return None
        rows = []
        for write, unit, before in zip(writes, units, befores, strict=True):
            self._last[write.group, write.segment_id] = write
            rows.append(
                AckRow(
                    write.group,
                    unit,
                    write.token,
                    write.segment_id,
                    write.floor,
                    write.state,
                    before,
                )
            )
        return AckCall(rows, {stored.channel(write.group) for write in writes}, done, partly)

    def _stands_on_base(self, write: Write) -> bool:
        last = self._last.get((write.group, write.segment_id))
        return last is not None and bool(stored.base_name(last.state))

    def _join(self, tx: Tx, writes: list[Write]) -> list[int]:
        before = _stored(tx, writes)
        rows: list[stored.Progress] = []
        new: list[int] = []
        left: list[tuple[str, int]] = []
        for write in writes:
            group, at = write.group, write.segment_id
            found = before.get((group, at))
            if found is None:
                new.append(at)
                rows.append(_based(write, write.progress))
            elif found.state != write.state:
                joined = decode(found).merge(write.progress)
                if joined == write.progress:
                    row = _based(write, joined, found.state)
                else:
                    # It holds what this owner does not know: its next write must join as well.
                    self._last.pop((group, at), None)
                    row = _row(group, at, joined, found.state)
                if row.state != found.state:
                    rows.append(row)
                    if found.base and stored.base_name(row.state) != stored.base_name(found.state):
                        left.append((group, at))
        stored.put(tx, *rows)
        if left:
            stored.drop_bases(tx, left)
        return new

    def forget(self, writes: Iterable[Write]) -> None:
        """These were not stored after all: an owner that begins anew may not know of them."""
        for write in writes:
            self._last.pop((write.group, write.segment_id), None)


def _stored(tx: Tx, writes: Iterable[Write]) -> dict[tuple[str, int], stored.Progress]:
    """The rows that are about to be written, in as few queries as it takes."""
    by_group: dict[str, list[int]] = {}
    by_segment: dict[int, list[str]] = {}
    for write in writes:
        by_group.setdefault(write.group, []).append(write.segment_id)
        by_segment.setdefault(write.segment_id, []).append(write.group)
    if len(by_segment) < len(by_group):
        found = [
            row
            for at, groups in by_segment.items()
            for row in stored.of_groups(tx, groups, at).values()
        ]
    else:
        found = [row for group, ids in by_group.items() for row in stored.of_group(tx, group, ids)]
    return {(row.group, row.segment_id): row for row in found}


def write_of(group: str, segment_id: int, token: int, progress: Progress) -> Write:
    """A write, ready to be made."""
    state = progress.stored()
    return Write(group, segment_id, progress.floor, state, b"", token, progress, next(_made))


def join(tx: Tx, group: str, places: Mapping[int, Progress]) -> None:
    """Join progress to what is stored, by segment; for those who write now and then."""
    Joining().put(tx, [write_of(group, at, 0, progress) for at, progress in places.items()])


def join_groups(tx: Tx, segment_id: int, known: Mapping[str, Progress]) -> None:
    """As :func:`join`, for many groups in one segment at once."""
    Joining().put(
        tx, [write_of(group, segment_id, 0, progress) for group, progress in known.items()]
    )


def begin(tx: Tx, group: str, places: Mapping[int, Progress]) -> None:
    """Store progress, by segment, of a group that has none."""
    stored.put(tx, *(_row(group, at, progress) for at, progress in places.items()))
    tx.notify(stored.channel(group))


def ack_once(tx: Tx, unit: str, write: Write, begun: Progress) -> None:
    """Join acks that are only given once, under the claim of their unit.

    ``begun`` is where the owner began, in case nothing is stored yet.  Raises ``Fenced`` when the
    token is stale, and ``AlreadyAckedError`` when any of it is acked already.
    """
    group, segment_id = write.group, write.segment_id
    claims.check(tx, group, unit, write.token)
    before = load(tx, group, segment_id) or begun
    known, acked = before.acked(), write.progress.whole()
    below = ((0, acked.floor),) if acked.floor else ()
    for lo, hi in below + acked.ranges:
        if known.ack_range(lo, hi) != hi - lo:
            raise AlreadyAckedError(group, unit, lo, hi)
    _put_over(tx, before, _row(group, segment_id, Progress.of(known, dict(before.attempts))))
    tx.notify(stored.channel(group))


def ack_alone(tx: Tx, group: str, segment_id: int, offsets: Sequence[int]) -> None:
    """Ack offsets that are only given once, where nobody owns the segment; the caller has a lock.

    Raises ``AlreadyAckedError`` when one of them is acked already.
    """
    before = load(tx, group, segment_id) or Progress()
    known = before.acked()
    for offset in offsets:
        if not known.ack(offset):
            raise AlreadyAckedError(group, "", offset, offset + 1)
    _put_over(tx, before, _row(group, segment_id, Progress.of(known, {})))
    tx.notify(stored.channel(group))


def _put_over(tx: Tx, before: Progress, *rows: stored.Progress) -> None:
    """Store rows; ``before`` tells whether they may leave a base behind."""
    stored.put(tx, *rows)
    if before.base is not None:
        stored.drop_bases(tx, [(row.group, row.segment_id) for row in rows])


def with_ranges(progress: Progress, ranges: Sequence[tuple[int, int]]) -> Progress:
    """Progress with ranges of offsets acked."""
    if progress.base is None and not progress.ranges and not progress.attempts and len(ranges) == 1:
        (lo, hi) = ranges[0]
        if lo <= progress.floor:
            return Progress(max(hi, progress.floor))  # the usual case
    known = progress.acked()
    for lo, hi in ranges:
        known.ack_range(lo, hi)
    return Progress.of(known, dict(progress.attempts))


def ack_spans(
    tx: Tx,
    group: str,
    before: Mapping[int, Progress],
    spans: Mapping[int, Sequence[tuple[int, int]]],
) -> None:
    """Ack ranges of offsets, by segment; the caller holds the claims, and has read ``before``."""
    for segment_id, ranges in spans.items():
        after = with_ranges(before[segment_id], ranges)
        _put_over(tx, before[segment_id], _row(group, segment_id, after))
    if spans:
        tx.notify(stored.channel(group))


def ack_prepared(tx: Tx, group: str, line: str, count: int) -> bool:
    """Ack the ``count`` spans of a line of Spark, if nothing has changed since their preparation.

    The caller holds their claims; false: something has, and nothing is acked.
    """
    if not stored.put_prepared(tx, group, line, count):
        return False
    tx.notify(stored.channel(group))
    return True


def seek(tx: Tx, group: str, places: Sequence[SeekPlace]) -> None:
    """Put a group where it is told to, back or forward: only here do floors fall.

    Whoever owns one of the units loses it, and hears of it; holds :func:`seek_locks`.  Call it by
    way of the group's kind, which has more to do: ``seek`` of ``partitioned.units`` and of
    ``shared.state``.  Where a segment goes back, so must those that follow from it.
    """
    claims.fence(tx, group, [place.unit for place in places])
    stored.reset(tx, *(_row(group, place.segment_id, place.progress) for place in places))
    replicas.sought(tx, group, {place.segment_id: place.progress.floor for place in places})
    tx.notify(stored.seek_channel(group))
    tx.notify(stored.channel(group))


def seek_locks(group: str, units: Iterable[str]) -> list[str]:
    """The locks for :func:`seek`: no ack may be committed between its two halves."""
    return [claims.lock(group, unit) for unit in units]


def _row(group: str, segment_id: int, progress: Progress, before: bytes = b"") -> stored.Progress:
    row = stored.Progress(group, segment_id, progress.floor, progress.stored())
    return _based(row, progress, before)


def _based(row: stored.Progress, progress: Progress, before: bytes = b"") -> stored.Progress:
    """A row with the base that it names, unless what it replaces names it already."""
    if progress.base is None or stored.base_name(before) == progress.base.name:
        return row
    return msgspec.structs.replace(row, base=progress.base.data)


def _check(tx: Tx, write: Write, unit: str) -> Fenced | None:
    try:
        claims.check(tx, write.group, unit, write.token)
    except Fenced as fenced:
        return fenced
    return None
