"""A log that was opened before a fork refuses every call in the child; nothing is lost."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog.sqlite import FILE
from tests.api.forking import EVENTS, LOOKS_S

FORKED = "this log was opened before a fork; open it again in this process"


def run(program: str, url: str) -> dict[str, Any]:
    """What one of the programs saw, in processes of their own."""
    python = (sys.executable, "-W", "ignore::DeprecationWarning")
    done = subprocess.run(
        [*python, "-m", "tests.api.forking", program, url],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if "://" not in url:
        with closing(sqlite3.connect(Path(url) / FILE)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_a_child_is_told_at_once_and_nothing_is_lost_when_its_parent_closes(
    catalog_url: str,
) -> None:
    seen = run("closing_parent", catalog_url)
    assert seen == {"first": FORKED, "then": FORKED, "stored": {"s.parent": 10}}


@pytest.mark.parametrize("program", ["blocking_calls", "asynchronous_calls"])
def test_every_call_is_refused_in_a_child_and_works_on_in_the_parent(
    catalog_url: str, program: str
) -> None:
    seen = run(program, catalog_url)
    assert set(seen["seen"].values()) == {FORKED}, seen
    assert set(seen["stored"]) == {"s.parent"}


def test_reader_groups_epochs_and_regions_are_refused_in_a_child_too(catalog_url: str) -> None:
    seen = run("protocol_calls", catalog_url)
    assert set(seen["seen"].values()) == {FORKED}, seen
    assert (seen["frontier"], seen["stored"]) == ([7], {"s.parent": 1})


def test_a_child_forked_while_other_threads_write_and_read_does_not_hang(catalog_url: str) -> None:
    seen = run("busy_parent", catalog_url)
    assert seen["children"] == [[FORKED, 5]] * 20
    assert seen["stored"] == {"s.parent": seen["published"], "s.child": 100}


def test_workers_with_logs_of_their_own_lose_nothing_when_their_parent_closes(
    catalog_url: str,
) -> None:
    seen = run("prefork", catalog_url)
    assert seen["told"] == {str(number): EVENTS for number in range(4)}
    expected = {f"s.{number}": EVENTS + 10 for number in range(4)}
    assert seen["stored"] == {"s.parent": 10, **expected}


def test_a_preloading_server_and_its_workers_lose_nothing(catalog_url: str) -> None:
    seen = run("preloading_server", catalog_url)
    assert set(seen["ready"].values()) == {FORKED}
    assert seen["statuses"] == [0, 0, 0]
    stored = seen["stored"]
    assert stored["s.server"] == EVENTS
    assert stored["s.0"] >= seen["told"]["0"]  # killed: what it was told of is there
    assert {number: stored[f"s.{number}"] for number in seen["ended"]} == seen["ended"]
    assert "s.lost" not in stored


def test_a_pool_of_workers_that_are_replaced_loses_nothing(catalog_url: str) -> None:
    seen = run("worker_pool", catalog_url)
    assert seen["done"] == list(range(EVENTS))
    assert seen["stored"] == {"s.task": EVENTS, "s.parent": EVENTS}


def test_a_child_that_exits_takes_nothing_of_its_parent_with_it(catalog_url: str) -> None:
    seen = run("exiting_child", catalog_url)
    assert (seen["status"], seen["rows"], seen["stored"]) == (0, 1, {"s.parent": 2})
    assert seen["woken_s"] < LOOKS_S / 2  # by its socket, not by looking now and then


def test_with_a_long_path_the_sockets_outside_of_the_catalog_stay_too(tmp_path: Path) -> None:
    url = str(tmp_path / ("a-long-name-of-a-project-folder" * 3) / "catalog")
    seen = run("exiting_child", url)
    assert (seen["status"], seen["rows"], seen["stored"]) == (0, 1, {"s.parent": 2})
    assert seen["woken_s"] < LOOKS_S / 2


def test_a_fork_in_the_middle_of_a_transaction_leaves_the_parent_unharmed(tmp_path: Path) -> None:
    seen = run("in_a_transaction", str(tmp_path / "catalog"))
    assert "forked off in the middle of a transaction" in seen["own"]
    assert seen["kept"]
