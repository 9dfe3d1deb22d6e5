"""The blocking mirror: the same results without ``await``."""

from __future__ import annotations

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headrace
import headrace.sync
from headrace.api.blocking import BlockingGroups
from headrace.errors import CatalogClosedError, NoStreamError
from headrace.groups.partitioned.groups import Groups as PartitionedGroups
from headrace.groups.shared.admin import Groups as SharedGroupsHere
from headrace.groups.shared.admin import SharedGroups
from tests.api.test_client import table_of
from tests.support import wait_until


def test_a_script_publishes_and_reads(catalog_url: str) -> None:
    with headrace.sync.open(catalog_url) as hr:
        hr.create_stream("orders", subjects=["orders.>"], segments=2)
        assert hr.publish("orders.n", b"1", key="k").offset == 0
        hr.append("orders", table_of(["orders.n"] * 2, [b"2", b"3"], ["k", "k"]))
        with hr.transaction() as tx:
            tx.publish("orders.n", b"4", key="k")
        assert tx.placed[0].start == 3
        values = [v for batch in hr.read("orders") for v in batch.column("value").to_pylist()]
        assert values == [b"1", b"2", b"3", b"4"]
        assert [segment.number for segment in hr.stream("orders").segments] == [0, 1]


def test_an_error_reaches_the_caller_and_leaves_the_log_usable(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("orders", subjects=["orders.>"])
        with pytest.raises(NoStreamError):
            hr.publish("elsewhere.n", b"")
        with pytest.raises(RuntimeError, match="changed my mind"):
            given_up(hr)
        assert list(hr.read("orders")) == []
        hr.publish("orders.n", b"")


def given_up(hr: headrace.sync.Headrace) -> None:
    with hr.transaction() as tx:
        tx.publish("orders.n", b"never")
        raise RuntimeError("changed my mind")


def test_a_tail_waits_for_another_thread_and_can_be_left(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d") as hr:
        hr.create_stream("orders", subjects=["orders.>"])
        seen: list[bytes] = []

        def follow() -> None:
            for batch in hr.tail("orders", start="earliest"):
                seen.extend(batch.column("value").to_pylist())
                if len(seen) >= 3:
                    break

        follower = threading.Thread(target=follow)
        follower.start()
        for value in (b"1", b"2", b"3"):
            hr.publish("orders.n", value)
        wait_until(lambda: not follower.is_alive(), "the follower's end")
        assert seen == [b"1", b"2", b"3"]


def test_threads_may_share_it(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d") as hr, ThreadPoolExecutor(8) as pool:
        hr.create_stream("orders", subjects=["orders.>"])
        positions = list(pool.map(lambda i: hr.publish("orders.n", b"%d" % i), range(200)))
        assert {position.offset for position in positions} == set(range(200))


def test_a_failed_opening_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    with (
        pytest.raises(headrace.HeadraceError),
        headrace.sync.open(tmp_path / "typo", create=False),
    ):
        pass
    wait_until(lambda: threading.active_count() == before, "its threads to end")


def test_every_asynchronous_call_has_its_mirror() -> None:
    inner = {"close", "in_thread"}
    for name, method in inspect.getmembers(headrace.Headrace, inspect.isfunction):
        if not name.startswith("_") and name not in inner:
            mirror = getattr(headrace.sync.Headrace, name, None)
            assert mirror is not None, f"headrace.sync lacks {name}"
            assert mirror.__doc__
            if name not in ("append", "appender", "publish", "transaction"):
                assert mirror.__doc__ == method.__doc__


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [(SharedGroups, SharedGroupsHere), (PartitionedGroups, BlockingGroups)],
)
def test_what_looks_after_groups_has_the_same_calls_in_both_forms(
    asynchronous: type, blocking: type
) -> None:
    def calls(kind: type) -> dict[str, tuple[str | None, list[str]]]:
        return {
            name: (method.__doc__, list(inspect.signature(method).parameters))
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert calls(asynchronous) == calls(blocking)


def test_without_its_block_and_after_it_every_call_says_that_the_log_is_not_open(
    tmp_path: Path,
) -> None:
    hr = headrace.sync.open(tmp_path / "data")
    with pytest.raises(CatalogClosedError, match="not open"):
        hr.streams()
    with hr:
        assert hr.streams() == ()
    with pytest.raises(CatalogClosedError, match="not open"):
        hr.streams()
