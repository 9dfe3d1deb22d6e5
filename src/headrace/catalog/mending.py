"""Mending: a record whose key is damaged gets its name again, or is removed.

Whatever else belongs to such a record is kept under the right name, so that one that has its name
again is whole.  ``keys`` tells how damaged keys are found and shown.
"""

from __future__ import annotations

import shlex

from headrace.catalog import entries, streams
from headrace.catalog.keys import TABLES, check_key, is_damaged, shown
from headrace.catalog.transaction import Tx
from headrace.errors import InvalidInputError
from headrace.subjects import check_name


def mend(tx: Tx, where: str, key: str, name: str | None) -> None:
    """Give a record its name again, or remove it; ``key`` is how it is shown.

    The caller holds :func:`locks`.
    """
    if where in TABLES:
        _rename(tx, where, key, name)
        return
    found = [
        each
        for (each,) in tx.rows(
            "SELECT key FROM entries WHERE bucket = ? AND value IS NOT NULL", (where,)
        )
        if shown(each) == key
    ]
    if not found:
        raise InvalidInputError(f"{where} has no record with the key '{key}'")
    if name is not None:
        check_key(name, "the name")
        if entries.get(tx, where, name) is not None:
            raise InvalidInputError(f"{where} has a record {name!r} already")
        row = tx.row(
            "SELECT value FROM entries WHERE bucket = ? AND key = CAST(? AS TEXT)",
            (where, found[0]),
        )
        assert row is not None
        tx.execute("DELETE FROM entries WHERE bucket = ? AND key = ?", (where, name))  # a tombstone
        entries.put(tx, where, name, bytes(row[0]))
    tx.execute("DELETE FROM entries WHERE bucket = ? AND key = CAST(? AS TEXT)", (where, found[0]))
    tx.notify(entries.channel(where))


def locks(where: str) -> tuple[str, ...]:
    """The locks for :func:`mend`."""
    return (streams.LOCK_ALL, entries.lock(where))


def _rename(tx: Tx, where: str, key: str, name: str | None) -> None:
    table = TABLES[where]
    rows = [each for (each,) in tx.rows(f"SELECT name FROM {table}") if shown(each) == key]
    if not rows:
        raise InvalidInputError(f"{where} has no record with the key '{key}'")
    if not is_damaged(rows[0]):
        raise InvalidInputError(f"{key!r} is a name that is not damaged; nothing was changed")
    if name is None:
        raise InvalidInputError(
            f"give it a name, and remove it by that: headrace catalog mend {where} "
            f"{shlex.quote(key)} NAME"
        )
    if table == "streams" and "." in name:  # of a group, or of epochs
        check_key(name, "the name")
    else:
        check_name(name)
    taken = f"SELECT name FROM {table} WHERE name = ?"
    params = [name]
    if table == "epoch_publishers":  # whose names are those of a stream
        taken += f" AND stream_id IN (SELECT stream_id FROM {table} WHERE name = CAST(? AS TEXT))"
        params.append(rows[0])
    if tx.row(taken, params) is not None:
        raise InvalidInputError(f"{where} has a record {name!r} already")
    tx.execute(f"UPDATE {table} SET name = ? WHERE name = CAST(? AS TEXT)", (name, rows[0]))
    if table == "streams":
        found = streams.id_of(tx, name)
        assert found is not None
        tx.notify(streams.channel(found))
