"""PostgreSQL when connections are cut: told the truth, nothing twice, and soon well again."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headrace
from headrace.catalog import Catalog, Tx, open_catalog, postgres_connections, postgres_pool
from headrace.catalog.postgres import PostgresCatalog
from headrace.catalog.postgres_calls import Exchange
from headrace.catalog.postgres_writer import PostgresWriter
from headrace.catalog.streams import StreamConfig
from headrace.errors import CatalogUnavailableError
from headrace.log.events import Event
from headrace.log.log import Log
from tests.support import wait_until


@pytest.fixture
def catalog(postgres_url: str) -> Iterator[PostgresCatalog]:
    with closing(open_catalog(postgres_url)) as opened:
        assert isinstance(opened, PostgresCatalog)
        yield opened


@pytest.fixture
def cut(postgres_url: str) -> Iterator[Callable[[str], int]]:
    """Ends the server's side of this catalog's connections whose last statement matches a pattern.

    Those of other databases and processes belong to other tests: the processes of the tests' Spark
    session keep a catalog open for a while, and look for it again when they were cut off.
    """
    own = f"headrace %:{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:

        def end(pattern: str = "%") -> int:
            rows = admin.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE application_name LIKE %s AND query LIKE %s "
                "AND datname = current_database()",
                (own, pattern),
            ).fetchall()
            return len(rows)

        yield end


def put(key: str) -> Callable[[Tx], int]:
    return lambda tx: tx.execute("INSERT INTO meta (key, value) VALUES (?, '')", (f"test:{key}",))


def stored(catalog: Catalog) -> list[str]:
    rows = catalog.read(
        lambda tx: tx.rows("SELECT key FROM meta WHERE key LIKE 'test:%' ORDER BY key")
    )
    return [row[0].removeprefix("test:") for row in rows]


def test_the_driver_has_nothing_to_say_of_connections_that_were_cut(
    catalog: PostgresCatalog, cut: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        catalog.write(put(str(number)))
        assert cut() > 0
    catalog.write(put("after"))
    assert [record.getMessage() for record in caplog.records] == []


def test_a_read_that_was_interrupted_leaves_its_connection_to_nobody(
    catalog: PostgresCatalog,
) -> None:
    def interrupted(tx: Tx) -> None:
        # As an exception of a signal that comes between sending and receiving.
        tx._connection.pgconn.send_query(b"SELECT 1")  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    for snapshot in (False, True):
        with pytest.raises((KeyboardInterrupt, psycopg.Error, CatalogUnavailableError)):
            catalog.read(interrupted, snapshot=snapshot)
        assert stored(catalog) == []


def test_connections_cut_while_idle_are_replaced_unseen(
    catalog: PostgresCatalog, cut: Callable[..., int]
) -> None:
    catalog.write(put("before"))
    assert stored(catalog) == ["before"]
    assert cut() == 1
    catalog.write(put("after"))
    assert stored(catalog) == ["after", "before"]


def test_several_idle_readers_cut_at_once_are_replaced(
    catalog: PostgresCatalog, cut: Callable[..., int]
) -> None:
    together = threading.Barrier(3)

    def look(tx: Tx) -> None:
        tx.row("SELECT 1")
        together.wait(10)

    threads = [threading.Thread(target=lambda: catalog.read(look)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cut("SELECT 1%") == 3
    assert stored(catalog) == []
    assert catalog.entries.changes("b", 0).entries == ()


def test_a_write_cut_in_the_middle_fails_and_leaves_nothing(
    catalog: PostgresCatalog, cut: Callable[..., int]
) -> None:
    def write(tx: Tx) -> None:
        put("half")(tx)
        tx.row("SELECT 'in the middle'")
        assert cut("%in the middle%") == 1
        put("other half")(tx)

    with pytest.raises(CatalogUnavailableError):
        catalog.write(write)
    assert stored(catalog) == []
    catalog.write(put("again"))
    assert stored(catalog) == ["again"]


def test_a_group_cut_in_the_middle_fails_as_a_whole(
    catalog: PostgresCatalog, cut: Callable[..., int]
) -> None:
    entered, release = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        entered.set()
        assert release.wait(20)

    def middle(tx: Tx) -> None:
        tx.row("SELECT 'in the middle'")
        assert cut("%in the middle%") == 1
        tx.row("SELECT 1")

    answers: list[BaseException | None] = []
    done = threading.Semaphore(0)

    def answer(result: Any, error: BaseException | None) -> None:
        answers.append(error)
        done.release()

    holder = threading.Thread(target=lambda: catalog.write(hold))
    holder.start()
    assert entered.wait(20)
    for write in (put("a"), middle, put("b")):
        catalog.submit(write, answer)
    release.set()
    holder.join()
    for _ in range(3):
        assert done.acquire(timeout=20)
    assert all(isinstance(error, CatalogUnavailableError) for error in answers)
    assert stored(catalog) == []
    catalog.write(put("again"))
    assert stored(catalog) == ["again"]


@pytest.mark.parametrize("between", range(8))
def test_writes_that_are_cancelled_while_they_wait_spoil_none_after_them(
    catalog: PostgresCatalog, postgres_url: str, between: int
) -> None:
    """The driver prepares a statement at its sixth use or so, which may be a cancelled one."""
    lock = postgres_connections.lock_number("orders")

    def write(key: str) -> None:
        catalog.write(put(key), locks=("orders",))

    def fail() -> None:
        with pytest.raises(CatalogUnavailableError):
            write("never")

    def cancel() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute("SELECT pg_advisory_lock(%s)", (lock,))
            writer = threading.Thread(target=fail)
            writer.start()
            wait_until(
                lambda: (
                    admin.execute(
                        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity "
                        "WHERE application_name LIKE 'headrace %' AND wait_event = 'advisory'"
                    ).fetchone()
                    != (0,)
                ),
                "the write to wait",
            )
            writer.join()

    cancel()
    for number in range(between):
        write(f"a{number}")
    cancel()
    for number in range(3):
        write(f"b{number}")
    assert stored(catalog) == [f"a{n}" for n in range(between)] + ["b0", "b1", "b2"]


def test_a_read_cut_in_the_middle_is_repeated(
    catalog: PostgresCatalog, cut: Callable[..., int]
) -> None:
    catalog.write(put("x"))
    assert stored(catalog) == ["x"]
    runs = []

    def look(tx: Tx) -> Any:
        runs.append(1)
        tx.row("SELECT 'in the middle'")
        if len(runs) == 1:
            assert cut("%in the middle%") == 1
        return tx.row("SELECT 7")

    assert catalog.read(look, snapshot=True) == (7,)
    assert len(runs) == 2


def test_a_listener_that_was_cut_listens_again_and_misses_nothing(
    catalog: PostgresCatalog, postgres_url: str, cut: Callable[..., int]
) -> None:
    heard = threading.Event()
    catalog.subscribe("c", heard.set)
    wait_until(lambda: cut("%sum(head)%"), "a listener to cut")
    with closing(open_catalog(postgres_url)) as other:
        heard.clear()
        # Said while nobody listens: found by looking again once somebody does.
        other.write(lambda tx: tx.notify("c"))
        assert heard.wait(10)
        heard.clear()
        wait_until(
            lambda: other.write(lambda tx: tx.notify("c")) or heard.wait(0.2), "news once more"
        )


class CutAtCommit:
    """Cuts the writer's connection around its COMMIT, as a failing network would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cut: Callable[..., int]) -> None:
        self._real = PostgresWriter.commit
        self._cut = cut
        self.when = "never"
        monkeypatch.setattr(PostgresWriter, "commit", lambda w, c: self.commit(w, c))
        self._real_send, self._real_answer = Exchange.send, Exchange.answer
        monkeypatch.setattr(Exchange, "send", lambda e, *a: self.send(e, *a))
        monkeypatch.setattr(Exchange, "answer", lambda e: self.answer(e))

    def send(self, exchange: Exchange, *arguments: Any) -> None:
        if self.when == "before":
            self.when = "never"
            exchange._connection.execute("SELECT 'about to call'")
            assert self._cut("%about to call%") == 1
        self._real_send(exchange, *arguments)

    def answer(self, exchange: Exchange) -> list[int]:
        found = self._real_answer(exchange)
        if self.when == "after":
            self.when = "never"
            exchange._connection.close()
            raise psycopg.OperationalError("the answer is lost on its way")
        return found

    def commit(self, writer: PostgresWriter, channels: set[str]) -> None:
        when, self.when = self.when, "never"
        assert writer._tx is not None
        writer._tx.settle()
        assert writer._connection is not None
        if when == "before":
            writer._connection.execute("SELECT 'about to commit'")
            assert self._cut("%about to commit%") == 1
        elif when == "after":
            # The server commits, and its answer is lost on the way.
            writer._connection.execute("COMMIT")
            assert self._cut("COMMIT") >= 1
        self._real(writer, channels)


