"""Channels with news many times a second: told seldom, never forgotten, only to who wants them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import pytest

from headrace.catalog import Catalog, Tx, entries, open_catalog
from headrace.catalog.frequent import EVERY_S, Frequent
from headrace.catalog.transaction import FREQUENT
from headrace.catalog.wake import WANTS_FREQUENT, wake_folder
from tests.support import wait_until

MOVED = f"{FREQUENT}moved"


def notify(*channels: str) -> Callable[[Tx], None]:
    def run(tx: Tx) -> None:
        for channel in channels:
            tx.notify(channel)

    return run


class Listener:
    """Looks at a value when it hears of news."""

    def __init__(self, catalog: Catalog, channel: str = MOVED) -> None:
        self._catalog = catalog
        self.seen = 0
        self._news = threading.Event()
        self._stop = False
        catalog.subscribe(channel, self._hear)
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        self._news.set()

    def _look(self) -> None:
        while not self._stop:
            self._news.wait()
            self._news.clear()
            entry = self._catalog.entries.get("b", "k")
            self.seen = 0 if entry is None or entry.value is None else int(entry.value)

    def saw(self, value: int) -> bool:
        return self.seen == value

    def close(self) -> None:
        self._stop = True
        self._news.set()
        self._thread.join()


def test_the_last_change_is_told_and_few_of_those_before_it(
    catalog: Catalog, reopen: Callable[[], Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Listener(catalog), Listener(reopen())
    told: list[int] = []
    news = catalog.notifier.news

    def tell(channels: Collection[str]) -> None:
        told.append(int(MOVED in channels))
        news(channels)

    # Who listens also looks once a second, and whenever it could not hear: that does not count.
    monkeypatch.setattr(catalog.notifier, "news", tell)
    began = time.monotonic()
    for number in range(1, 501):

        def change(tx: Tx, value: bytes = str(number).encode()) -> None:
            entries.put(tx, "b", "k", value)
            tx.notify(MOVED)

        catalog.write(change, sync=False)
    for listener in (here, there):
        wait_until(partial(listener.saw, 500), "the last change")
        listener.close()
    assert 1 <= sum(told) <= (time.monotonic() - began) / EVERY_S + 2


def test_a_commit_does_not_tell_what_the_thread_is_about_to() -> None:
    told: list[set[str]] = []
    frequent = Frequent(told.append)
    assert frequent.due({MOVED}) == ({MOVED}, set())
    assert frequent.due({MOVED}) == (set(), {MOVED})
    frequent._late.add(MOVED)  # as later() does, but nobody is rung for it
    frequent._next_s = 0.0
    assert frequent.due({MOVED, "plain"}) == ({"plain"}, {MOVED})
    frequent.close()
    assert told == [{MOVED}]


def test_what_waits_is_told_when_the_catalog_closes(
    catalog: Catalog, reopen: Callable[[], Catalog], catalog_url: str
) -> None:
    heard = threading.Event()
    reopen().subscribe(f"{FREQUENT}second", heard.set)
    writer = open_catalog(catalog_url)
    writer.write(notify(f"{FREQUENT}first"))
    heard.clear()
    writer.write(notify(f"{FREQUENT}second"))
    writer.close()
    assert heard.wait(10)


def test_a_commit_that_failed_moves_nothing(catalog: Catalog) -> None:
    heard: list[int] = []
    catalog.notifier.subscribe(MOVED, lambda: heard.append(1))

    def fail(tx: Tx) -> None:
        tx.notify(MOVED)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            catalog.write(fail)
    assert heard == []
    catalog.write(notify(MOVED))
    assert heard == [1], "and it takes nobody's turn"


def test_who_does_not_wait_for_them_is_not_woken(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path / "catalog")
    folder = wake_folder(tmp_path / "catalog")
    folder.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(folder / "another-process"))
        other.settimeout(10)
        catalog.write(notify(MOVED))
        catalog.write(notify("plain", MOVED))
        assert other.recv(100) == b"plain"
        (folder / f"another-process{WANTS_FREQUENT}").touch()
        catalog.write(notify(MOVED))
        assert other.recv(100) == MOVED.encode()
    catalog.close()


def test_a_dead_process_leaves_nothing_behind(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path / "catalog")
    folder = wake_folder(tmp_path / "catalog")
    folder.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(folder / "another-process"))
        (folder / f"another-process{WANTS_FREQUENT}").touch()
    catalog.write(notify("plain"))
    assert list(folder.iterdir()) == []
    catalog.subscribe(MOVED, lambda: None)
    assert len(list(folder.iterdir())) == 2
    catalog.close()
    assert not folder.exists() or list(folder.iterdir()) == []
