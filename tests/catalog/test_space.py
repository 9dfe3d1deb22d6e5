"""What was deleted gives its space back: the file of the catalog shrinks."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from headrace.catalog import Catalog, open_catalog, sqlite
from headrace.catalog.sqlite import FILE


def fill(catalog: Catalog, mb: int) -> None:
    for number in range(mb):
        catalog.entries.put("large", str(number), os.urandom(1 << 20))


def empty(catalog: Catalog) -> None:
    catalog.write(lambda tx: tx.execute("DELETE FROM entries WHERE bucket = 'large'"))


def size_mb(folder: Path) -> float:
    return (folder / FILE).stat().st_size / (1 << 20)


def test_a_file_that_is_mostly_free_shrinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "SHRINK_FREE_MIN", 4 << 20)
    with closing(open_catalog(tmp_path)) as catalog, closing(open_catalog(tmp_path)) as other:
        catalog.entries.put("kept", "k", b"v")
        fill(catalog, 8)
        assert not catalog.shrink()  # nothing is free
        empty(catalog)
        assert other.entries.get("kept", "k") is not None
        assert catalog.shrink()
        assert not catalog.shrink()
        for each in (catalog, other):
            each.entries.put("kept", "k", b"w")
            entry = each.entries.get("kept", "k")
            assert entry is not None
            assert entry.value == b"w"
    assert size_mb(tmp_path) < 1


def test_a_file_whose_free_pages_are_few_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_catalog(tmp_path)) as catalog:
        fill(catalog, 2)
        empty(catalog)
        assert not catalog.shrink()  # too little to be worth it
        monkeypatch.setattr(sqlite, "SHRINK_FREE_MIN", 1 << 20)
        monkeypatch.setattr(sqlite, "SHRINK_USED_MAX", 1 << 10)
        assert not catalog.shrink()  # writers would wait for too long
    assert size_mb(tmp_path) > 2
