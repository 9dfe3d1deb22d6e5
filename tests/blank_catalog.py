"""A PostgreSQL catalog that is emptied after a test, for those that only want one to be there.

To make its tables and to drop them again takes the server and us 190 ms of CPU; to empty those that
a test wrote to takes a tenth.  A test that changed more than rows has its catalog dropped.
"""

from __future__ import annotations

import psycopg

from headrace.catalog import open_catalog

_OTHERS_GO = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

_SHAPE = """
WITH ours AS (SELECT * FROM pg_class WHERE relnamespace = to_regnamespace('headrace')),
parts AS (
    SELECT concat_ws(' ', oid, relname, relnatts, relchecks, relhastriggers, relrowsecurity,
                     relpersistence, relowner, relacl, reloptions) AS part FROM ours
    UNION ALL SELECT concat_ws(' ', a.attrelid, a.attnum, a.xmin)
        FROM pg_attribute a JOIN ours ON ours.oid = a.attrelid
    UNION ALL SELECT concat_ws(' ', i.indexrelid, i.indisvalid)
        FROM pg_index i JOIN ours ON ours.oid = i.indexrelid
    UNION ALL SELECT concat_ws(' ', t.oid, t.xmin)
        FROM pg_trigger t JOIN ours ON ours.oid = t.tgrelid
    UNION ALL SELECT concat_ws(' ', s.starelid, s.staattnum)
        FROM pg_statistic s JOIN ours ON ours.oid = s.starelid
    UNION ALL SELECT concat_ws(' ', oid, xmin)
        FROM pg_constraint WHERE connamespace = to_regnamespace('headrace')
    UNION ALL SELECT concat_ws(' ', oid, xmin)
        FROM pg_proc WHERE pronamespace = to_regnamespace('headrace')
    UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_namespace WHERE nspname = 'headrace'
)
SELECT md5(string_agg(part, ',' ORDER BY part)) FROM parts
"""
"""Tables, columns, indexes, triggers, functions, rights and statistics, but no rows."""


class BlankCatalog:
    """The one catalog of a test server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._shape: str | None = None
        """What the catalog has looked like since it was made; none: there is none."""

    def prepare(self, *, wanted: bool) -> None:
        """Before a test: have a catalog without streams, or else have none."""
        if wanted and self._shape is None:
            open_catalog(self._url).close()
            with psycopg.connect(self._url, autocommit=True) as admin:
                self._learn(admin)
        elif not wanted and self._shape is not None:
            with psycopg.connect(self._url, autocommit=True) as admin:
                self._drop(admin)

    def clear(self) -> None:
        """After a test: nothing of it is left."""
        with psycopg.connect(self._url, autocommit=True) as admin:
            admin.execute(_OTHERS_GO)
            if self._shape is not None and self._shape == _shape_of(admin):
                self._empty(admin)
            else:
                self._drop(admin)

    def _learn(self, admin: psycopg.Connection) -> None:
        admin.execute("SET search_path TO headrace")
        self._shape = _shape_of(admin)
        found = admin.execute(
            "SELECT relname, relkind::text FROM pg_class "
            "WHERE relnamespace = to_regnamespace('headrace')"
        ).fetchall()
        self._tables = [name for name, kind in found if kind == "r" and name != "meta"]
        self._sequences = [name for name, kind in found if kind == "S"]
        self._meta = admin.execute("SELECT key, value FROM meta ORDER BY key").fetchall()

    def _empty(self, admin: psycopg.Connection) -> None:
        admin.execute("SET search_path TO headrace")
        asked = " UNION ALL ".join(
            f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in self._tables
        )
        written = [name for (name,) in admin.execute(asked.encode())]
        if written:
            admin.execute(f"TRUNCATE {', '.join(written)}".encode())
        for name in self._sequences:
            admin.execute("SELECT setval(%s, 1, false)", (name,))
        if admin.execute("SELECT key, value FROM meta ORDER BY key").fetchall() != self._meta:
            admin.execute("DELETE FROM meta")
            for row in self._meta:
                admin.execute("INSERT INTO meta (key, value) VALUES (%s, %s)", row)

    def _drop(self, admin: psycopg.Connection) -> None:
        admin.execute("DROP SCHEMA IF EXISTS headrace CASCADE")
        self._shape = None


def _shape_of(admin: psycopg.Connection) -> str | None:
    row = admin.execute(_SHAPE).fetchone()
    assert row is not None
    found: str | None = row[0]
    return found
