"""The audit: a fresh process reads the whole log back and judges it.

    python -m tests.torture.audit URL STORE LEDGER_FOLDER

Prints a :class:`Report` as JSON.  It also checks the catalog's own records (SQLite's integrity,
batches that tile their segments), and that a sweep removes orphans and nothing that counts.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from headrace.catalog import Tx
from headrace.catalog.sqlite import FILE
from headrace.catalog.transaction import Row
from headrace.log import limits
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.subjects import route_hash_array
from tests.torture.account import (
    Finding,
    Hashes,
    Ints,
    Ledger,
    SegmentCopy,
    StreamCopy,
    Totals,
    account,
)
from tests.torture.ledger import (
    IDENTITY,
    STREAMS,
    Identities,
    identities_of,
    journals,
    key_of,
    read_journal,
    show_uid,
    subject_of,
)
from tests.torture.order import OrderCheck


class Report(msgspec.Struct, frozen=True):
    """What the audit found."""

    findings: list[Finding]
    totals: Totals
    events: int
    batches: int
    files: int
    orphans: int


class StreamReading:
    """A stream read back by one ordinary read from its start."""

    def __init__(self, log: Log, name: str) -> None:
        self.findings: list[Finding] = []
        self._name = name
        self._order = OrderCheck()
        offsets: dict[int, list[Ints]] = defaultdict(lambda: [np.zeros(0, np.int64)])
        hashes: dict[int, list[Hashes]] = defaultdict(lambda: [np.zeros(0, np.uint32)])
        events: dict[int, list[Identities]] = defaultdict(lambda: [np.zeros(0, IDENTITY)])
        for batch in log.read(name):
            number = batch.column("segment")[0].as_py()
            found = identities_of(batch.column("value"))
            offsets[number].append(np.asarray(batch.column("offset")))
            hashes[number].append(
                route_hash_array(batch.column("key"), batch.column("subject"), ())
            )
            events[number].append(found)
            self._check(batch, found)
        self.copy = StreamCopy(
            name,
            tuple(
                SegmentCopy(
                    number=segment.number,
                    range_lo=segment.range_lo,
                    range_hi=segment.range_hi,
                    sealed=segment.sealed,
                    head=segment.head,
                    predecessors=segment.predecessors,
                    offsets=np.concatenate(offsets[segment.number]),
                    hashes=np.concatenate(hashes[segment.number]),
                    events=np.concatenate(events[segment.number]),
                )
                for segment in log.stream(name).segments
            ),
        )

    def _check(self, batch: pa.RecordBatch, found: Identities) -> None:
        """The read itself keeps the order of keys; events carry their own subjects and keys."""
        wrong = self._order.feed(found)
        if wrong is not None:
            text = f"{self._name}, read: {show_uid(wrong[0])} after {show_uid(wrong[1])}"
            self.findings.append(Finding("reordered", text))
        stream, keys = STREAMS.index(self._name), found["key"].tolist()
        subjects = [subject_of(stream, key) for key in keys]
        named = [key_of(key) for key in keys]
        if [batch.column(c).to_pylist() for c in ("subject", "key")] != [subjects, named]:
            text = f"{self._name}: subjects or keys are not as sent"
            self.findings.append(Finding("changed on its way", text))


def check_batches(log: Log) -> Iterator[Finding]:
    """The batches of a segment tile it from 0 to its head, and their sizes add up.

    Nothing is appended to a segment once it is sealed, by the catalog's clock and by the numbers
    that batches get as they are recorded: those of a segment come after its predecessors'.
    """
    for stream in log.streams():
        last: dict[int, int] = {}
        for segment in stream.segments:
            where = f"{stream.name}/{segment.number}"
            rows = log.catalog.read(partial(_batches, segment_id=segment.id))
            at = total = 0
            for _, start, end, size, running, _ in rows:
                total += size
                if start != at or end <= start or running != total:
                    yield Finding("batches", f"{where} breaks at {start}")
                    break
                at = end
            else:
                if at != segment.head or total != segment.bytes:
                    yield Finding("batches", f"{where}: {at} of {segment.head} events")
            before = max((last[number] for number in segment.predecessors), default=0)
            if rows and rows[0][0] <= before:
                yield Finding("batches", f"{where} has events older than its predecessors' last")
            if segment.sealed_us is not None and any(row[5] > segment.sealed_us for row in rows):
                yield Finding("batches", f"{where} was appended to after it was sealed")
            last[segment.number] = max([before, *(row[0] for row in rows)])


def _batches(tx: Tx, segment_id: int) -> list[Row]:
    return tx.rows(
        "SELECT id, start_offset, end_offset, bytes, total_bytes, created_us FROM batches "
        "WHERE segment_id = ? ORDER BY start_offset",
        (segment_id,),
    )


def check_integrity(url: str) -> Iterator[Finding]:
    """SQLite's own opinion of its file."""
    with contextlib.closing(sqlite3.connect(Path(url) / FILE)) as connection:
        found = connection.execute("PRAGMA integrity_check").fetchall()
    if found != [("ok",)]:
        yield Finding("integrity_check", "; ".join(str(row[0]) for row in found[:5]))


