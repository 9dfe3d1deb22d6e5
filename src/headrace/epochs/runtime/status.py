"""How an epoch stream stands: what is complete, who holds it back, who is behind.

One look, from the catalog and the lines of what is open; the command line, programs and errors all
tell it from here.  The lines looked at are bounded: where there are more, counts say "at least".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from headrace.catalog import Tx, epochs, streams
from headrace.catalog.epochs import PublisherRow
from headrace.catalog.keys import undamaged
from headrace.catalog.records import left_out
from headrace.catalog.streams import Stream
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Antichain, Frontier
from headrace.epochs.core.ledger import LedgerState
from headrace.epochs.core.lines import Line, covers_all
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.runtime.kept import since_of
from headrace.epochs.runtime.progress_log import ProgressLog, begin, epochs_of, load_state
from headrace.epochs.runtime.subscriptions import EpochSubscriptionInfo, infos
from headrace.errors import NotStoredError
from headrace.log.log import Log

LINES_MAX = 20_000
EPOCHS_SHOWN = 100

ACTIVE, LOST, LEFT, AWAITED = "active", "lost", "left", "awaited"
QUERY = "query"
"""Spark's: it belongs to a query whether that runs or not, and only its commits tell."""
QUERY_OWNER = "spark-"


class PublisherStatus(msgspec.Struct, frozen=True):
    """A publisher: what it holds, who it is, and whether the others wait for it."""

    name: str
    held: Frontier
    state: str
    """``active``; ``lost``: its lease ran out and it did not leave; ``left``: it gave the lease
    back and holds its times; ``awaited``: it was declared and never came; ``query``: it belongs to
    a Spark query, which may run or not."""
    owner: str | None
    last_commit_us: int | None
    lost_us: int | None
    """When its lease ran out, if it is lost."""
    holds_back: bool
    """Whether the stream's frontier stands where it does because of what this one holds."""
    advice: str
    """What to do if it holds the frontier back for too long."""

    @property
    def alive(self) -> bool:
        return self.state == ACTIVE


class SubscriptionStatus(msgspec.Struct, frozen=True):
    """A named subscription: what is complete and not acked; what is merely open does not count."""

    name: str
    frontier: Frontier | None
    held: bool
    epochs: int
    rows: int
    behind_us: int
    """For how long its next epoch has been complete."""
    at_least: bool = False
    """There were more lines than were looked at."""


class EpochStatus(msgspec.Struct, frozen=True):
    """See :meth:`headrace.Headrace.epoch_status`."""

    stream: str
    status: str
    """``open``, ``closed`` or ``aborted``."""
    reason: str
    frontier: Frontier
    since: Frontier
    """The first frontier from which everything can be read."""
    upper: Frontier
    """The greatest times that rows ever had."""
    moved_us: int | None
    """When the frontier came to where it is."""
    now_us: int
    open: tuple[tuple[Time, int], ...]
    """Epochs that have rows and are not complete, the first ones, with how many rows."""
    open_epochs: int
    open_rows: int
    open_at_least: bool
    """There were more lines than were looked at."""
    publishers: tuple[PublisherStatus, ...]
    subscriptions: tuple[SubscriptionStatus, ...]

    @property
    def holding_back(self) -> tuple[PublisherStatus, ...]:
        """Those that the frontier waits for."""
        return tuple(one for one in self.publishers if one.holds_back)


class _Found(msgspec.Struct, frozen=True):
    stream: Stream
    state: LedgerState
    moved_us: int | None
    publishers: tuple[PublisherRow, ...]
    subscriptions: tuple[EpochSubscriptionInfo, ...]
    now_us: int


def status(log: Log, name: str) -> EpochStatus:
    """How a stream stands now."""
    found = log.catalog.read(lambda tx: _look(tx, name), snapshot=True)
    state = found.state
    progress = ProgressLog(log, found.stream)
    lower = Antichain.minimal(state.shape, state.lower)
    first, end, cut = _bounded(progress, state.first_open, state.line)
    rows = _rows(state.shape, progress.scan(first, end))
    still_open = {time: count for time, count in rows.items() if lower.covers(time)}
    return EpochStatus(
        stream=name,
        status=state.status,
        reason=state.reason,
        frontier=state.lower,
        since=since_of(log, found.stream),
        upper=state.upper,
        moved_us=found.moved_us,
        now_us=found.now_us,
        open=tuple(sorted(still_open.items())[:EPOCHS_SHOWN]),
        open_epochs=len(still_open),
        open_rows=sum(still_open.values()),
        open_at_least=cut,
        publishers=tuple(_publishers(found)),
        subscriptions=tuple(_behind(progress, found, one) for one in found.subscriptions),
    )


def _look(tx: Tx, name: str) -> _Found:
    stream = streams.require(tx, name)
    if not epochs_of(stream).stored:
        raise NotStoredError(
            f"stream {name!r} stores nothing, so nothing is known of its epochs; ask its publishers"
        )
    stored = epochs.stream_state(tx, stream.id)
    rows = tuple(epochs.publishers(tx, stream.id))
    if stored is None:
        rows = tuple(
            PublisherRow(one.name, ledger.encode_state(one), 0, 0, None, 0, 0)
            for one in begin(stream)[1]
        )
    now_us = tx.now_us()
    named = infos(tx)
    return _Found(
        stream,
        load_state(tx, stream),
        None if stored is None else stored[1],
        rows,
        tuple(one for one in named if name in one.streams),
        now_us,
    )


def _bounded(progress: ProgressLog, first: int, end: int) -> tuple[int, int, bool]:
    first = max(first, progress.bounds()[0])
    return first, min(end, first + LINES_MAX), end - first > LINES_MAX


