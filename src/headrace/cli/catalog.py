"""``headrace catalog``: the tables that everything else stands in."""

from __future__ import annotations

from cyclopts import App

from headrace.catalog import open_catalog, schema
from headrace.cli.done_shapes import CatalogVersion
from headrace.cli.options import NONE, Options

app = App(name="catalog", help="Make or migrate the catalog.")


@app.command
def migrate(*, options: Options = NONE) -> None:
    """Make the catalog, or bring it to this version; nothing is done where nothing is due.

    On PostgreSQL this needs the right to create tables, which opening does not need afterwards.

    * `headrace catalog migrate --catalog postgresql://owner@db/app`
    """
    catalog = open_catalog(options.place, migrate=True)
    try:
        where = catalog.where
    finally:
        catalog.close()
    told = f"{where} has version {schema.VERSION}"
    options.show(CatalogVersion(catalog=where, version=schema.VERSION), told)
