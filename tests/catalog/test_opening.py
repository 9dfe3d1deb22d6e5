"""Opening: what is ours and what is not, the schema's version, and migration in place."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from headrace.catalog import (
    Catalog,
    Tx,
    connections,
    open_catalog,
    postgres,
    postgres_connections,
    postgres_tx,
    producers,
    schema,
    sqlite,
)
from headrace.errors import (
    CatalogError,
    CatalogTooNewError,
    CatalogUnavailableError,
    NotACatalogError,
    UnknownSchemeError,
)
from tests.support import process


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@contextmanager
def raw(catalog_url: str) -> Iterator[tuple[Tx, dict[str, str]]]:
    """A transaction on the bare database, below the catalog."""
    if catalog_url.startswith("postgres"):
        with postgres_connections.PgConnection.connect(catalog_url) as pg:
            pg.execute("CREATE SCHEMA IF NOT EXISTS headrace")
            pg.execute("SET search_path TO headrace")
            tx = postgres_tx.PostgresTx(pg)
            yield tx, postgres.TYPES
            tx.settle()
        return
    folder = Path(catalog_url)
    folder.mkdir(exist_ok=True)
    (folder / sqlite.FILE).touch()
    with closing(connections.connect(folder / sqlite.FILE)) as connection:
        connection.execute(f"PRAGMA application_id = {sqlite.APPLICATION_ID}")
        connection.execute("BEGIN")
        yield connections.SqliteTx(connection), sqlite.TYPES
        connection.execute("COMMIT")


# --- the schema's version --------------------------------------------------------------------


def test_a_new_catalog_has_the_current_version(catalog: Catalog) -> None:
    found = catalog.read(lambda tx: schema.get_setting(tx, "schema_version"))
    assert found == str(schema.VERSION)


def test_a_catalog_of_version_1_is_migrated_in_place(catalog_url: str) -> None:
    with raw(catalog_url) as (tx, types):
        schema.migrate(tx, types, "here", upto=1)
        tx.execute(
            "INSERT INTO streams (name, config, created_us, next_segment) VALUES (?, ?, ?, ?)",
            ("orders", b'{"subjects":["orders.>"]}', 5, 1),
        )
        tx.execute(
            "INSERT INTO segments (stream_id, number, range_lo, range_hi, head, tail, bytes, "
            "trimmed_bytes, max_ts_us, created_us) VALUES (1, 0, 0, 4294967296, 0, 0, 0, 0, 0, 5)"
        )
        schema.put_setting(tx, "catalog_id", "kept")
    with closing(open_catalog(catalog_url)) as catalog:
        assert catalog.read(lambda tx: schema.get_setting(tx, "schema_version")) == str(
            schema.VERSION
        )
        assert catalog.read(lambda tx: schema.get_setting(tx, "catalog_id")) == "kept"
        assert catalog.read(lambda tx: tx.rows("SELECT name FROM streams")) == [("orders",)]
        assert catalog.read(lambda tx: tx.rows("SELECT number, markers FROM segments")) == [(0, 0)]
        assert catalog.entries.put("b", "k", b"v") == 1
        assert catalog.leases.acquire("l", "o", 1000) is not None
    with closing(open_catalog(catalog_url)) as again:
        assert again.entries.get("b", "k") is not None


def test_sequences_recorded_by_version_3_are_still_known(catalog_url: str) -> None:
    with raw(catalog_url) as (tx, types):
        schema.migrate(tx, types, "here", upto=3)
        tx.execute(
            "INSERT INTO producers (scope, producer, sequence, positions) VALUES (?, ?, ?, ?)",
            (5, "p", 7, b"\x91\x94\xa1s\x00\x01\x02"),
        )
    with closing(open_catalog(catalog_url)) as catalog:
        found = catalog.read(lambda tx: producers.seen(tx, 5, "p", 7, 1234))
    assert found == (producers.Placed("s", 0, 1, 2),)


def test_a_catalog_newer_than_the_code_is_refused_and_left_alone(catalog_url: str) -> None:
    with closing(open_catalog(catalog_url)) as catalog:
        catalog.write(lambda tx: schema.put_setting(tx, "schema_version", "99"))
    with pytest.raises(CatalogTooNewError, match="99") as caught:
        open_catalog(catalog_url)
    assert (caught.value.found, caught.value.known) == (99, schema.VERSION)
    with raw(catalog_url) as (tx, _):
        assert schema.get_setting(tx, "schema_version") == "99"


def test_a_migration_that_fails_leaves_the_old_version(
    catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raw(catalog_url) as (tx, types):
        schema.migrate(tx, types, "here", upto=1)
    real = schema.statements

    def broken(step: str, types: dict[str, str]) -> list[str]:
        return [*real(step, types), "CREATE TABLE nonsense ("]

    monkeypatch.setattr(schema, "statements", broken)
    with pytest.raises((CatalogError, sqlite3.Error, psycopg.Error)):
        open_catalog(catalog_url)
    monkeypatch.undo()
    with raw(catalog_url) as (tx, _):
        assert schema.get_setting(tx, "schema_version") == "1"
    open_catalog(catalog_url).close()


def test_opening_waits_for_no_reader(catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
    """A long read must not keep others from opening, nor opening keep others from appending."""
    entered, release = threading.Event(), threading.Event()

    def slow(tx: Tx) -> None:
        tx.rows("SELECT * FROM batches")
        entered.set()
        assert release.wait(20)

    thread = threading.Thread(target=lambda: catalog.read(slow, snapshot=True))
    thread.start()
    assert entered.wait(20)
    opened: list[Catalog] = []
    opener = threading.Thread(target=lambda: opened.append(reopen()))
    opener.start()
    opener.join(5)
    in_time = not opener.is_alive()
    release.set()
    thread.join()
    opener.join()
    assert in_time


def test_processes_that_open_a_fresh_catalog_at_once_all_succeed(catalog_url: str) -> None:
    with ExitStack() as stack:
        openers = [
            stack.enter_context(process("tests.catalog.opener", catalog_url, f"p{number}"))
            for number in range(5)
        ]
        for opener in openers:
            assert opener.line() == "ready"
        for opener in openers:
            opener.tell("go")
        for opener in openers:
            assert opener.line() == "done"
            opener.finish()
    with closing(open_catalog(catalog_url, create=False)) as catalog:
        assert len(catalog.entries.list("openers")) == 5


def test_threads_that_open_a_fresh_folder_at_once_all_succeed(tmp_path: Path) -> None:
    for attempt in range(8):
        folder = tmp_path / str(attempt)
        start = threading.Barrier(6)
        errors: list[BaseException] = []

        def work(folder: Path, start: threading.Barrier, errors: list[BaseException]) -> None:
            start.wait()
            try:
                open_catalog(folder).close()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(folder, start, errors)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []


# --- what is not ours ------------------------------------------------------------------------


def test_a_catalog_that_is_not_there_is_not_made_unasked(catalog_url: str) -> None:
    with pytest.raises(NotACatalogError, match="there is no"):
        open_catalog(catalog_url, create=False)
    if catalog_url.startswith("postgres"):
        with psycopg.connect(catalog_url) as pg:
            row = pg.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'headrace'")
            assert row.fetchone() == (0,)
    else:
        assert not Path(catalog_url).exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(NotACatalogError, match="other files"):
        open_catalog(tmp_path)
    assert contents(tmp_path) == {"thesis.txt": b"precious"}


def test_a_file_instead_of_a_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(NotACatalogError, match="is a file"):
        open_catalog(tmp_path / "file")
    with pytest.raises(CatalogError):
        open_catalog(tmp_path / "file" / "below")
    assert contents(tmp_path) == {"file": b"precious"}


def test_a_sqlite_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / sqlite.FILE)) as other:
        other.execute("CREATE TABLE cats (name TEXT)")
    before = contents(tmp_path)
    with pytest.raises(NotACatalogError, match="another program"):
        open_catalog(tmp_path)
    assert contents(tmp_path) == before


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / sqlite.FILE).write_bytes(b"not a database at all, but long enough" * 100)
    before = contents(tmp_path)
    with pytest.raises(NotACatalogError, match="not a SQLite file"):
        open_catalog(tmp_path)
    assert contents(tmp_path) == before


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    open_catalog(tmp_path / "a" / "b").close()
    open_catalog(f"sqlite://{tmp_path}/a/b", create=False).close()
    open_catalog(f"file://localhost{tmp_path}/a/b", create=False).close()


@pytest.mark.parametrize("url", ["mysql://x/y", "redis://", "s3://bucket", "http://host/p"])
def test_an_unknown_scheme_is_refused(url: str) -> None:
    with pytest.raises(UnknownSchemeError, match="unknown catalog scheme"):
        open_catalog(url)


def test_an_address_that_names_no_place_is_refused() -> None:
    with pytest.raises(CatalogError, match="empty"):
        open_catalog("")
    with pytest.raises(CatalogError, match="names a host"):
        open_catalog("sqlite://elsewhere/folder")


def test_a_catalog_whose_folder_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(CatalogUnavailableError, match="cannot be opened"):
        open_catalog(tmp_path / "f" / "a" / "b")


# --- PostgreSQL out of reach -----------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@127.0.0.1:1/db",
        "postgresql://me:hunter2@/db?host=/nowhere",
        "postgresql://me:hunter2@/db?host=/nowhere&password=hunter2",
        "postgresql://me:hunter2@127.0.0.1:bad/db",
        "postgresql://me:hunter2@[::1/db",
        "postgresql://me:hunter2@127.0.0.1:1/db?nonsense=hunter2",
    ],
)
def test_an_unreachable_server_is_named_without_its_password(url: str) -> None:
    with pytest.raises(CatalogUnavailableError) as caught:
        open_catalog(url)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str(caught.value.__cause__ or "")


def test_a_database_that_is_not_there_is_an_error_of_its_own(postgres_url: str) -> None:
    with pytest.raises(CatalogUnavailableError, match="no_such"):
        open_catalog(postgres_url.replace("/postgres?", "/no_such?"))


def test_opened_files_are_closed_again(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with closing(open_catalog(tmp_path / "warm")) as warm:
        warm.subscribe("c", lambda: None)
    before = open_files()
    for number in range(5):
        with closing(open_catalog(tmp_path / f"c{number}")) as catalog:
            catalog.subscribe("c", lambda: None)
            catalog.entries.put("b", "k", b"v")
            catalog.entries.get("b", "k")
    assert open_files() <= before


# --- several times in one process ------------------------------------------------------------


_OPEN_AND_CLOSE = """
import sys
from headrace.catalog import open_catalog
catalog = open_catalog(sys.argv[1])
print(len(catalog.entries.list("b")))
catalog.close()
"""


def entries_seen_by_another_process(folder: Path) -> int:
    script = [sys.executable, "-c", _OPEN_AND_CLOSE, str(folder)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


def test_a_folder_opened_twice_in_a_process_stays_whole_when_another_process_leaves(
    tmp_path: Path,
) -> None:
    """To look into the file must not take the locks away that its connections hold.

    Without them another process would believe that it is the last, and remove the write-ahead
    log that this one goes on writing to.
    """
    folder = tmp_path / "c"
    first = open_catalog(folder)
    first.entries.put("b", "one", b"1")
    second = open_catalog(folder)
    assert entries_seen_by_another_process(folder) == 1
    first.entries.put("b", "two", b"2")
    second.entries.put("b", "three", b"3")
    assert entries_seen_by_another_process(folder) == 3
    second.close()
    third = open_catalog(folder)
    assert entries_seen_by_another_process(folder) == 3
    first.entries.put("b", "four", b"4")
    assert entries_seen_by_another_process(folder) == 4
    assert [len(each.entries.list("b")) for each in (first, third)] == [4, 4]
    first.close()
    third.close()
