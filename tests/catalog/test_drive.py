"""A driven catalog: its time is that of whoever drives it, and writes are made at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from headrace.catalog import Catalog, Tx


def test_reads_writes_and_leases_go_by_the_driven_clock(
    reopen: Callable[[], Catalog],
) -> None:
    now_us = 2_000_000_000_000_000
    catalogs = [reopen(), reopen()]
    for catalog in catalogs:
        catalog.drive(lambda: now_us)
    mine, other = catalogs
    assert mine.read(lambda tx: tx.now_us()) == now_us
    assert mine.write(lambda tx: tx.now_us()) == now_us
    held = mine.leases.acquire("leader", "a", 5000)
    assert held is not None
    now_us += 4_999_999
    assert other.leases.acquire("leader", "b", 5000) is None
    now_us += 1
    taken = other.leases.acquire("leader", "b", 5000)
    assert taken is not None
    assert taken.token == held.token + 1


def test_a_write_is_made_on_the_thread_that_hands_it_over(catalog: Catalog) -> None:
    catalog.drive(lambda: 0)
    ran_on: list[int] = []
    told: list[Any] = []

    def write(tx: Tx) -> str:
        ran_on.append(threading.get_ident())
        tx.notify("channel")
        return "written"

    catalog.submit(write, lambda result, error: told.append((result, error)), sync=False)
    assert told == [("written", None)]
    assert ran_on == [threading.get_ident()]


def test_a_write_that_fails_is_undone_and_told(catalog: Catalog) -> None:
    catalog.drive(lambda: 0)
    told: list[BaseException | None] = []

    def write(tx: Tx) -> None:
        tx.execute("INSERT INTO leases (name, owner, token, expires_us) VALUES (?, ?, ?, ?)",
                   ("leader", "a", 1, 10))  # fmt: skip
        raise LookupError("no")

    catalog.submit(write, lambda _, error: told.append(error))
    assert [type(error) for error in told] == [LookupError]
    assert catalog.leases.get("leader") is None
