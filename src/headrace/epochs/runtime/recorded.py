"""What is recorded about an epoch stream: who publishes and subscribes, and what became of them.

The list is ``epochs/STREAM`` in the record that groups have, too, and a decision is recorded in the
transaction in which it takes effect.  Commits of rows and acks are no decisions.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.catalog import Catalog, Tx, epochs, streams
from headrace.groups import decisions
from headrace.groups.decisions import LIMIT, Decision, What


def locks(names: Iterable[str]) -> list[str]:
    """What a transaction that records about these streams holds."""
    return [lock for name in names for lock in decisions.locks(epochs.record_name(name))]


def note(
    tx: Tx,
    stream: str,
    what: What,
    reason: str,
    *,
    source: str = "",
    target: str = "",
    instance: str = "",
    token: int = 0,
    cause: int = 0,
) -> int:
    """Record a decision about a stream's epochs; returns its number."""
    found = Decision(
        what=what,
        reason=reason,
        source=source,
        target=target,
        instance=instance,
        token=token,
        cause=cause,
    )
    return decisions.record(tx, epochs.record_name(stream), [found])[0].number


def taken_over(
    tx: Tx,
    stream: str,
    who: str,
    *,
    before: str | None,
    now: str,
    token: int,
    goes_on: str,
) -> None:
    """A program becomes the active one under a name; ``before`` had its lease run out."""
    cause = 0
    if before is not None:
        cause = note(
            tx,
            stream,
            What.LOST,
            f"the lease of {who} ran out, and its program did not leave",
            source=who,
            instance=before,
        )
    what = What.ASSIGNED if before is None else What.MOVED
    note(tx, stream, what, goes_on, target=who, instance=now, token=token, cause=cause)


def read(catalog: Catalog, stream: str, limit: int = LIMIT) -> list[Decision]:
    """The last decisions about a stream, oldest first."""
    decisions.check_limit(limit)

    def look(tx: Tx) -> list[Decision]:
        streams.require(tx, stream)
        return decisions.read(tx, epochs.record_name(stream), limit)

    return catalog.read(look, snapshot=True)
