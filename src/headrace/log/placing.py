"""The placing of an append, inside its transaction: offsets are taken, batches recorded."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from headrace.catalog import Tx, batches, streams
from headrace.catalog.producers import Placed
from headrace.errors import HeadMoved, HeadraceError, UnknownSegmentError
from headrace.log.pending import Pending
from headrace.log.routing import Route

TOGETHER_MAX = 50
"""Batches in one INSERT; databases limit the number of a statement's parameters."""


class Stale(HeadraceError):
    """Internal: the write has to be prepared again."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream!r} was scaled while events were on their way")
        self.stream = stream


def place(tx: Tx, pending: Pending) -> list[Placed]:
    route = pending.route
    assert route is not None
    if pending.expected:
        _check_heads(tx, route, pending.expected)
    starts: dict[int, int] = {}
    # A large share has several batches.  One INSERT takes the first batch of every share, the
    # next one the second, and so on: a statement may advance each head only once.
    for turn in zip_longest(*(share.batches for share in pending.shares)):
        due = [batch for batch in turn if batch is not None]
        for at in range(0, len(due), TOGETHER_MAX):
            new = due[at : at + TOGETHER_MAX]
            found = batches.append(tx, new)
            if found is None:
                raise Stale(pending.stream)
            for batch, start in zip(new, found, strict=True):
                starts.setdefault(batch.segment_id, start)
    tx.notify(streams.channel(route.stream.id))
    return [
        Placed(pending.stream, share.segment, starts[share.segment_id], share.count)
        for share in pending.shares
    ]


def _check_heads(tx: Tx, route: Route, expected: Mapping[int, int]) -> None:
    name = route.stream.name
    heads = {number: head for number, _, head, _ in streams.heads(tx, route.stream.id)}
    for number, head in expected.items():
        if number not in heads:
            raise UnknownSegmentError(f"stream {name!r} has no segment {number}")
        if heads[number] != head:
            raise HeadMoved(name, number, head, heads[number])
