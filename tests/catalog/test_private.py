"""Who may use a catalog: its owner, or the group of a folder that is shared on purpose."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.catalog import open_catalog
from headrace.catalog.streams import StreamConfig
from headrace.errors import CatalogUnavailableError
from headrace.log.events import Event
from headrace.log.open import open_log


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def rights(folder: Path) -> dict[str, int]:
    """The mode of everything that a log in use has made."""
    log = open_log(folder)
    try:
        log.create_stream("s", StreamConfig(subjects=("s.>",)))
        log.publish(Event(subject="s.x", value=b"1"))
        log.append("s", pa.table({"subject": ["s.x"] * 3, "value": [os.urandom(1 << 20)] * 3}))
        log.catalog.subscribe("often:x", lambda: None)
        found = {
            str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
            for path in (folder, *folder.rglob("*"))
        }
    finally:
        log.catalog.close()
    assert len(found) > 9  # the folder, three files of SQLite, the lock, store, wake and their own
    return found


def test_everything_of_a_catalog_is_its_owners_alone(tmp_path: Path) -> None:
    assert {mode & 0o077 for mode in rights(tmp_path / "data").values()} == {0}


def test_a_folder_that_was_made_before_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(0o755)
    assert {mode & 0o077 for mode in rights(tmp_path / "data").values()} == {0}


def test_a_folder_that_its_group_may_write_to_is_shared_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o2770)
    found = rights(folder)
    assert {mode & 0o007 for mode in found.values()} == {0}
    marker = {path for path in found if path.endswith(".often")}  # to be looked at, not read
    assert {mode & 0o060 for path, mode in found.items() if path not in marker} == {0o060}


def test_an_open_catalog_of_an_older_version_is_closed_to_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    open_catalog(folder).close()
    folder.chmod(0o755)
    (folder / "headrace.db").chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert {mode & 0o077 for mode in rights(folder).values()} == {0}
        assert [record.getMessage() for record in caplog.records] == [
            f"{folder} could be read by other users of this machine; now only by its owner"
        ]
        caplog.clear()
        open_catalog(folder).close()
        assert caplog.records == []


def test_files_that_are_no_sockets_are_never_removed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    victim = tmp_path / "important"
    victim.write_text("x")
    catalog = open_catalog(folder)
    (folder / "wake" / "1-file").write_text("x")
    (folder / "wake" / "2-link").symlink_to(victim)
    for number in range(3):
        catalog.entries.put("b", "k", b"%d" % number)
    catalog.close()
    assert sorted(os.listdir(folder / "wake")) == ["1-file", "2-link"]
    assert victim.exists()


def test_a_link_in_place_of_the_sockets_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (tmp_path / "elsewhere").mkdir()
    catalog = open_catalog(folder)
    (folder / "wake").rmdir()
    (folder / "wake").symlink_to(tmp_path / "elsewhere")
    catalog.entries.put("b", "k", b"v")
    with pytest.raises(CatalogUnavailableError, match="wake"):
        catalog.subscribe("c", lambda: None)
    catalog.close()
    assert os.listdir(tmp_path / "elsewhere") == []
