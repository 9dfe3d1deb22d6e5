"""Named subscriptions, looked at and forgotten."""

from __future__ import annotations

import msgspec

from headrace.catalog import Catalog, Tx, epoch_subscriptions
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.runtime.acks import decode_form, decode_frontier
from headrace.errors import UnknownEpochSubscriptionError


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


def listed(catalog: Catalog) -> tuple[EpochSubscriptionInfo, ...]:
    """All of them, by name."""

    def look(tx: Tx) -> tuple[EpochSubscriptionInfo, ...]:
        now_us = tx.now_us()
        return tuple(info_of(row, now_us) for row in epoch_subscriptions.every(tx))

    return catalog.read(look, snapshot=True)


def info_of(row: epoch_subscriptions.SubscriptionRow, now_us: int) -> EpochSubscriptionInfo:
    form = decode_form(row.form)
    return EpochSubscriptionInfo(
        name=row.name,
        streams=tuple(name for name, _ in form.streams),
        mode=form.mode,
        start=form.start,
        segments=form.segments,
        frontier=None if row.frontier is None else decode_frontier(row.frontier),
        held=row.owner is not None and row.expires_us > now_us,
        created_us=row.created_us,
        moved_us=row.moved_us,
    )


def forget(catalog: Catalog, name: str) -> None:
    """Forget one; a program that holds it is fenced."""
    if not catalog.write(
        lambda tx: epoch_subscriptions.remove(tx, name), locks=(epoch_subscriptions.lock(name),)
    ):
        raise UnknownEpochSubscriptionError(
            f"there is no subscription {name!r}; headrace epoch subscriptions lists them"
        )
