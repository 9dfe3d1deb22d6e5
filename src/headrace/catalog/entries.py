"""Entries: small values by bucket and key, changed by compare-and-set and watched by revision.

Revisions count up per bucket.  Every change of an entry, a deletion included, gets the bucket's
next one under the bucket's lock, so a watcher that asks for what came after the last revision
it saw misses nothing.  Deletions leave a tombstone; old tombstones are pruned, and a watcher
that lags behind the pruning is given the whole bucket again (``reset``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog.keys import check_key
from headrace.catalog.transaction import Query, Tx
from headrace.errors import ConflictError, InvalidInputError

if TYPE_CHECKING:
    from headrace.catalog.base import Catalog

ABSENT = 0
"""The revision of an entry that is not there: ``put(..., if_revision=ABSENT)`` creates."""

VALUE_BYTES_MAX = 8 * 1024 * 1024
TOMBSTONES_KEPT = 1_000
"""Revisions of a bucket of which the deletions are kept: who lags behind more reads it all."""


class Entry(msgspec.Struct, frozen=True):
    """One entry as it stands at ``revision``; ``value`` is None in a watch when it was deleted."""

    bucket: str
    key: str
    value: bytes | None
    revision: int


class Changes(msgspec.Struct, frozen=True):
    """What a watch found: apply ``entries`` in order; on ``reset`` forget all known ones first."""

    entries: tuple[Entry, ...]
    revision: int
    reset: bool


_GET = "SELECT value, revision FROM entries WHERE bucket = ? AND key = ? AND value IS NOT NULL"
_CHANGED = (
    "SELECT key, value, revision FROM entries WHERE bucket = ? AND revision > ? ORDER BY revision"
)
_NEXT_REVISION = (
    "INSERT INTO buckets (bucket, revision, pruned_revision) VALUES (?, 1, 0) "
    "ON CONFLICT (bucket) DO UPDATE SET revision = buckets.revision + 1"
)
_OVER = (
    "ON CONFLICT (bucket, key) DO UPDATE SET value = excluded.value, revision = excluded.revision"
)


def channel(bucket: str) -> str:
    """The channel that is notified when the bucket changes."""
    return f"bucket:{bucket}"


def lock(bucket: str) -> str:
    return f"bucket:{bucket}"


def asking(bucket: str, key: str) -> Query:
    """The query of :func:`get`."""
    return _GET, (bucket, key)


def get(tx: Tx, bucket: str, key: str) -> Entry | None:
    row = tx.row(*asking(bucket, key))
    return None if row is None else Entry(bucket, key, bytes(row[0]), row[1])


def keys(tx: Tx, bucket: str, beginning: str) -> list[str]:
    """The keys of a bucket's entries with the prefix ``beginning``, sorted."""
    rows = tx.rows(
        "SELECT key FROM entries WHERE bucket = ? AND substr(key, 1, ?) = ? AND value IS NOT NULL "
        "ORDER BY key",
        (bucket, len(beginning), beginning),
    )
    return [key for (key,) in rows]


def put(tx: Tx, bucket: str, key: str, value: bytes, *, if_revision: int | None = None) -> int:
    """Set the entry and return its new revision; the caller holds the bucket's lock."""
    _check(bucket, key, value)
    if if_revision is not None:
        _expect(tx, bucket, key, if_revision)
    return _store(tx, bucket, key, value)


def store(tx: Tx, bucket: str, key: str, value: bytes) -> None:
    """As :func:`put`, for who does not need the revision, and so need not wait for it."""
    _check(bucket, key, value)
    tx.later(_NEXT_REVISION, (bucket,))
    tx.later(
        "INSERT INTO entries (bucket, key, value, revision) "
        "SELECT bucket, ?, ?, revision FROM buckets WHERE bucket = ? " + _OVER,
        (key, value, bucket),
    )
    tx.notify(channel(bucket))


def delete(tx: Tx, bucket: str, key: str, *, if_revision: int | None = None) -> int | None:
    """Remove the entry; returns the revision of the deletion, or None if there was none."""
    found = _expect(tx, bucket, key, if_revision)
    if found == ABSENT:
        return None
    revision = _store(tx, bucket, key, None)
    _prune(tx, bucket, revision - TOMBSTONES_KEPT)
    return revision


def drop_bucket(tx: Tx, bucket: str) -> None:
    """Remove a bucket of something that is deleted, without a trace.

    Nobody may watch it: its revisions begin anew.  The caller holds the bucket's lock.
    """
    tx.later("DELETE FROM entries WHERE bucket = ?", (bucket,))
    tx.later("DELETE FROM buckets WHERE bucket = ?", (bucket,))
    tx.notify(channel(bucket))


def update(
    tx: Tx, bucket: str, key: str, fn: Callable[[bytes | None], bytes | None]
) -> Entry | None:
    """Replace the value by ``fn(value)``; None means no entry, before and after."""
    check_key(bucket, "a bucket's name")
    check_key(key, "an entry's key")
    before = get(tx, bucket, key)
    value = fn(before.value if before else None)
    if value is None:
        if before is not None:
            delete(tx, bucket, key)
        return None
    if before is not None and before.value == value:
        return before
    return Entry(bucket, key, value, put(tx, bucket, key, value))


