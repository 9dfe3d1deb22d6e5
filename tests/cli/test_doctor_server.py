"""``headrace doctor`` and ``headrace catalog migrate`` on PostgreSQL, good and bad."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import Any

import psycopg
import pytest

import headrace
from headrace.catalog import open_catalog
from headrace.catalog.postgres_options import FSYNC_VARIABLE
from headrace.catalog.streams import StreamConfig
from headrace.cli import run
from headrace.errors import CatalogForbiddenError, CatalogReadOnlyError
from headrace.groups.shared.runtime.options import SharedOptions
from headrace.log.events import Event
from headrace.log.log import Log
from tests.postgres_server import PostgresMachine


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    found = json.loads(capsys.readouterr().out)["checks"]
    return {check["name"]: check for check in found}


def test_a_good_server_is_found_good(synced_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    open_catalog(synced_url).close()
    assert run(["doctor", "--catalog", synced_url, "--json"]) == 0
    found = checks(capsys)
    assert {found[name]["state"] for name in ("server", "durability", "news", "connections")} == {
        "ok"
    }
    assert "fsync = on" in found["durability"]["found"]


def test_a_bad_server_is_found_bad(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["catalog", "migrate", "--catalog", postgres_url, "--json"]) == 0
    capsys.readouterr()
    assert run(["doctor", "--catalog", postgres_url, "--json"]) == 1
    assert checks(capsys)["durability"]["state"] == "failed"
    monkeypatch.delenv(FSYNC_VARIABLE)
    assert run(["doctor", "--catalog", postgres_url, "--json"]) == 1
    assert "fsync = off" in checks(capsys)["catalog"]["found"]


def test_a_role_without_the_right_to_create_can_use_what_was_migrated(
    synced_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = synced_url.rpartition("/")[2]
    with psycopg.connect(synced_url, autocommit=True) as admin:
        for role in ("writer", "viewer"):
            admin.execute(f"CREATE ROLE {name}_{role} LOGIN".encode())
        try:
            as_writer = synced_url.replace("postgres@", f"{name}_writer@")
            with pytest.raises(CatalogForbiddenError, match="right"):
                open_catalog(as_writer)
            assert run(["catalog", "migrate", "--catalog", synced_url]) == 0
            capsys.readouterr()
            admin.execute(
                f"GRANT USAGE ON SCHEMA headrace TO {name}_writer, {name}_viewer; "
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA headrace "
                f"TO {name}_writer; GRANT SELECT ON ALL TABLES IN SCHEMA headrace "
                f"TO {name}_viewer".encode()
            )
            with closing(open_catalog(as_writer)) as catalog:
                log = Log(catalog, None)
                log.create_stream("s", StreamConfig(subjects=("s.>",)))
                log.append("s", Event(subject="s.a", value=b"x"))
            as_viewer = synced_url.replace("postgres@", f"{name}_viewer@")
            with closing(open_catalog(as_viewer)) as catalog:
                log = Log(catalog, None)
                assert sum(batch.num_rows for batch in log.read("s")) == 1
                with pytest.raises(CatalogForbiddenError):
                    log.append("s", Event(subject="s.a", value=b"y"))
        finally:
            for role in ("writer", "viewer"):
                admin.execute(f"DROP OWNED BY {name}_{role}; DROP ROLE {name}_{role}".encode())


def test_a_hot_standby_can_be_read_and_refuses_writes(synced_postgres: PostgresMachine) -> None:
    with closing(open_catalog(synced_postgres.url)) as catalog:
        log = Log(catalog, None)
        log.create_stream("s", StreamConfig(subjects=("s.>",)))
        log.append("s", Event(subject="s.a", value=b"x"))
    standby = synced_postgres.standby()
    try:
        with closing(open_catalog(standby.url)) as catalog:
            log = Log(catalog, None)
            assert sum(batch.num_rows for batch in log.read("s")) == 1
            with pytest.raises(CatalogReadOnlyError, match="primary"):
                log.append("s", Event(subject="s.a", value=b"y"))
    finally:
        standby.remove()
        synced_postgres.execute("DROP SCHEMA headrace CASCADE")


def test_on_a_shared_catalog_nobody_registers_loopback_by_itself(
    synced_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_catalog(synced_url)) as catalog:
        monkeypatch.setattr(catalog, "own_address", lambda: "10.1.2.3")
        assert SharedOptions().resolved(catalog) == ("10.1.2.3", "10.1.2.3")
        assert SharedOptions(host="0.0.0.0").resolved(catalog) == ("0.0.0.0", "10.1.2.3")
        given = SharedOptions(host="0.0.0.0", advertise="worker.example")
        assert given.resolved(catalog) == ("0.0.0.0", "worker.example")
        assert SharedOptions(host="127.0.0.1").resolved(catalog) == ("127.0.0.1", "127.0.0.1")
        monkeypatch.setenv("HEADRACE_LISTEN", "10.9.9.9")
        assert SharedOptions().resolved(catalog) == ("10.9.9.9", "10.9.9.9")


def test_the_program_of_the_readme_can_be_started_twice(synced_url: str) -> None:
    async def work() -> None:
        async with headrace.open(synced_url, housekeeping=False) as hr:
            await hr.create_stream("s", subjects=["s.>"])
            async with hr.session("worker-1") as session:
                await session.subscribe("$share/audit/s.>")
                await session.subscribe("$share/audit/s.>")

    asyncio.run(work())
    asyncio.run(work())
