"""Entries: compare-and-set, functions under the write lock, and watching by revision."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headrace.catalog import Catalog, entries
from headrace.catalog.entries import ABSENT
from headrace.errors import ConflictError, InvalidInputError


def state(catalog: Catalog, bucket: str = "b") -> list[tuple[str, bytes | None, int]]:
    return [(e.key, e.value, e.revision) for e in catalog.entries.list(bucket)]


def test_an_entry_is_read_back_as_it_was_put(catalog: Catalog) -> None:
    assert catalog.entries.get("b", "k") is None
    assert catalog.entries.put("b", "k", b"\x00\xff") == 1
    found = catalog.entries.get("b", "k")
    assert found is not None
    assert (found.value, found.revision) == (b"\x00\xff", 1)
    assert catalog.entries.put("b", "k", b"") == 2
    assert state(catalog) == [("k", b"", 2)]


def test_revisions_count_up_per_bucket(catalog: Catalog) -> None:
    assert [catalog.entries.put("b", key, b"v") for key in "xyx"] == [1, 2, 3]
    assert catalog.entries.put("other", "x", b"v") == 1


def test_create_is_refused_when_the_entry_exists(catalog: Catalog) -> None:
    catalog.entries.put("b", "k", b"1", if_revision=ABSENT)
    before = state(catalog)
    with pytest.raises(ConflictError) as caught:
        catalog.entries.put("b", "k", b"2", if_revision=ABSENT)
    assert (caught.value.expected, caught.value.found) == (0, 1)
    assert state(catalog) == before


def test_update_from_an_old_revision_is_refused(catalog: Catalog) -> None:
    first = catalog.entries.put("b", "k", b"1")
    second = catalog.entries.put("b", "k", b"2", if_revision=first)
    with pytest.raises(ConflictError):
        catalog.entries.put("b", "k", b"3", if_revision=first)
    with pytest.raises(ConflictError):
        catalog.entries.delete("b", "k", if_revision=first)
    with pytest.raises(ConflictError):
        catalog.entries.put("b", "none", b"3", if_revision=second)
    assert state(catalog) == [("k", b"2", second)]


def test_a_deleted_entry_can_be_created_again_and_revisions_go_on(catalog: Catalog) -> None:
    catalog.entries.put("b", "k", b"1")
    assert catalog.entries.delete("b", "k") == 2
    assert catalog.entries.delete("b", "k") is None
    assert catalog.entries.get("b", "k") is None
    assert state(catalog) == []
    with pytest.raises(ConflictError):
        catalog.entries.put("b", "k", b"x", if_revision=2)
    assert catalog.entries.put("b", "k", b"2", if_revision=ABSENT) == 3


def test_update_runs_a_function_over_the_value(catalog: Catalog) -> None:
    def count(value: bytes | None) -> bytes:
        return str(int(value or b"0") + 1).encode()

    for _ in range(3):
        found = catalog.entries.update("b", "k", count)
    assert found is not None
    assert (found.value, found.revision) == (b"3", 3)
    unchanged = catalog.entries.update("b", "k", lambda value: value)
    assert unchanged == found
    assert catalog.entries.update("b", "k", lambda value: None) is None
    assert catalog.entries.update("b", "k", lambda value: None) is None
    assert catalog.entries.changes("b", 0).revision == 4


def test_a_function_that_raises_changes_nothing_and_its_error_comes_through(
    catalog: Catalog,
) -> None:
    class Odd(Exception):
        pass

    def refuse(value: bytes | None) -> bytes:
        raise Odd(value)

    catalog.entries.put("b", "k", b"1")
    with pytest.raises(Odd) as caught:
        catalog.entries.update("b", "k", refuse)
    assert caught.value.args == (b"1",)
    assert state(catalog) == [("k", b"1", 1)]


def test_concurrent_updates_lose_nothing(catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
    other = reopen()

    def count(value: bytes | None) -> bytes:
        return str(int(value or b"0") + 1).encode()

    def work(catalog: Catalog) -> None:
        for _ in range(25):
            catalog.entries.update("b", "k", count)

    threads = [threading.Thread(target=work, args=(c,)) for c in (catalog, other) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state(catalog) == [("k", b"150", 150)]


def test_of_concurrent_creators_one_wins(catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
    won: list[int] = []
    lost: list[ConflictError] = []

    def create(catalog: Catalog, number: int) -> None:
        try:
            catalog.entries.put("b", "k", str(number).encode(), if_revision=ABSENT)
            won.append(number)
        except ConflictError as error:
            lost.append(error)

    catalogs = (catalog, reopen())
    threads = [threading.Thread(target=create, args=(catalogs[n % 2], n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == 7
    assert state(catalog) == [("k", str(won[0]).encode(), 1)]


def test_changes_since_a_revision_are_in_order_with_deletions(catalog: Catalog) -> None:
    catalog.entries.put("b", "x", b"1")
    catalog.entries.put("b", "y", b"1")
    catalog.entries.put("b", "x", b"2")
    catalog.entries.delete("b", "y")
    since_start = catalog.entries.changes("b", 0)
    assert [(e.key, e.value, e.revision) for e in since_start.entries] == [
        ("x", b"2", 3),
        ("y", None, 4),
    ]
    assert (since_start.revision, since_start.reset) == (4, False)
    assert [e.key for e in catalog.entries.changes("b", 3).entries] == ["y"]
    assert catalog.entries.changes("b", 4).entries == ()


def test_a_watcher_from_the_future_is_reset(catalog: Catalog) -> None:
    assert catalog.entries.changes("b", 7).reset
    catalog.entries.put("b", "x", b"1")
    found = catalog.entries.changes("b", 7)
    assert found.reset
    assert [e.key for e in found.entries] == ["x"]


def test_pruned_tombstones_reset_a_watcher_that_lags(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "TOMBSTONES_KEPT", 10)
    catalog.entries.put("b", "stays", b"1")
    for number in range(20):
        catalog.entries.put("b", f"k{number}", b"1")
        catalog.entries.delete("b", f"k{number}")
    rows = catalog.read(lambda tx: tx.rows("SELECT key FROM entries WHERE value IS NULL"))
    assert len(rows) <= 10
    lagging = catalog.entries.changes("b", 3)
    assert lagging.reset
    assert [(e.key, e.value) for e in lagging.entries] == [("stays", b"1")]
    near = catalog.entries.changes("b", lagging.revision - 4)
    assert not near.reset
    assert [e.key for e in near.entries] == ["k18", "k19"]


def test_a_watcher_applies_every_change_whatever_is_pruned(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model: whoever applies changes ends up with the bucket, from any place and pace."""
    monkeypatch.setattr(entries, "TOMBSTONES_KEPT", 5)
    watchers: list[tuple[int, dict[str, bytes]]] = [(0, {}) for _ in range(3)]
    for step in range(60):
        key = f"k{step * 7 % 11}"
        if step % 3:
            catalog.entries.put("b", key, str(step).encode())
        else:
            catalog.entries.delete("b", key)
        for number, every in enumerate((1, 7, 29)):
            if step % every == 0 or step == 59:
                since, known = watchers[number]
                found = catalog.entries.changes("b", since)
                known = {} if found.reset else known
                for entry in found.entries:
                    if entry.value is None:
                        known.pop(entry.key, None)
                    else:
                        known[entry.key] = entry.value
                watchers[number] = (found.revision, known)
    truth = {e.key: e.value for e in catalog.entries.list("b")}
    assert [known for _, known in watchers] == [truth] * 3


