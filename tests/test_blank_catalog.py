"""A PostgreSQL catalog that tests share: the next one finds nothing of the one before."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headrace.catalog import open_catalog
from headrace.catalog.schema import get_setting, put_setting
from headrace.catalog.streams import StreamConfig
from headrace.log.log import Log
from headrace.store import Store
from tests.blank_catalog import BlankCatalog


def rows_of(url: str) -> dict[str, list[Any]]:
    with psycopg.connect(url, autocommit=True) as admin:
        listed = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('headrace') "
        listed += "AND relkind IN ('r', 'S') ORDER BY relname"
        names = [name for (name,) in admin.execute(listed)]
        asked = {name: f"SELECT * FROM headrace.{name} ORDER BY 1" for name in names}
        return {n: admin.execute(q.encode()).fetchall() for n, q in asked.items()}


def test_rows_ids_and_settings_are_as_they_were_made(postgres_url: str, store: Store) -> None:
    blank = BlankCatalog(postgres_url)
    blank.prepare(wanted=True)
    made = rows_of(postgres_url)
    catalog = open_catalog(postgres_url)
    log = Log(catalog, store)
    log.create_stream("a", StreamConfig(subjects=("a.>",)), segments=2)
    log.append("a", pa.table({"subject": ["a.b"], "value": [b"1"]}))
    catalog.write(lambda tx: put_setting(tx, "mood", "good"))
    assert catalog.read(lambda tx: get_setting(tx, "mood")) == "good"
    catalog.close()
    assert rows_of(postgres_url) != made
    blank.clear()
    assert rows_of(postgres_url) == made


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE streams ADD COLUMN mood TEXT",
        "ALTER TABLE streams ALTER COLUMN name SET DEFAULT 'x'",
        "CREATE TABLE mood (name TEXT)",
        "CREATE INDEX mood ON streams (name, id)",
        "DROP TABLE writers",
        "ANALYZE meta",
        "CREATE FUNCTION mood() RETURNS INT LANGUAGE sql AS 'SELECT 1'",
        "GRANT SELECT ON meta TO PUBLIC",
    ],
)
def test_what_changed_more_than_rows_is_dropped(postgres_url: str, change: str) -> None:
    blank = BlankCatalog(postgres_url)
    blank.prepare(wanted=True)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("SET search_path TO headrace")
        admin.execute(change.encode())
    blank.clear()
    assert rows_of(postgres_url) == {}
    blank.prepare(wanted=True)
    assert rows_of(postgres_url)["meta"]


def test_who_wants_none_finds_none(postgres_url: str) -> None:
    blank = BlankCatalog(postgres_url)
    blank.prepare(wanted=True)
    blank.prepare(wanted=False)
    assert rows_of(postgres_url) == {}