def test_a_commit_whose_answer_was_lost_counts_if_it_happened(
    catalog: PostgresCatalog, monkeypatch: pytest.MonkeyPatch, cut: Callable[..., int]
) -> None:
    faults = CutAtCommit(monkeypatch, cut)
    faults.when = "after"
    assert catalog.write(put("kept")) == 1
    assert stored(catalog) == ["kept"]
    faults.when = "before"
    with pytest.raises(CatalogUnavailableError):
        catalog.write(put("lost"))
    assert stored(catalog) == ["kept"]
    catalog.write(put("next"))
    assert stored(catalog) == ["kept", "next"]


def test_appends_through_cuts_are_there_once_or_failed(
    catalog: PostgresCatalog, monkeypatch: pytest.MonkeyPatch, cut: Callable[..., int]
) -> None:
    """A producer repeats what failed, and cuts come before, after and between."""
    log = Log(catalog, None)
    log.create_stream("s", StreamConfig(subjects=("s.>",)), segments=2)
    faults = CutAtCommit(monkeypatch, cut)
    failed = 0
    for sequence in range(40):
        faults.when = ("never", "before", "after", "never")[sequence % 4]
        if sequence % 4 == 3:
            cut()
        event = Event(subject=f"s.{sequence}", value=str(sequence).encode())
        while True:
            try:
                log.append("s", event, producer="p", sequence=sequence)
                break
            except CatalogUnavailableError:
                failed += 1
    values = [int(v.as_py()) for batch in log.read("s") for v in batch.column("value")]
    assert sorted(values) == list(range(40))
    assert failed == 0  # nothing had been done, and it was done again