def check_sweep(log: Log, store: Path) -> tuple[list[Finding], int, int]:
    """A sweep over files that look old removes exactly those that no batch names."""
    referenced = {
        str(row[0])
        for row in log.catalog.read(
            lambda tx: tx.rows("SELECT path FROM batches WHERE path IS NOT NULL")
        )
    }
    before = files_of(store)
    findings = []
    if missing := referenced - before:
        findings.append(Finding("file is gone", ", ".join(sorted(missing)[:3])))
    long_ago = time.time() - 2 * limits.SWEEP_GRACE_S
    for path in before:
        os.utime(store / path, (long_ago, long_ago))
    orphans = before - referenced
    tried = log.sweep(dry_run=True)
    if files_of(store) != before:
        findings.append(Finding("sweep", "a dry run changed the store"))
    if tried.orphans != len(orphans):
        findings.append(
            Finding(
                "sweep",
                f"a dry run counts {tried.orphans} orphans; there are {len(orphans)}: "
                f"{', '.join(sorted(orphans)[:3])}",
            )
        )
    log.sweep()
    if left := files_of(store) - referenced:
        findings.append(Finding("sweep", f"orphans were left: {', '.join(sorted(left)[:3])}"))
    if removed := referenced - files_of(store):
        findings.append(Finding("sweep", f"took what counts: {', '.join(sorted(removed)[:3])}"))
    return findings, len(before), len(orphans)


def files_of(store: Path) -> set[str]:
    return {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}


def audit(url: str, store: Path, folder: Path) -> Report:
    ledger = Ledger(record for path in journals(folder) for record in read_journal(path))
    embedded = "://" not in url
    findings: list[Finding] = []
    log = open_log(url, store, create=False)
    with contextlib.closing(log.catalog):
        findings += check_batches(log)
        readings = [StreamReading(log, name) for name in STREAMS]
        findings += [finding for reading in readings for finding in reading.findings]
        copies = [reading.copy for reading in readings]
        wrong, totals = account(ledger, copies)
        findings += wrong
        swept, files, orphans = check_sweep(log, store)
        findings += swept
        for copy in copies:
            again = StreamReading(log, copy.name).copy
            if any(
                not np.array_equal(one.events, two.events)
                for one, two in zip(copy.segments, again.segments, strict=True)
            ):
                findings.append(Finding("sweep", f"{copy.name} reads differently after it"))
        (batches,) = log.catalog.read(lambda tx: tx.row("SELECT count(*) FROM batches")) or (0,)
    if embedded:
        findings += check_integrity(url)
    events = sum(len(segment.events) for copy in copies for segment in copy.segments)
    return Report(findings, totals, events, batches, files, orphans)


def main(arguments: list[str]) -> None:
    url, store, folder = arguments
    pa.set_cpu_count(2)
    report = audit(url, Path(store), Path(folder))
    print(msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
