"""The catalog: all state that is not event data, and the events of small batches, in SQL."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.catalog.base import Catalog
from headrace.catalog.transaction import Query, Row, Tx
from headrace.errors import CatalogError, UnknownSchemeError

_LIBPQ = re.compile(
    r"postgres(ql)?:|(.*\s)?(host|hostaddr|port|dbname|user|password|service)\s*=", re.IGNORECASE
)
"""Texts that are meant for PostgreSQL, and would be taken for folders."""

__all__ = ["Catalog", "Query", "Row", "Tx", "open_catalog"]


def open_catalog(
    url: str | Path, *, create: bool = True, look: bool = False, migrate: bool = False
) -> Catalog:
    """Open the catalog at a folder (SQLite) or a ``postgresql://`` address.

    With ``create=False`` a catalog that does not exist yet is an error.  With ``look`` it is read
    as it is, also one of a neighbouring version, and nothing in it is changed.  With ``migrate``
    what it needs is made even if nothing seems to be due (SQLite looks every time).
    """
    text = str(url)
    if not text:
        raise CatalogError("the catalog's address is empty; give a folder or a postgresql:// URL")
    scheme = text.partition("://")[0] if "://" in text else ""
    if not scheme and _LIBPQ.match(text):  # not shown: it may hold a password
        raise CatalogError(
            "the catalog's address is no folder; write it as postgresql://user@host:port/database"
        )
    if scheme in ("postgresql", "postgres"):
        try:
            from headrace.catalog.postgres import PostgresCatalog
        except ImportError as error:
            raise CatalogError(
                "a PostgreSQL catalog needs psycopg: pip install 'headrace[postgres]'"
            ) from error
        return PostgresCatalog(text, create=create, look=look, migrate=migrate)
    if scheme in ("", "file", "sqlite"):
        from headrace.catalog.sqlite import SqliteCatalog

        if scheme:
            parts = urlsplit(text)
            if parts.netloc not in ("", "localhost"):
                raise CatalogError(
                    f"{text!r} names a host; write {scheme}:///folder for a folder on this machine"
                )
            text = unquote(parts.path)
        return SqliteCatalog(Path(text).expanduser(), create=create, look=look)
    raise UnknownSchemeError(
        f"unknown catalog scheme {scheme!r}: give a folder, sqlite:///folder or postgresql://…"
    )
