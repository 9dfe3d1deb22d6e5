"""Group commit: many writes in few transactions, and none disturbs another."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.catalog import Catalog, Tx
from headrace.errors import CatalogClosedError, CatalogError, ConflictError, InvalidInputError
from tests.support import wait_until


class Hold:
    """Keeps the committer inside one write until it is let go, so that others gather."""

    def __init__(self, catalog: Catalog) -> None:
        self._entered = threading.Event()
        self._release = threading.Event()
        self._catalog = catalog
        self._thread = threading.Thread(target=lambda: catalog.write(self._wait))

    def _wait(self, tx: Tx) -> None:
        self._entered.set()
        assert self._release.wait(20)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._entered.wait(20)

    def __exit__(self, *_: object) -> None:
        self._release.set()
        self._thread.join()


class Outcomes:
    """Collects what became of submitted writes."""

    def __init__(self, count: int) -> None:
        self.results: dict[int, object] = {}
        self.errors: dict[int, BaseException] = {}
        self._left = threading.Semaphore(0)
        self._count = count

    def of(self, number: int) -> Callable[[object, BaseException | None], None]:
        def done(result: object, error: BaseException | None) -> None:
            if error is None:
                self.results[number] = result
            else:
                self.errors[number] = error
            self._left.release()

        return done

    def wait(self) -> None:
        for _ in range(self._count):
            assert self._left.acquire(timeout=20)


def put(key: str) -> Callable[[Tx], int]:
    return lambda tx: tx.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?)", (f"test:{key}", "x")
    )


def stored(catalog: Catalog) -> set[str]:
    rows = catalog.read(lambda tx: tx.rows("SELECT key FROM meta WHERE key LIKE 'test:%'"))
    return {row[0].removeprefix("test:") for row in rows}


def test_writes_that_gather_share_a_commit(catalog: Catalog) -> None:
    outcomes = Outcomes(40)
    before = catalog.statistics()
    with Hold(catalog):
        for number in range(40):
            catalog.submit(put(str(number)), outcomes.of(number))
    outcomes.wait()
    after = catalog.statistics()
    assert outcomes.errors == {}
    assert stored(catalog) == {str(number) for number in range(40)}
    assert after["operations"] - before["operations"] == 41
    assert after["commits"] - before["commits"] == 2


def test_concurrent_writers_need_fewer_commits_than_writes(catalog: Catalog) -> None:
    def work(number: int) -> None:
        for step in range(20):
            catalog.write(put(f"{number}-{step}"))

    before = catalog.statistics()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = catalog.statistics()
    assert len(stored(catalog)) == 160
    assert after["operations"] - before["operations"] == 160
    assert after["commits"] - before["commits"] < 120


def test_a_write_that_fails_leaves_its_companions_alone(catalog: Catalog) -> None:
    class Odd(Exception):
        pass

    def half_done(tx: Tx) -> None:
        put("half")(tx)
        tx.notify("half")
        raise Odd("no")

    def broken_sql(tx: Tx) -> None:
        put("broken")(tx)
        tx.execute("SELECT * FROM no_such_table")

    def conflict(tx: Tx) -> None:
        put("conflict")(tx)
        raise ConflictError("b", "k", 1, 2)

    heard: list[str] = []
    # The notifier alone: a catalog that listens also looks now and then, and wakes everybody.
    catalog.notifier.subscribe("half", lambda: heard.append("half"))
    catalog.notifier.subscribe("good", lambda: heard.append("good"))

    def good(tx: Tx) -> int:
        tx.notify("good")
        return put("second")(tx)

    heard.clear()
    outcomes = Outcomes(6)
    with Hold(catalog):
        writes = (put("first"), half_done, broken_sql, good, conflict, put("third"))
        for number, write in enumerate(writes):
            catalog.submit(write, outcomes.of(number))
    outcomes.wait()
    assert stored(catalog) == {"first", "second", "third"}
    assert set(outcomes.results) == {0, 3, 5}
    assert isinstance(outcomes.errors[1], Odd)
    assert "no_such_table" in str(outcomes.errors[2])
    assert isinstance(outcomes.errors[4], ConflictError)
    assert (outcomes.errors[4].expected, outcomes.errors[4].found) == (1, 2)
    assert heard == ["good"]


def test_a_write_that_fails_alone_changes_nothing(catalog: Catalog) -> None:
    def fail(tx: Tx) -> None:
        put("x")(tx)
        raise InvalidInputError("no")

    before = catalog.statistics()
    with pytest.raises(InvalidInputError, match="no"):
        catalog.write(fail)
    assert stored(catalog) == set()
    assert catalog.statistics() == before
    catalog.write(put("after"))
    assert stored(catalog) == {"after"}


def test_a_write_sees_those_before_it_in_its_group(catalog: Catalog) -> None:
    outcomes = Outcomes(2)
    with Hold(catalog):
        catalog.submit(put("x"), outcomes.of(0))
        catalog.submit(
            lambda tx: tx.row("SELECT count(*) FROM meta WHERE key = 'test:x'"), outcomes.of(1)
        )
    outcomes.wait()
    assert outcomes.results[1] == (1,)


def test_a_read_does_not_see_what_is_not_committed(catalog: Catalog) -> None:
    entered, release = threading.Event(), threading.Event()

    def slow(tx: Tx) -> None:
        put("slow")(tx)
        entered.set()
        assert release.wait(20)

    thread = threading.Thread(target=lambda: catalog.write(slow))
    thread.start()
    assert entered.wait(20)
    assert stored(catalog) == set()
    release.set()
    thread.join()
    assert stored(catalog) == {"slow"}


def test_a_snapshot_sees_one_moment(catalog: Catalog) -> None:
    def twice(tx: Tx) -> tuple[object, object]:
        first = tx.row("SELECT count(*) FROM meta")
        thread = threading.Thread(target=lambda: catalog.write(put("meanwhile")))
        thread.start()
        thread.join()
        return first, tx.row("SELECT count(*) FROM meta")

    first, second = catalog.read(twice, snapshot=True)
    assert first == second
    assert stored(catalog) == {"meanwhile"}


def test_news_that_nobody_can_bear_does_not_stop_the_committer(catalog: Catalog) -> None:
    def bad() -> None:
        raise RuntimeError("the loop is closed")

    heard = threading.Event()
    catalog.subscribe("news", bad)
    catalog.subscribe("news", heard.set)
    heard.clear()
    catalog.write(lambda tx: tx.notify("news"))
    assert heard.wait(10)
    catalog.write(put("still alive"))
    assert stored(catalog) == {"still alive"}


def test_an_answer_that_nobody_can_bear_does_not_stop_the_committer(catalog: Catalog) -> None:
    def bad(result: object, error: BaseException | None) -> None:
        raise RuntimeError("the loop is closed")

    catalog.submit(put("x"), bad)
    catalog.write(put("y"))
    assert stored(catalog) == {"x", "y"}


def test_closing_finishes_what_is_queued_and_refuses_the_rest(
    catalog: Catalog, reopen: Callable[[], Catalog]
) -> None:
    outcomes = Outcomes(30)
    for number in range(30):
        catalog.submit(put(str(number)), outcomes.of(number))
    catalog.close()
    outcomes.wait()
    assert outcomes.errors == {}
    for call in (
        lambda: catalog.write(put("late")),
        lambda: catalog.read(lambda tx: tx.row("SELECT 1")),
    ):
        with pytest.raises(CatalogClosedError):
            call()
    catalog.close()
    assert stored(reopen()) == {str(number) for number in range(30)}


def test_every_write_that_races_with_closing_gets_an_answer(
    catalog: Catalog, reopen: Callable[[], Catalog]
) -> None:
    answers: list[str] = []

    def work(number: int) -> None:
        for step in range(1000):
            try:
                catalog.write(put(f"{number}-{step}"))
                answers.append(f"{number}-{step}")
            except CatalogClosedError:
                return

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answers) > 20, "some writes")
    catalog.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert stored(reopen()) == set(answers)


def test_closing_waits_for_nobody_and_breaks_no_read(catalog: Catalog) -> None:
    entered, release = threading.Event(), threading.Event()
    found: list[object] = []

    def slow(tx: Tx) -> object:
        tx.row("SELECT 1")
        entered.set()
        assert release.wait(20)
        return tx.row("SELECT count(*) FROM meta WHERE key = 'schema_version'")

    thread = threading.Thread(target=lambda: found.append(catalog.read(slow, snapshot=True)))
    thread.start()
    assert entered.wait(20)
    catalog.close()
    release.set()
    thread.join()
    assert found == [(1,)]


def test_threads_that_come_and_go_leave_no_connections(catalog: Catalog) -> None:
    """More threads, one after the other, than PostgreSQL has connections to give."""
    for _ in range(120):
        thread = threading.Thread(target=lambda: catalog.read(lambda tx: tx.row("SELECT 1")))
        thread.start()
        thread.join()
    assert catalog.read(lambda tx: tx.row("SELECT 1")) == (1,)


def test_reads_may_stand_inside_reads(catalog: Catalog) -> None:
    def outer(tx: Tx) -> object:
        inner = catalog.read(lambda tx: tx.row("SELECT 2"), snapshot=True)
        return tx.row("SELECT 1"), inner

    assert catalog.read(outer, snapshot=True) == ((1,), (2,))


def test_a_write_that_is_not_synced_is_still_committed(
    catalog: Catalog, reopen: Callable[[], Catalog]
) -> None:
    catalog.write(put("quick"), sync=False)
    catalog.write(put("safe"))
    assert stored(reopen()) == {"quick", "safe"}


def test_a_write_within_a_write_is_refused(catalog: Catalog) -> None:
    refused: list[str] = []

    def outer(tx: Tx) -> None:
        try:
            catalog.write(lambda tx: tx.execute("DELETE FROM leases"))
        except CatalogError as error:
            refused.append(str(error))

    catalog.write(outer)
    assert refused == ["a write within a write would wait for itself; put them in one"]
    catalog.entries.put("b", "k", b"v")
