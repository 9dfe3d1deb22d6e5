"""What members decided about events of a group, and why: which became dead letters.

Who owns what is decided, and written down, elsewhere: by the instances of a partitioned group and
by the leader of a shared one.  ``headrace group explain`` shows both together.

The last ``DECISIONS_MAX`` are kept in the catalog, in one entry of the group's own, so that they
can be asked for from any machine and also when no member is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.catalog import Tx, entries
from headrace.catalog.records import Records

DECISIONS_MAX = 128
REASON_CHARS_MAX = 500
_KEY = "log"


class EventDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision; ``at_us`` is the catalog's time when it is recorded."""

    what: str
    """``dead letter``"""
    reason: str
    member: str = ""
    unit: str = ""
    instance: str = ""
    at_us: int = 0
    number: int = 0
    """Counts up within the group."""


_records = Records(list[EventDecision], "the decisions of group", json=False)


def bucket(group: str) -> str:
    """Where a group's decisions are; watch it to follow them."""
    return f"decisions:{group}"


def locks(group: str) -> list[str]:
    """The locks under which decisions may be recorded."""
    return [entries.lock(bucket(group))]


def record(tx: Tx, group: str, decisions: Sequence[EventDecision]) -> None:
    """Add decisions; the oldest make room for them."""
    if not decisions:
        return
    kept = read(tx, group)
    number = kept[-1].number if kept else 0
    now_us = tx.now_us()
    for decision in decisions:
        number += 1
        kept.append(
            msgspec.structs.replace(
                decision,
                at_us=now_us,
                number=number,
                reason=decision.reason[:REASON_CHARS_MAX],
            )
        )
    entries.put(tx, bucket(group), _KEY, _records.encode(group, kept[-DECISIONS_MAX:]))


def read(tx: Tx, group: str, limit: int = DECISIONS_MAX) -> list[EventDecision]:
    """The last decisions of a group, oldest first."""
    entry = entries.get(tx, bucket(group), _KEY)
    found = _records.decode_or(group, entry.value, []) if entry is not None else []
    return found[-limit:]


def forget(tx: Tx, group: str) -> None:
    """Remove the log of a group that is deleted."""
    entries.delete(tx, bucket(group), _KEY)