def test_a_server_that_stays_away_is_an_error_and_not_a_hang(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, cut: Callable[..., int]
) -> None:
    mark = "&" if "?" in postgres_url else "?"
    with closing(open_catalog(f"{postgres_url}{mark}headrace_reconnect_s=0.3")) as catalog:
        stored(catalog)

        def away(*_: object) -> Any:
            raise CatalogUnavailableError("it is away")

        with monkeypatch.context() as patch:
            patch.setattr(postgres_pool, "connect_patiently", away)
            cut()
            with pytest.raises(CatalogUnavailableError):
                catalog.write(put("x"))
            with pytest.raises(CatalogUnavailableError):
                stored(catalog)
        catalog.write(put("y"))
        assert stored(catalog) == ["y"]


def test_text_that_postgres_cannot_hold_is_refused_in_our_words(catalog: PostgresCatalog) -> None:
    from headrace.errors import HeadraceError

    log = Log(catalog, None)
    for name in ("a\x00b", "\ud800"):
        with pytest.raises(HeadraceError):
            log.stream(name)
        with pytest.raises(HeadraceError):
            catalog.entries.get("b", name)


def test_what_an_appender_was_given_after_a_write_that_failed_is_not_written(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the same group: the log holds a prefix of what was given."""
    real, calls = PostgresWriter.call, 0

    def cut(self: PostgresWriter, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise CatalogUnavailableError("the connection was cut")
        return real(self, *args)

    async def main() -> None:
        async with headrace.open(postgres_url, store=tmp_path / "store", housekeeping=False) as hr:
            await hr.create_stream("s", ["s.>"])
            monkeypatch.setattr(PostgresWriter, "call", cut)
            appender = hr.appender("s")
            # The second goes to a file, so that it is joined with none of the others.
            sizes = {b"a": 1, b"b": 3_000_000, b"c": 1}
            with hr.log.catalog._committer._turn:
                for letter, size in sizes.items():
                    await appender.append([Event(subject="s.x", value=letter * size)])
            with pytest.raises(CatalogUnavailableError):
                await appender.close()
            found = [v async for batch in hr.read("s") for v in batch.column("value").to_pylist()]
            assert [value[:1] for value in found] == [b"a"]

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.IdleInTransactionSessionTimeout("terminating connection"),
        psycopg.errors.TransactionTimeout("terminating connection"),
        psycopg.errors.AdminShutdown("terminating connection"),
        psycopg.InterfaceError("the connection is closed"),
    ],
)
def test_a_connection_that_the_server_ended_is_ridden_out(error: psycopg.Error) -> None:
    """As of a program that was frozen within a transaction, which the server has taken back."""
    assert isinstance(postgres_connections.translate(error, "here"), CatalogUnavailableError)
