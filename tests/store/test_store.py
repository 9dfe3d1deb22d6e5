"""The store: files by path in a folder, in memory and on S3, and errors of its own."""

from __future__ import annotations

import errno
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.errors import DiskFullError, StoreError, StoreUnavailableError, UnknownSchemeError
from headrace.store import Store, open_store
from tests.conftest import s3_options


@pytest.fixture(params=["folder", "memory", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "folder":
            return open_store(tmp_path / "store")
        case "memory":
            return open_store("memory://")
        case _:
            found: Store = request.getfixturevalue("s3_store")
            return found


def test_a_file_is_read_back_whole_and_in_ranges(any_store: Store) -> None:
    data = os.urandom(300_000)
    any_store.put("a/b/c.parquet", memoryview(data))
    assert any_store.get("a/b/c.parquet") == data
    assert bytes(any_store.read_range("a/b/c.parquet", 100_000, 50)) == data[100_000:100_050]
    with any_store.open("a/b/c.parquet") as file:
        assert file.size() == len(data)
        file.seek(299_990)
        assert file.read(100) == data[299_990:]
        file.seek(-5, 2)
        assert file.read() == data[-5:]
        file.seek(7)
        assert file.read(3) == data[7:10]
        assert file.tell() == 10


def test_an_empty_file_is_a_file(any_store: Store) -> None:
    any_store.put("empty", b"")
    assert any_store.get("empty") == b""
    with any_store.open("empty") as file:
        assert file.read() == b""


def test_a_file_that_is_not_there_is_told_apart(any_store: Store) -> None:
    for read in (any_store.open, any_store.get, lambda path: any_store.read_range(path, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read("no/such/file")


def test_files_are_listed_below_a_prefix_with_size_and_time(any_store: Store) -> None:
    before = datetime.now(UTC).timestamp()
    for path in ("p/1/a", "p/1/b", "p/22/c", "pp/d"):
        any_store.put(path, b"12345")
    found = {file.path: file for file in any_store.list("p/")}
    assert set(found) == {"p/1/a", "p/1/b", "p/22/c"}
    for file in found.values():
        assert file.bytes == 5
        assert before - 2 <= file.modified.timestamp() <= time.time() + 2
    assert list(any_store.list("none/")) == []


def test_deleting_twice_is_no_error(any_store: Store) -> None:
    any_store.put("a", b"x")
    any_store.put("b", b"y")
    any_store.delete("a")
    any_store.delete("a")
    assert [file.path for file in any_store.list("")] == ["b"]


def test_more_files_than_a_page_are_listed() -> None:
    store = open_store("memory://")
    for number in range(2500):
        store.put(f"p/{number}", b"")
    assert len({file.path for file in store.list("p/")}) == 2500


def test_a_file_under_several_names_stays_until_its_last_name_goes(any_store: Store) -> None:
    any_store.put_same(["p/one", "q/two", "p/three"], b"the same")
    assert any_store.delete("p/one")
    assert sorted(each.path for each in any_store.list("")) == ["p/three", "q/two"]
    assert any_store.get("q/two") == any_store.get("p/three") == b"the same"


# --- a local folder --------------------------------------------------------------------------


def test_a_file_in_a_folder_is_never_written_over(store: Store) -> None:
    store.put("a", b"first")
    with pytest.raises(StoreError):
        store.put("a", b"second")
    assert store.get("a") == b"first"


def test_every_new_entry_of_a_folder_is_synced(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", note)
    root = str((tmp_path / "store").resolve())
    store.put("x/y/one", b"1")
    assert synced == [f"{root}/x/y/one", f"{root}/x/y", f"{root}/x", root]
    synced.clear()
    store.put("x/y/two", b"2")
    assert synced == [f"{root}/x/y/two", f"{root}/x/y"]


def test_several_names_take_the_room_of_one_file_where_there_are_links(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files(*names: str) -> set[int]:
        return {(tmp_path / "store" / name).stat().st_ino for name in names}

    store.put_same(["x/one", "y/two"], b"the same")
    assert len(files("x/one", "y/two")) == 1
    with pytest.raises(StoreError):
        store.put_same(["x/three", "y/two"], b"another")
    assert store.get("y/two") == b"the same"

    def without_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", without_links)
    store.put_same(["x/four", "y/five"], b"the same")
    assert len(files("x/four", "y/five")) == 2
    assert store.get("x/four") == store.get("y/five") == b"the same"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_leaves_no_part_of_a_file(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.write
    writes = []

    def fill(handle: int, data: memoryview) -> int:
        writes.append(1)
        if len(writes) == 2:
            raise OSError(code, os.strerror(code))
        return real(handle, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill)
        with pytest.raises(DiskFullError, match="no room left"):
            store.put("p/a", b"x" * 1000)
    assert list(store.list("")) == []
    store.put("p/a", b"x" * 1000)
    assert store.get("p/a") == b"x" * 1000


def test_a_folder_that_vanished_is_an_error_of_the_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "store").rmdir()
    (tmp_path / "store").write_text("a file now")
    with pytest.raises(StoreUnavailableError):
        store.put("p/a", b"x")


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        open_store(tmp_path / "file" / "store")


def test_a_folder_may_be_named_by_address(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/with%20space")
    store.put("a", b"x")
    assert (tmp_path / "with space" / "a").read_bytes() == b"x"
    assert not store.shared


# --- object storage --------------------------------------------------------------------------


def test_an_unknown_scheme_is_refused() -> None:
    for url in ("ftp://host/x", "postgresql://h/d", "s4://b"):
        with pytest.raises(UnknownSchemeError, match="unknown store scheme"):
            open_store(url)


def test_a_malformed_address_or_option_is_an_error_of_the_store(s3_endpoint: str) -> None:
    for url, options in (
        ("s3://", {}),
        ("s3://[bad", {}),
        ("s3://bucket", {"no_such_option": "1"}),
        ("s3://bucket", {"timeout": "soon"}),
        ("s3://bucket", {"access_key_id": "alone"}),
    ):
        with pytest.raises(StoreError):
            open_store(url, options)


def test_a_store_out_of_reach_is_an_error_of_its_own() -> None:
    store = open_store("s3://bucket/p", s3_options("http://127.0.0.1:1"))
    with pytest.raises(StoreUnavailableError) as caught:
        store.put("a", b"x")
    assert "s3://bucket/p" in str(caught.value)
    assert "hush" not in str(caught.value)
    for call in (store.open, store.get, store.delete, lambda path: list(store.list(path))):
        with pytest.raises(StoreUnavailableError):
            call("a")


def test_a_bucket_that_is_not_there_is_an_error_of_the_store(s3_endpoint: str) -> None:
    store = open_store("s3://no-such-bucket/p", s3_options(s3_endpoint))
    with pytest.raises(StoreUnavailableError):
        store.put("a", b"x")


def test_a_put_that_is_sent_again_succeeds(s3_store: Store) -> None:
    """As the client does by itself when the answer to the first request was lost."""
    s3_store.put("a", b"x")
    s3_store.put("a", b"x")
    assert s3_store.get("a") == b"x"
    assert s3_store.shared
