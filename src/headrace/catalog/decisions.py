"""Decisions: for each group a list that only grows at its end, and is pruned at its beginning.

A record is opaque here.  Its number is taken from a row of the group that is locked until the
commit, so records become visible in the order of their numbers: a follower that asks for what came
after the last number it saw misses nothing.  The last records of a group are found by the primary
key, however many other groups there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.catalog.keys import check_key
from headrace.catalog.transaction import Query, Tx

KEPT = 2_000
"""How many decisions of each group are kept, however old they are."""
KEPT_US = 7 * 24 * 3600 * 1_000_000
"""Decisions that are younger are kept, up to ``KEPT_MAX`` for each group."""
KEPT_MAX = 10_000
PRUNE_EVERY = 250
PRUNED_AT_ONCE = 500
"""More than are added between two prunings, so that the list never grows for long."""

_COUNT_UP = (
    "INSERT INTO decision_counts (group_key, number) VALUES (?, ?) "
    "ON CONFLICT (group_key) DO UPDATE SET number = decision_counts.number + excluded.number"
)
_COUNT = "SELECT number FROM decision_counts WHERE group_key = ?"

Stored = tuple[int, int, bytes]
"""(number, at_us, record)"""


def channel(group: str) -> str:
    """The channel that is notified when decisions about the group were recorded."""
    return f"decisions:{group}"


def lock(group: str) -> str:
    return f"decisions:{group}"


def append(
    tx: Tx, group: str, records: Sequence[tuple[int, bytes]], after: int | None = None
) -> int:
    """Add (at_us, record) under the group's :func:`lock`; returns the number of the first.

    ``after`` is the number of the last one, if the caller has read it (:func:`count`).
    """
    check_key(group, "a group's name")
    new = (group, len(records))
    if after is None:
        row = tx.row(f"{_COUNT_UP} RETURNING number", new)
        assert row is not None
        after = int(row[0]) - len(records)
    else:
        tx.later(_COUNT_UP, new)
    first, last = after + 1, after + len(records)
    tx.later(
        # A count that is damaged, and gives a number again, costs old records and stops nobody.
        "INSERT INTO decisions (group_key, number, at_us, record) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (group_key, number) DO UPDATE SET at_us = excluded.at_us, "
        "record = excluded.record",
        *((group, first + at, at_us, data) for at, (at_us, data) in enumerate(records)),
    )
    for step in range((first - 1) // PRUNE_EVERY, last // PRUNE_EVERY):
        _prune(tx, group, (step + 1) * PRUNE_EVERY)
    tx.notify(channel(group))
    return first


def _prune(tx: Tx, group: str, number: int) -> None:
    """Remove the oldest that need not be kept, a bounded number of them."""
    if number <= KEPT:
        return
    oldest = tx.rows(
        "SELECT number, at_us FROM decisions WHERE group_key = ? AND number <= ? "
        "ORDER BY number LIMIT ?",
        (group, number - KEPT, PRUNED_AT_ONCE),
    )
    before_us = tx.now_us() - KEPT_US
    upto = 0
    for each, at_us in oldest:
        if at_us >= before_us and each > number - KEPT_MAX:
            break
        upto = each
    if upto:
        tx.execute("DELETE FROM decisions WHERE group_key = ? AND number <= ?", (group, upto))


def asking(group: str, limit: int, before: int | None = None) -> tuple[Query, Query]:
    """The queries of :func:`last` and of :func:`count`."""
    bound, params = ("", (group,)) if before is None else (" AND number < ?", (group, before))
    query = (
        f"SELECT number, at_us, record FROM decisions WHERE group_key = ?{bound} "
        "ORDER BY number DESC LIMIT ?"
    )
    return (query, (*params, limit)), (_COUNT, (group,))


def last(tx: Tx, group: str, limit: int, before: int | None = None) -> list[Stored]:
    """The last of a group, or the last before a number; oldest first."""
    rows = tx.rows(*asking(group, limit, before)[0])
    return [(number, at_us, bytes(data)) for number, at_us, data in reversed(rows)]


def after(tx: Tx, group: str, number: int, limit: int) -> list[Stored]:
    """The first of a group after a number, oldest first."""
    rows = tx.rows(
        "SELECT number, at_us, record FROM decisions WHERE group_key = ? AND number > ? "
        "ORDER BY number LIMIT ?",
        (group, number, limit),
    )
    return [(each, at_us, bytes(data)) for each, at_us, data in rows]


def count(tx: Tx, group: str) -> int:
    """The number of the last decision about a group, 0 if there never was one."""
    row = tx.row(_COUNT, (group,))
    return 0 if row is None else int(row[0])


def counts(tx: Tx) -> dict[str, int]:
    """{group: the number of its last decision}, of every group that has any."""
    return {
        str(group): int(number)
        for group, number in tx.rows("SELECT group_key, number FROM decision_counts")
    }


def newest(tx: Tx, limit: int) -> list[tuple[str, int, int, bytes]]:
    """(group, number, at_us, record) of the latest of all groups, oldest first; reads all."""
    rows = tx.rows(
        "SELECT group_key, number, at_us, record FROM decisions "
        "ORDER BY at_us DESC, number DESC LIMIT ?",
        (limit,),
    )
    return [(group, number, at_us, bytes(data)) for group, number, at_us, data in reversed(rows)]


def forget(tx: Tx, group: str) -> None:
    """Remove the records of a group that is deleted; its numbers do not begin anew."""
    tx.execute("DELETE FROM decisions WHERE group_key = ?", (group,))
    tx.notify(channel(group))