def test_watch_yields_what_is_there_and_what_comes(catalog: Catalog) -> None:
    catalog.entries.put("b", "x", b"1")
    seen: list[tuple[str, bytes | None]] = []

    def watch() -> None:
        for change in catalog.entries.watch("b"):
            seen.extend((e.key, e.value) for e in change.entries)
            ready.set()
            if ("x", None) in seen:
                return

    ready = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    assert ready.wait(10)
    catalog.entries.put("b", "y", b"2")
    catalog.entries.put("another", "z", b"2")
    catalog.entries.delete("b", "x")
    thread.join(10)
    assert not thread.is_alive()
    assert seen[0] == ("x", b"1")
    assert seen[-1] == ("x", None)
    assert ("z", b"2") not in seen


def test_watch_ends_when_nothing_comes_in_time(catalog: Catalog) -> None:
    assert list(catalog.entries.watch("b", timeout_s=0.01)) == []


def test_an_entry_out_of_bounds_is_refused(catalog: Catalog) -> None:
    bad: list[tuple[str, str, Any]] = [
        ("", "k", b""),
        ("b", "", b""),
        ("b" * 513, "k", b""),
        ("b", "k" * 513, b""),
        ("b", "ü" * 257, b""),
        ("b", "nul\x00", b""),
        ("line\nbreak", "k", b""),
        ("b", "\ud800", b""),
        ("b", "k", b"x" * (entries.VALUE_BYTES_MAX + 1)),
        ("b", "k", "text"),
    ]
    for bucket, key, value in bad:
        with pytest.raises(InvalidInputError):
            catalog.entries.put(bucket, key, value)
        with pytest.raises(InvalidInputError):
            catalog.entries.update(bucket, key, partial(_return, value))
    assert catalog.read(lambda tx: tx.rows("SELECT * FROM entries")) == []
    assert catalog.read(lambda tx: tx.rows("SELECT * FROM buckets")) == []


def _return(value: bytes, before: bytes | None) -> bytes:
    return value


def test_names_of_any_script_and_length_up_to_the_bound_are_kept_apart(catalog: Catalog) -> None:
    keys = ["k" * 512, "ключ", "鍵", "a b", "%s?", "k'", 'k"', "K", "k"]
    for number, key in enumerate(keys):
        catalog.entries.put("b", key, str(number).encode(), if_revision=ABSENT)
    for number, key in enumerate(keys):
        found = catalog.entries.get("b", key)
        assert found is not None
        assert found.value == str(number).encode()