def latest(tx: Tx, bucket: str) -> int:
    """The revision of a bucket's last change."""
    row = tx.row("SELECT revision FROM buckets WHERE bucket = ?", (bucket,))
    return 0 if row is None else int(row[0])


def asking_changes(bucket: str, since: int) -> tuple[Query, Query]:
    """The queries of :func:`changes`, unless it has to begin anew."""
    known = "SELECT revision, pruned_revision FROM buckets WHERE bucket = ?"
    return (known, (bucket,)), (_CHANGED, (bucket, since))


def changes(tx: Tx, bucket: str, since: int) -> Changes:
    known, rows = tx.together(*asking_changes(bucket, since))
    if not known:
        return Changes((), 0, reset=since > 0)
    revision, pruned = known[0]
    reset = since < pruned or since > revision
    if reset and since:
        rows = tx.rows(_CHANGED, (bucket, 0))
    found = tuple(
        Entry(bucket, key, None if value is None else bytes(value), at)
        for key, value, at in rows
        if value is not None or not reset
    )
    return Changes(found, revision, reset)


def _expect(tx: Tx, bucket: str, key: str, if_revision: int | None) -> int:
    entry = get(tx, bucket, key)
    found = ABSENT if entry is None else entry.revision
    if if_revision is not None and found != if_revision:
        raise ConflictError(bucket, key, if_revision, found)
    return found


def _prune(tx: Tx, bucket: str, upto: int) -> None:
    # In steps, so that most deletions do not search for tombstones.
    if upto < TOMBSTONES_KEPT // 10:
        return
    count = tx.execute(
        "UPDATE buckets SET pruned_revision = ? WHERE bucket = ? AND pruned_revision <= ?",
        (upto, bucket, upto - TOMBSTONES_KEPT // 10),
    )
    if count:
        tx.execute(
            "DELETE FROM entries WHERE bucket = ? AND revision <= ? AND value IS NULL",
            (bucket, upto),
        )


def _store(tx: Tx, bucket: str, key: str, value: bytes | None) -> int:
    row = tx.row(f"{_NEXT_REVISION} RETURNING revision", (bucket,))
    assert row is not None
    revision = int(row[0])
    tx.later(
        "INSERT INTO entries (bucket, key, value, revision) VALUES (?, ?, ?, ?) " + _OVER,
        (bucket, key, value, revision),
    )
    tx.notify(channel(bucket))
    return revision


def _check(bucket: str, key: str, value: bytes) -> None:
    check_key(bucket, "a bucket's name")
    check_key(key, "an entry's key")
    if not isinstance(value, bytes):
        raise InvalidInputError(
            f"entry {key!r} in {bucket!r} is {type(value).__name__}; it must be bytes"
        )
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidInputError(
            f"entry {key!r} in {bucket!r} has {len(value)} bytes; at most {VALUE_BYTES_MAX} fit"
        )


class Entries:
    """Entry operations, each one transaction."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def get(self, bucket: str, key: str) -> Entry | None:
        return self._catalog.read(lambda tx: get(tx, bucket, key))

    def put(self, bucket: str, key: str, value: bytes, *, if_revision: int | None = None) -> int:
        """Set an entry; with ``if_revision`` only from that revision (``ABSENT``: create)."""
        return self._catalog.write(
            lambda tx: put(tx, bucket, key, value, if_revision=if_revision), locks=(lock(bucket),)
        )

    def delete(self, bucket: str, key: str, *, if_revision: int | None = None) -> int | None:
        return self._catalog.write(
            lambda tx: delete(tx, bucket, key, if_revision=if_revision), locks=(lock(bucket),)
        )

    def update(
        self, bucket: str, key: str, fn: Callable[[bytes | None], bytes | None]
    ) -> Entry | None:
        """Run a pure function over the current value under the write lock, and store its result."""
        return self._catalog.write(lambda tx: update(tx, bucket, key, fn), locks=(lock(bucket),))

    def list(self, bucket: str) -> tuple[Entry, ...]:
        rows = self._catalog.read(
            lambda tx: tx.rows(
                "SELECT key, value, revision FROM entries "
                "WHERE bucket = ? AND value IS NOT NULL ORDER BY key",
                (bucket,),
            )
        )
        return tuple(Entry(bucket, key, bytes(value), revision) for key, value, revision in rows)

    def changes(self, bucket: str, since: int) -> Changes:
        """What changed after revision ``since`` (0: everything), without waiting."""
        return self._catalog.read(lambda tx: changes(tx, bucket, since), snapshot=True)

    def watch(
        self, bucket: str, since: int = 0, timeout_s: float | None = None
    ) -> Iterator[Changes]:
        """Yield changes as they come; ends when nothing came for ``timeout_s``."""
        with self._catalog.waiting(channel(bucket)) as wait:
            while True:
                found = self.changes(bucket, since)
                if found.entries or found.reset:
                    since = found.revision
                    yield found
                elif not wait(timeout_s):
                    return
