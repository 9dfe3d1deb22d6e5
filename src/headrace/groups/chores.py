"""Chores: what some open program does for the whole catalog now and then, and when it last did.

Retention, scaling policies and the sweep of the store are nobody's in particular.  Whoever holds
the lease of the housekeeping does them (``api/housekeeping.py``) and writes down when, so that
``headrace status`` can tell that nobody does.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.catalog import Catalog, Tx, entries
from headrace.catalog.records import Records

BUCKET = "housekeeping"
RETENTION = "retention"
SCALING = "scaling"
SWEEP = "sweep"
CHORES = (RETENTION, SCALING, SWEEP)
NOTE_CHARS_MAX = 500


class ChoreRecord(msgspec.Struct, frozen=True):
    """When a chore was last done, by whom, and what came of it."""

    name: str
    at_us: int
    by: str
    note: str = ""
    failed: bool = False


_records = Records(ChoreRecord, "the chore", bucket=BUCKET, key=lambda record: record.name)


def put_done(catalog: Catalog, by: str, notes: Mapping[str, tuple[str, bool]]) -> None:
    """Chores were done just now: {name: (what came of it, whether it failed)}."""

    def put(tx: Tx) -> None:
        for name, (note, failed) in notes.items():
            record = ChoreRecord(name, tx.now_us(), by, note[:NOTE_CHARS_MAX], failed)
            entries.put(tx, BUCKET, name, _records.encode(name, record))

    catalog.write(put, locks=(entries.lock(BUCKET),))


def last_done(tx: Tx) -> dict[str, ChoreRecord]:
    """When each chore was last done; those that never were are missing."""
    found = entries.changes(tx, BUCKET, 0).entries
    return {record.name: record for record in _records.readable(found)}
