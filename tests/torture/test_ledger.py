"""Journals outlive their writer, whatever byte it died at."""

from __future__ import annotations

from pathlib import Path

from tests.torture.ledger import (
    Acked,
    Intent,
    Journal,
    JournalTail,
    Part,
    Record,
    Spot,
    journal_path,
    read_journal,
    unresolved,
)

RECORDS: list[Record] = [
    Intent(7, "producer-append", [Part(0, 7, 64, [1, 2], [1, 1])], "p", 1),
    Acked(7, [Spot("alpha", 0, 0, 2)]),
    Intent(9, "producer-append", [Part(0, 9, 64, [1], [2])], "p", 2),
    Intent(10, "publish", [Part(0, 10, 64, [3], [1])]),
]


def test_a_journal_cut_at_any_byte_gives_its_whole_records(tmp_path: Path) -> None:
    path = journal_path(tmp_path, 1, 0)
    journal = Journal(path)
    ends = []
    for record in RECORDS:
        journal.write(record)
        ends.append(path.stat().st_size)
    data = path.read_bytes()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        assert read_journal(path) == RECORDS[:whole]


def test_a_tail_counts_acknowledgements_as_they_come(tmp_path: Path) -> None:
    path = journal_path(tmp_path, 1, 0)
    tail = JournalTail(path)
    assert tail.refresh() == 0
    journal = Journal(path)
    for record, acked in zip(RECORDS, (0, 1, 1, 1), strict=True):
        journal.write(record)
        assert tail.refresh() == acked


def test_only_unacknowledged_appends_of_a_producer_are_repeated() -> None:
    assert [intent.op for intent in unresolved(RECORDS)] == [9]
