"""The record of decisions about groups of every kind, in the catalog.

Theory of operation
-------------------
Each group has one list, by one text: ``orders/billing``, ``$share/audit/orders.>``,
``reader/report``, ``epochs/orders``.  Whoever decides records: in the transaction in which the
decision takes effect, where there is one, else soon afterwards (:mod:`.recorder`).  The list
belongs to no process, so it outlives every leader and member.  What nobody is left to record is
recorded by whoever is alive (:mod:`headrace.groups.lost`).

On PostgreSQL a transaction that records needs :func:`locks`, like everything else it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from headrace.catalog import Query, Tx
from headrace.catalog import decisions as stored
from headrace.catalog.records import Records
from headrace.errors import InvalidInputError
from headrace.groups.decisions.core.linking import linked
from headrace.groups.decisions.core.record import RANGES_MAX, REASON_CHARS_MAX, Decision, What

LIMIT = 100
LIMIT_MAX = 10_000
LOOKED_BACK = 200
"""How far back a cause is looked for."""

_records = Records(Decision, "a decision about group", json=False)


def locks(group: str) -> list[str]:
    """The locks under which decisions about a group may be recorded or forgotten."""
    return [stored.lock(group)]


def channel(group: str) -> str:
    """The channel that tells of new decisions about a group."""
    return stored.channel(group)


def record(
    tx: Tx,
    group: str,
    decisions: Sequence[Decision],
    *,
    cause: int = 0,
    after: int | None = None,
) -> list[Decision]:
    """Add decisions under :func:`locks`; returns them with their numbers and times.

    ``cause`` is for those that name none of their own; ``after`` is the number of the last
    decision, if the caller has read it.
    """
    if not decisions:
        return []
    now_us = tx.now_us()
    bounded = [_bounded(each, now_us, cause) for each in decisions]
    data = [(each.at_us, _records.encode(group, each)) for each in bounded]
    first = stored.append(tx, group, data, after)
    return [
        msgspec.structs.replace(each, number=first + at, group=group)
        for at, each in enumerate(bounded)
    ]


def record_linked(tx: Tx, group: str, fresh: list[Decision]) -> list[Decision]:
    """Record decisions and link them with those before them, under ``locks(group)``."""
    tx.foresee(*asking(group))
    before = read(tx, group, LOOKED_BACK)
    count = stored.count(tx, group)
    return record(tx, group, linked(fresh, before, count + 1), after=count)


def _bounded(decision: Decision, now_us: int, cause: int) -> Decision:
    return msgspec.structs.replace(
        decision,
        reason=decision.reason[:REASON_CHARS_MAX],
        units=decision.units[:RANGES_MAX],
        cause=decision.cause or cause,
        at_us=decision.at_us or now_us,
        number=0,  # both are columns
        group="",
    )


def asking(group: str) -> tuple[Query, ...]:
    """The queries of whoever records what follows from what was decided before."""
    return stored.asking(group, LOOKED_BACK)


def count(tx: Tx, group: str) -> int:
    """The number of the last decision about a group."""
    return stored.count(tx, group)


def read(tx: Tx, group: str, limit: int = LIMIT, before: int | None = None) -> list[Decision]:
    """The last decisions about a group, or the last before a number; oldest first."""
    check_limit(limit)
    return _decoded(group, stored.last(tx, group, limit, before))


def after(tx: Tx, group: str, number: int, limit: int = LIMIT_MAX) -> list[Decision]:
    """The decisions that came after a number, oldest first."""
    check_limit(limit)
    return _decoded(group, stored.after(tx, group, number, limit))


def counts(tx: Tx) -> dict[str, int]:
    """{group: the number of its last decision}: what moved since somebody looked."""
    return stored.counts(tx)


def newest(tx: Tx, limit: int = LIMIT) -> list[Decision]:
    """The latest decisions about all groups, oldest first; looks at every one there is."""
    check_limit(limit)
    found = stored.newest(tx, limit)
    return [one for group, *row in found for one in _decoded(group, [tuple(row)])]  # type: ignore[list-item]


def latest(
    tx: Tx, group: str, whats: Iterable[What], *, that: Callable[[Decision], bool] | None = None
) -> Decision | None:
    """The last decision of some kinds, if it is not too long ago: what another follows from."""
    wanted = set(whats)
    for each in reversed(_decoded(group, stored.last(tx, group, LOOKED_BACK))):
        if each.what in wanted and (that is None or that(each)):
            return each
    return None


def forget(tx: Tx, group: str) -> None:
    """Remove the decisions about a group that is deleted, under :func:`locks`."""
    stored.forget(tx, group)


def check_limit(limit: int) -> int:
    """A number of decisions that somebody asks for."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= LIMIT_MAX:
        raise InvalidInputError(f"limit is {limit!r}; it must be 0 to {LIMIT_MAX}")
    return limit


def _decoded(group: str, found: Iterable[stored.Stored]) -> list[Decision]:
    decoded = []
    for number, at_us, data in found:
        one = _records.decode_or(f"{group} #{number}", data, None)
        if one is not None:
            decoded.append(msgspec.structs.replace(one, number=number, at_us=at_us, group=group))
    return decoded
