"""Named subscriptions, looked at and forgotten."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.catalog import Catalog, Tx, epoch_subscriptions
from headrace.catalog.epoch_subscriptions import SubscriptionRow
from headrace.catalog.keys import undamaged
from headrace.catalog.records import left_out
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.form import decode_form, decode_frontier
from headrace.epochs.runtime import recorded
from headrace.errors import UnknownEpochSubscriptionError, UnreadableRecordError
from headrace.groups.decisions import What

UNCHOSEN_US = 600_000_000
"""A subscription whose start was never chosen is removed after this time without a holder."""


class EpochSubscriptionInfo(msgspec.Struct, frozen=True):
    """A named subscription: what it is of, and the frontier before which all is acked."""

    name: str
    streams: tuple[str, ...]
    mode: str
    start: str
    segments: tuple[int, ...] | None
    frontier: Frontier | None
    """None while its start is being chosen."""
    held: bool
    """Whether a program holds it now."""
    created_us: int
    moved_us: int
    expiry_ms: int | None = None
    """After how long without a holder it is forgotten; None: never."""


def listed(catalog: Catalog) -> tuple[EpochSubscriptionInfo, ...]:
    """All of them, by name."""

    return catalog.read(infos, snapshot=True)


def infos(tx: Tx) -> tuple[EpochSubscriptionInfo, ...]:
    """All that can be read; the others are left out with a warning."""
    now_us = tx.now_us()
    found = []
    for row in epoch_subscriptions.every(tx):
        with left_out():
            found.append(info_of(row, now_us))
    return tuple(found)


def info_of(row: epoch_subscriptions.SubscriptionRow, now_us: int) -> EpochSubscriptionInfo:
    form = decode_form(row.form, undamaged("epoch-subscriptions", row.name))
    return EpochSubscriptionInfo(
        name=row.name,
        streams=tuple(name for name, _ in form.streams),
        mode=form.mode,
        start=form.start,
        segments=form.segments,
        frontier=None if row.frontier is None else decode_frontier(row.frontier, row.name),
        held=row.owner is not None and row.expires_us > now_us,
        created_us=row.created_us,
        moved_us=row.moved_us,
        expiry_ms=None if row.expiry_us is None else row.expiry_us // 1000,
    )


def forget(catalog: Catalog, name: str) -> None:
    """Forget one; a program that holds it is fenced."""
    found = catalog.read(lambda tx: epoch_subscriptions.get(tx, name))
    if found is None or not _remove(catalog, found, "is forgotten by an operator", _always):
        raise UnknownEpochSubscriptionError(
            f"there is no subscription {name!r}; headrace epoch subscriptions lists them"
        )


def expire(catalog: Catalog) -> int:
    """Forget those that nobody has held for too long; returns how many.

    One whose start was never chosen tells of a program that ended in its first moments: it holds
    back everything, for nobody.
    """

    def due(row: SubscriptionRow, now_us: int) -> bool:
        if row.owner is not None and row.expires_us > now_us:
            return False
        after_us = UNCHOSEN_US if row.frontier is None else row.expiry_us
        return after_us is not None and now_us - max(row.moved_us, row.expires_us) > after_us

    def look(tx: Tx) -> list[SubscriptionRow]:
        now_us = tx.now_us()
        return [row for row in epoch_subscriptions.every(tx) if due(row, now_us)]

    why = "was held by nobody for too long, and is forgotten"
    return sum(_remove(catalog, row, why, due) for row in catalog.read(look, snapshot=True))


def _remove(
    catalog: Catalog,
    row: SubscriptionRow,
    why: str,
    due: Callable[[SubscriptionRow, int], bool],
) -> bool:
    """Remove a subscription, if it is still the one that was seen, and still due."""
    try:
        streams = [name for name, _ in decode_form(row.form, row.name).streams]
    except UnreadableRecordError:
        streams = []  # it goes all the same, and nobody can be told of what it was

    def remove(tx: Tx) -> bool:
        found = epoch_subscriptions.get(tx, row.name)
        if found is None or found.created_us != row.created_us or not due(found, tx.now_us()):
            return False
        for stream in streams:
            reason = f"subscription {row.name} {why}"
            recorded.note(tx, stream, What.EVICTED, reason, source=row.name)
        return epoch_subscriptions.remove(tx, row.name)

    locks = [epoch_subscriptions.lock(row.name), *recorded.locks(streams)]
    return catalog.write(remove, locks=locks)


def _always(row: SubscriptionRow, now_us: int) -> bool:  # noqa: ARG001
    return True
