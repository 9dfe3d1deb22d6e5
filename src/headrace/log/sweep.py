"""Sweep: garbage collection of files that no batch names, and of those due in the graveyard.

A file is an orphan when its append died between writing it and committing.  Only files of this
catalog's own prefix are looked at, only old ones are judged (an append that takes longer than
the deadline writes its files again, and the grace is longer than that), and the catalog is asked
about each before it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice

import msgspec

from headrace.catalog import Catalog, Tx, batches
from headrace.errors import InvalidInputError
from headrace.log import limits
from headrace.store import Store, StoredFile

PAGE = 500


class Swept(msgspec.Struct, frozen=True):
    """What a sweep found; with ``dry_run`` nothing of it was removed."""

    files: int
    orphans: int
    orphan_bytes: int
    buried: int
    dry_run: bool


def sweep(
    catalog: Catalog,
    store: Store,
    prefix: str,
    *,
    older_than_s: float = limits.SWEEP_GRACE_S,
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Swept:
    """One pass over the store; ``progress`` is told how many files have been looked at."""
    if older_than_s <= limits.APPEND_DEADLINE_S:
        raise InvalidInputError(
            f"files younger than {limits.APPEND_DEADLINE_S:.0f} s may belong to an append under "
            "way; give a longer time"
        )
    buried = empty_graveyard(catalog, store, dry_run=dry_run)
    before = datetime.now(UTC) - timedelta(seconds=older_than_s)
    files = orphans = orphan_bytes = 0
    listing = store.list(f"{prefix}/")
    while page := list(islice(listing, PAGE)):
        files += len(page)
        for file in _unnamed(catalog, [file for file in page if file.modified < before]):
            orphans += 1
            orphan_bytes += file.bytes
            if not dry_run:
                store.delete(file.path)
        if progress is not None:
            progress(files)
    return Swept(files, orphans, orphan_bytes, buried, dry_run)


def _unnamed(catalog: Catalog, files: list[StoredFile]) -> Iterator[StoredFile]:
    def named(tx: Tx) -> set[str]:
        return {
            file.path
            for file in files
            if batches.is_referenced(tx, file.path) or batches.is_buried(tx, file.path)
        }

    known = catalog.read(named, snapshot=True)
    return (file for file in files if file.path not in known)


def empty_graveyard(catalog: Catalog, store: Store, *, dry_run: bool = False) -> int:
    """Remove files that were given up longer ago than a read may take; returns how many."""
    if dry_run:
        return catalog.read(lambda tx: batches.count_buried(tx, _grace_ended_us(tx)))
    removed = 0
    while paths := catalog.read(lambda tx: batches.buried(tx, _grace_ended_us(tx), PAGE)):
        for path in paths:
            store.delete(path)
        catalog.write(partial(batches.forget_buried, paths=paths))
        removed += len(paths)
    return removed


def _grace_ended_us(tx: Tx) -> int:
    """Files buried before this time are past the grace for reads."""
    return tx.now_us() - int(limits.READ_GRACE_S * 1e6)