def _rows(
    shape: TimeShape,
    found: Iterable[tuple[int, Line]],
    segments: tuple[int, ...] | None = None,
) -> dict[Time, int]:
    """Rows by time, without those that were taken back."""
    by_publisher: dict[str, dict[Time, int]] = {}
    for _, line in found:
        its = by_publisher.setdefault(line.publisher, {})
        if line.taken_back:
            for time in [one for one in its if line.takes_back(shape, line.publisher, one)]:
                del its[time]
        for time, span, count in line.spans_at(lambda _: True):
            if segments is None or span.segment in segments:
                its[time] = its.get(time, 0) + count
    total: dict[Time, int] = {}
    for its in by_publisher.values():
        for time, count in its.items():
            total[time] = total.get(time, 0) + count
    return total


# -- publishers ------------------------------------------------------------------------------


def _publishers(found: _Found) -> Iterator[PublisherStatus]:
    for row in found.publishers:
        with left_out():
            yield _publisher(found, row)


def _publisher(found: _Found, row: PublisherRow) -> PublisherStatus:
    undamaged("epoch-publishers", row.name)
    known = ledger.decode_publisher(row.state, row.name, found.stream.name)
    if row.owner is not None and row.expires_us > found.now_us:
        state = QUERY if row.owner.startswith(QUERY_OWNER) else ACTIVE
    elif row.owner is not None:
        state = LOST
    else:
        state = LEFT if row.token else AWAITED
    return PublisherStatus(
        name=row.name,
        held=ledger.minimal(found.state.shape, known.held),
        state=state,
        owner=row.owner,
        last_commit_us=row.last_us or None,
        lost_us=row.expires_us if state == LOST else None,
        holds_back=found.state.status == ledger.OPEN
        and any(time in found.state.lower for time in known.held),
        advice=_advice(found.stream.name, row.name, state),
    )


def _advice(stream: str, name: str, state: str) -> str:
    match state:
        case "active":
            return "it runs; wait for it to advance, or look at what it waits for"
        case "query":
            return (
                f"start that query if it does not run; if it will not come back: headrace epoch "
                f"rollback {stream} {name}"
            )
        case "lost":
            return f"start it again, or: headrace epoch rollback {stream} {name}"
        case "left":
            return (
                f"start it again, or say what is complete: headrace epoch advance {stream} TIME "
                f"--publisher {name}; if it will not come back: headrace epoch release {stream} "
                f"{name}"
            )
        case _:
            return f"start it, or do without it: headrace epoch release {stream} {name}"


# -- subscriptions ---------------------------------------------------------------------------


def _behind(
    progress: ProgressLog, found: _Found, info: EpochSubscriptionInfo
) -> SubscriptionStatus:
    """What is complete and at or after its frontier."""
    state, acked = found.state, info.frontier
    if acked is None or acked == state.lower:
        return SubscriptionStatus(info.name, acked, info.held, 0, 0, 0)
    shape = state.shape
    first, _ = progress.start_of(acked)
    first, end, cut = _bounded(progress, first, state.line)
    since_us: int | None = None
    for _, stamp, line in progress.rows(first, end):
        if not covers_all(shape, line.lower, acked):
            since_us = stamp
            break
    rows = _rows(shape, progress.scan(first, end), info.segments)
    wanted, lower = Antichain.minimal(shape, acked), Antichain.minimal(shape, state.lower)
    due = {
        time: count
        for time, count in rows.items()
        if wanted.covers(time) and not lower.covers(time)
    }
    behind_us = max(0, found.now_us - since_us) if due and since_us is not None else 0
    return SubscriptionStatus(
        info.name, acked, info.held, len(due), sum(due.values()), behind_us, cut
    )


# -- in words --------------------------------------------------------------------------------


def span_text(us: int) -> str:
    """How long, for people.

    >>> span_text(90_000_000), span_text(400_000), span_text(7_200_000_000)
    ('1 min 30 s', '0 s', '2 h 0 min')
    """
    seconds = max(0, us) // 1_000_000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def explained(found: EpochStatus) -> tuple[str, ...]:
    """Why the frontier stands where it does, and what to do about it."""
    at = f"frontier {ledger.shown(found.frontier)}"
    if found.status != ledger.OPEN:
        why = f": {found.reason}" if found.reason else ""
        return (f"stream {found.stream} is {found.status}{why}; nothing more comes",)
    if not found.publishers:
        return (
            f"{at}: no publisher has come yet; "
            f"headrace epoch publish {found.stream} SUBJECT VALUE --time 0",
        )
    since = "" if found.moved_us is None else f" since {span_text(found.now_us - found.moved_us)}"
    lines = [
        f"{at}{since}: held back by {one.name} ({ledger.shown(one.held)}), {_heard(found, one)}; "
        f"{one.advice}"
        for one in found.holding_back
    ]
    lines += [
        f"subscription {one.name}: {one.epochs} complete epochs ({one.rows} rows) not acked, the "
        f"first for {span_text(one.behind_us)}"
        for one in found.subscriptions
        if one.epochs
    ]
    return tuple(lines)


def _heard(found: EpochStatus, one: PublisherStatus) -> str:
    match one.state:
        case "active":
            return "which is active"
        case "query":
            ago = span_text(found.now_us - (one.last_commit_us or found.now_us))
            return f"which belongs to the Spark query {one.owner}, whose last commit was {ago} ago"
        case "lost":
            gone = found.now_us - (one.lost_us or found.now_us)
            return f"whose lease ran out {span_text(gone)} ago, and which did not leave"
        case "left":
            return "which has left and holds its times"
        case _:
            return "which was declared and never came"
