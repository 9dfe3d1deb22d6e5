"""``subscriptionName``: what a query has not read yet is kept by ``retention=groups``.

The checkpoint alone says where a query is.  The subscription is its mirror in the catalog, moved
when Spark hands a place to the source, for such a place is durable.  So it is late, never early.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.catalog import Tx, epoch_subscriptions
from headrace.catalog import streams as stored_streams
from headrace.catalog.streams import Stream
from headrace.epochs.core.antichains import Frontier, not_before
from headrace.epochs.core.form import (
    SubscriptionForm,
    decode_form,
    decode_frontier,
    encode_form,
    encode_frontier,
)
from headrace.epochs.core.times import TimeShape
from headrace.errors import EpochSubscriptionError
from headrace.log.log import Log
from headrace.spark.epochs.texts import frontier_text
from headrace.subjects import check_name

MODE = "spark"
"""Where programs have ``whole``: neither opens a subscription of the other."""


class QueryHold:
    """The subscription of one query."""

    def __init__(self, log: Log, name: str, streams: Sequence[Stream], shape: TimeShape) -> None:
        self._log = log
        self.name = check_name(name, "subscriptionName")
        self._streams = tuple((stream.name, stream.id) for stream in sorted(streams, key=_name))
        self._shape = shape
        self._at: Frontier | None = None
        self._looked = False

    def take(self, start: str) -> Frontier | None:
        """Record it before a start is chosen; its frontier, if it has one already."""
        form = SubscriptionForm(self._streams, self._shape.length, MODE, start)

        def look(tx: Tx) -> Frontier | None:
            found = epoch_subscriptions.get(tx, self.name)
            if found is None:
                ids = [number for _, number in self._streams]
                epoch_subscriptions.create(tx, self.name, encode_form(form), ids)
                return None
            known = decode_form(found.form, self.name)
            if known.mode != MODE or known.streams != self._streams:
                raise EpochSubscriptionError(
                    f"subscription {self.name!r} is of {', '.join(n for n, _ in known.streams)} in "
                    f"mode {known.mode!r}, not of a Spark query over "
                    f"{', '.join(n for n, _ in self._streams)}; choose another subscriptionName, "
                    f"or forget it (headrace epoch forget {self.name})"
                )
            if found.frontier is None:
                return None
            return decode_frontier(found.frontier, self.name)

        locks = [stored_streams.lock(number) for _, number in self._streams]
        found: Frontier | None = self._log.catalog.write(
            look, locks=[epoch_subscriptions.lock(self.name), *locks]
        )
        self._at, self._looked = found, True
        return found

    def chosen(self, frontier: Frontier) -> None:
        """The start: everything before it is not wanted."""
        if self._at is None:
            self._put(frontier)

    def move(self, frontier: Frontier) -> None:
        """Spark has this place in its checkpoint: what lies before it was read.

        A query that goes on from its checkpoint is not asked where to begin: it begins here.
        """
        if not self._looked:
            self.take(frontier_text(frontier))
        if self._at is None or (
            frontier != self._at and not_before(self._shape, frontier, self._at)
        ):
            self._put(frontier)

    def _put(self, frontier: Frontier) -> None:
        data = encode_frontier(frontier)
        self._log.catalog.write(
            lambda tx: epoch_subscriptions.put_frontier(tx, self.name, data),
            locks=(epoch_subscriptions.lock(self.name),),
        )
        self._at = frontier


def _name(stream: Stream) -> str:
    return stream.name
