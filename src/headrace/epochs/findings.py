"""What can be said about epoch streams that is not as it should be, for ``headrace status``.

From a few statements, however many streams there are; lines and rows are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.catalog import Tx, epoch_subscriptions, epochs
from headrace.catalog.epoch_subscriptions import SubscriptionRow
from headrace.catalog.epochs import PublisherRow
from headrace.catalog.keys import undamaged
from headrace.catalog.records import left_out
from headrace.catalog.streams import Stream
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Frontier, not_before
from headrace.epochs.core.form import decode_form, decode_frontier
from headrace.epochs.core.ledger import LedgerState, PublisherState
from headrace.epochs.core.times import TimeShape
from headrace.groups.findings import BEHIND_S, time_words
from headrace.groups.shapes import Finding


def of_streams(tx: Tx, found: Iterable[Stream], behind_s: float = BEHIND_S) -> list[Finding]:
    """Publishers that are lost and hold a frontier back, and subscriptions that nobody reads."""
    wanted = {
        one.id: one for one in found if one.config.epochs is not None and one.config.epochs.stored
    }
    if not wanted:
        return []
    now_us = tx.now_us()
    states, publishers = epochs.every(tx)
    findings: list[Finding] = []
    lowers: dict[int, Frontier] = {}
    for stream_id, stream in wanted.items():
        if stream_id in states:
            encoded, moved_us = states[stream_id]
            rows = publishers.get(stream_id, [])
            with left_out():
                state = ledger.decode_state(encoded, stream.name)
                lowers[stream_id] = state.lower
                findings += _of_stream(stream, state, moved_us, rows, now_us, behind_s)
    return [*findings, *_of_subscriptions(tx, lowers, now_us, behind_s)]


def _of_stream(
    stream: Stream,
    state: LedgerState,
    moved_us: int,
    rows: Iterable[PublisherRow],
    now_us: int,
    behind_s: float,
) -> Iterator[Finding]:
    name = stream.name
    if state.status == ledger.ABORTED:
        yield Finding(
            finding="epochs_aborted",
            about=name,
            sentence=f"its epochs were aborted at frontier {ledger.shown(state.lower)}: "
            f"{state.reason}",
            needs_person=False,
        )
    if state.status != ledger.OPEN:
        return
    stands_s = (now_us - moved_us) / 1_000_000
    stands = f"frontier {ledger.shown(state.lower)} stands since {time_words(stands_s)}"
    for row in rows:
        known: PublisherState | None = None
        with left_out():
            undamaged("epoch-publishers", row.name)
            known = ledger.decode_publisher(row.state, row.name, name)
        if known is None or not any(time in state.lower for time in known.held):
            continue
        if row.owner is not None and row.expires_us <= now_us:
            silent = time_words((now_us - row.expires_us) / 1_000_000)
            yield Finding(
                finding="publisher_lost",
                about=name,
                sentence=f"{stands}: held back by publisher {row.name}, which did not leave and "
                f"has not been heard of since its lease ran out {silent} ago",
                next=f"start it again, or: headrace epoch rollback {name} {row.name}",
            )
        elif row.owner is None and not row.token and stands_s > behind_s:
            yield Finding(
                finding="publisher_awaited",
                about=name,
                sentence=f"{stands}: publisher {row.name} was declared and never came",
                next=f"start it, or do without it: headrace epoch release {name} {row.name}",
            )


def _of_subscriptions(
    tx: Tx, lowers: dict[int, Frontier], now_us: int, behind_s: float
) -> Iterator[Finding]:
    for row in epoch_subscriptions.every(tx):
        idle_us = now_us - max(row.moved_us, row.expires_us)
        held = row.owner is not None and row.expires_us > now_us
        if held or row.frontier is None or idle_us < behind_s * 1_000_000:
            continue
        with left_out():
            yield from _unread(row, row.frontier, lowers, idle_us)


def _unread(
    row: SubscriptionRow, frontier: bytes, lowers: dict[int, Frontier], idle_us: int
) -> Iterator[Finding]:
    undamaged("epoch-subscriptions", row.name)
    form, acked = decode_form(row.form, row.name), decode_frontier(frontier, row.name)
    shape = TimeShape(form.length)
    for name, stream_id in form.streams:
        lower = lowers.get(stream_id)
        if lower is None or lower == acked or not not_before(shape, lower, acked):
            continue
        yield Finding(
            finding="subscription_unread",
            about=name,
            sentence=f"subscription {row.name} was acked up to {ledger.shown(acked)}, the "
            f"frontier is {ledger.shown(lower)}, and nobody has held it for "
            f"{time_words(idle_us / 1_000_000)}",
            next=f"start what reads it, or: headrace epoch forget {row.name}",
        )
