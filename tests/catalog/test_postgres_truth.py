"""What PostgreSQL stores: synced whatever its settings say, and refused where it cannot be."""

from __future__ import annotations

import asyncio
from contextlib import closing

import psycopg
import pytest

import headrace
from headrace.catalog import entries, open_catalog, postgres_pool
from headrace.catalog.postgres import PostgresCatalog
from headrace.catalog.postgres_connections import PgConnection, connect_patiently
from headrace.catalog.postgres_options import FSYNC_VARIABLE, PostgresOptions
from headrace.catalog.streams import StreamConfig
from headrace.errors import CatalogError, UnsafeServerError
from headrace.log.events import Event
from headrace.log.log import Log
from tests.postgres_server import postgres_machine


def test_a_server_that_does_not_sync_is_refused_unless_that_is_said(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FSYNC_VARIABLE)
    with pytest.raises(UnsafeServerError, match="fsync = off"):
        open_catalog(postgres_url)
    mark = "&" if "?" in postgres_url else "?"
    open_catalog(f"{postgres_url}{mark}headrace_fsync=off").close()


@pytest.mark.parametrize(
    "setting",
    ["headrace_schema=Bad-name", "headrace_connections=1", "headrace_fsync=maybe", "headrace_x=1"],
)
def test_settings_in_the_address_are_checked(postgres_url: str, setting: str) -> None:
    mark = "&" if "?" in postgres_url else "?"
    with pytest.raises(CatalogError, match="headrace_"):
        open_catalog(f"{postgres_url}{mark}{setting}")


def test_a_schema_can_be_chosen(postgres_url: str) -> None:
    mark = "&" if "?" in postgres_url else "?"
    with (
        closing(open_catalog(f"{postgres_url}{mark}headrace_schema=billing")) as one,
        closing(open_catalog(postgres_url)) as other,
    ):
        Log(one, None).create_stream("s", StreamConfig(subjects=("s.>",)))
        assert [stream.name for stream in Log(one, None).streams()] == ["s"]
        assert Log(other, None).streams() == ()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("DROP SCHEMA billing CASCADE")


def synced_commits(url: str) -> bool:
    with closing(open_catalog(url)) as catalog:
        assert isinstance(catalog, PostgresCatalog)
        row = catalog.write(lambda tx: tx.row("SELECT current_setting('synchronous_commit')"))
        assert row is not None
        return bool(row[0] != "off")


def test_a_database_that_does_not_wait_for_the_disk_is_overridden(synced_url: str) -> None:
    name = synced_url.rpartition("/")[2]
    with psycopg.connect(synced_url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} SET synchronous_commit TO off".encode())
    assert synced_commits(synced_url)


def test_what_was_published_and_acked_survives_kill_9_of_the_server_and_the_consumer() -> None:
    """The database itself says that commits need not wait for the disk."""

    async def before(url: str) -> None:
        async with headrace.open(url, housekeeping=False) as hr:
            await hr.create_stream("s", subjects=["s.>"], partitions=1)
            await hr.groups.create_static("s", "g", max_members=1, members=["m"])
            for number in range(20):
                await hr.publish(f"s.{number}", str(number).encode(), key="k")
            async with hr.join("s", "g", member="m") as member:
                deliveries = aiter(member)
                for _ in range(12):
                    await (await anext(deliveries)).ack()
                machine.kill()  # nothing is said goodbye to

    async def after(url: str) -> list[int]:
        async with headrace.open(url, housekeeping=False) as hr:
            stored = [int(v) async for b in hr.read("s") for v in b.column("value").to_pylist()]
            assert stored == list(range(20))
            async with hr.join("s", "g", member="m") as member:
                found: list[int] = []
                deliveries = aiter(member)
                while len(found) < 8:
                    delivery = await asyncio.wait_for(anext(deliveries), 30)
                    found.append(int(delivery.value))
                    await delivery.ack()
                return found

    with postgres_machine(wal_writer_delay="'10s'") as machine:
        machine.execute("ALTER DATABASE postgres SET synchronous_commit TO off")
        short = f"{machine.url}?headrace_reconnect_s=0.2"
        asyncio.run(before(short))
        machine.start()
        assert asyncio.run(after(machine.url)) == list(range(12, 20))


def test_an_append_is_one_statement_of_the_server(synced_url: str) -> None:
    with closing(open_catalog(synced_url)) as catalog:
        log = Log(catalog, None)
        log.create_stream("s", StreamConfig(subjects=("s.>",)), segments=4)
        events = [Event(subject=f"s.{n}", value=b"x", key=str(n)) for n in range(100)]
        log.append("s", events)
        before = catalog.statistics()["connections_opened"]
        placed = log.append(
            "s",
            [Event(subject=f"s.{n}", value=b"x", key=str(n)) for n in range(100)],
            producer="p",
            sequence=7,
        )
        again = log.append(
            "s",
            [Event(subject=f"s.{n}", value=b"x", key=str(n)) for n in range(100)],
            producer="p",
            sequence=7,
        )
        assert again == placed
        assert sum(place.count for place in placed) == 100
        assert catalog.statistics()["connections_opened"] == before
        text = catalog.read(
            lambda tx: tx.rows(
                "SELECT query FROM pg_stat_activity WHERE application_name LIKE 'headrace %'"
            )
        )
        assert len(text) == 1  # and one connection does all of it


def test_a_thread_that_was_paused_while_it_connected_takes_nothing_from_anybody(
    synced_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has seen more of the server's log by then, which is not shorter for that."""
    with closing(open_catalog(synced_url)) as catalog:
        assert isinstance(catalog, PostgresCatalog)
        connect = connect_patiently

        def paused(url: str, options: PostgresOptions) -> PgConnection:
            connection = connect(url, options)
            catalog.write(lambda tx: entries.store(tx, "notes", "written meanwhile", b"1"))
            row = catalog.read(lambda tx: tx.row("SELECT pg_current_wal_flush_lsn() - '0/0'"))
            assert row is not None
            assert row[0] > connection.server.flushed
            catalog._lineage.seen(connection, int(row[0]))
            return connection

        monkeypatch.setattr(postgres_pool, "connect_patiently", paused)
        connection = catalog._pool.connect()
        monkeypatch.undo()
        catalog._pool.close_one(connection)
        assert catalog._pool.turns == 0
        catalog._pool.close_one(catalog._pool.connect())
        assert catalog._pool.turns == 0
