"""A catalog that changes under an open program: moved, removed, or brought to a newer version."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.catalog import Catalog, Tx, open_catalog
from headrace.catalog.schema import VERSION, put_setting
from headrace.catalog.sqlite import FILE, PLACE_S
from headrace.errors import CatalogTooNewError, CatalogUnavailableError


@pytest.mark.parametrize("how", ["moved", "replaced", "removed"])
def test_a_write_is_not_acknowledged_when_the_folder_has_gone(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "data"
    catalog = open_catalog(folder)
    catalog.entries.put("b", "k", b"v")
    if how == "removed":
        shutil.rmtree(folder)
    else:
        folder.rename(tmp_path / "moved")
    if how == "replaced":
        open_catalog(folder).close()
    for _ in range(2):
        with pytest.raises(CatalogUnavailableError, match="moved or removed while it was open"):
            catalog.entries.put("b", "k", b"w")
    catalog.close()
    assert folder.exists() == (how == "replaced")
    if how == "replaced":
        with_other = open_catalog(folder)
        assert with_other.entries.get("b", "k") is None
        with_other.close()


def test_a_read_that_needs_a_connection_says_that_the_folder_has_gone(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path / "data")
    (tmp_path / "data").rename(tmp_path / "moved")
    with pytest.raises(CatalogUnavailableError, match="moved or removed while it was open"):
        catalog.entries.get("b", "k")
    catalog.close()


def test_a_program_in_another_folder_finds_its_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    catalog = open_catalog("data")
    monkeypatch.chdir("/")
    catalog.entries.put("b", "k", b"v")
    assert catalog.entries.get("b", "k") is not None
    catalog.close()


def test_a_program_that_was_open_before_writes_nothing_to_a_newer_catalog(
    catalog: Catalog, reopen: Callable[[], Catalog]
) -> None:
    catalog.entries.put("b", "k", b"v")
    newer = reopen()

    def migrate(tx: Tx) -> None:
        put_setting(tx, "schema_version", str(VERSION + 1))

    newer.write(migrate)
    for _ in range(2):
        with pytest.raises(CatalogTooNewError, match=f"schema version {VERSION + 1}"):
            catalog.entries.put("b", "k", b"w")
    entry = catalog.entries.get("b", "k")
    assert entry is not None
    assert entry.value == b"v"


@pytest.mark.parametrize("listening", [False, True])
def test_a_file_that_was_replaced_in_its_folder_is_noticed(tmp_path: Path, listening: bool) -> None:
    """Not with the very next commit: the file itself is looked at now and then."""
    folder = tmp_path / "data"
    catalog = open_catalog(folder)
    if listening:
        catalog.subscribe("c", lambda: None)
    catalog.entries.put("b", "k", b"v")
    open_catalog(tmp_path / "other").close()
    (tmp_path / "other" / FILE).rename(folder / FILE)
    due_s = time.monotonic() + PLACE_S
    while time.monotonic() < due_s:
        time.sleep(PLACE_S / 10)
    with pytest.raises(CatalogUnavailableError, match="moved or removed while it was open"):
        catalog.entries.put("b", "k", b"w")
    catalog.close()
