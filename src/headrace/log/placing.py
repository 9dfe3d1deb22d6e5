"""The placing of an append, inside its transaction: offsets are taken, batches recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from headrace.catalog import Tx, batches, producers, streams
from headrace.catalog.calls import AppendCall
from headrace.catalog.producers import Placed
from headrace.errors import HeadMoved, HeadraceError, UnknownSegmentError
from headrace.log.pending import Pending
from headrace.log.routing import Route

TOGETHER_MAX = 50
"""Batches in one INSERT; databases limit the number of a statement's parameters."""


SAID_MAX = 1024
"""Batches in one call; a share of all that a server is sent at once."""


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
    for turn in zip_longest(*[share.batches for share in pending.shares]):
        due = list(filter(None, turn))
        for at in range(0, len(due), TOGETHER_MAX):
            found = batches.append(tx, due[at : at + TOGETHER_MAX])
            if found is None:
                raise Stale(pending.stream)
            starts = found | starts
    tx.notify(streams.channel(route.stream.id))
    return [
        Placed(pending.stream, share.segment, starts[share.segment_id], share.count)
        for share in pending.shares
    ]


def saying(
    pending: Pending,
    producer: tuple[int, str, int, int | None] | None,
    done: Callable[[tuple[Placed, ...]], Any],
) -> AppendCall | None:
    """What :func:`place` does, as a call; None if there is more to it than batches."""
    route, shares = pending.route, pending.shares
    if route is None or not shares or len(shares) > SAID_MAX:
        return None
    if pending.expected or pending.progress is not None or pending.step is not None:
        return None
    if any(len(share.batches) != 1 or share.batches[0].markers for share in shares):
        return None

    def placed(starts: Sequence[int]) -> tuple[Placed, ...]:
        return tuple(
            Placed(pending.stream, share.segment, start, share.count)
            for share, start in zip(shares, starts, strict=True)
        )

    said = None
    if producer is not None:
        said = producers.saying(*producer, placed([0] * len(shares)))
    return AppendCall(
        [share.batches[0] for share in shares],
        {streams.channel(route.stream.id)},
        lambda starts: done(placed(starts)),
        said,
    )


def _check_heads(tx: Tx, route: Route, expected: Mapping[int, int]) -> None:
    name = route.stream.name
    heads = {number: head for number, _, head, _ in streams.heads(tx, route.stream.id)}
    for number, head in expected.items():
        if number not in heads:
            raise UnknownSegmentError(f"stream {name!r} has no segment {number}")
        if heads[number] != head:
            raise HeadMoved(name, number, head, heads[number])
