"""``headrace catalog``: the tables that everything else stands in."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from headrace.catalog import mending, open_catalog, schema
from headrace.cli.done_shapes import CatalogVersion, Mended
from headrace.cli.options import NONE, Options
from headrace.cli.output import confirm

app = App(name="catalog", help="Make, migrate and mend the catalog.")


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


@app.command
def mend(
    records: str,
    key: str,
    name: str | None = None,
    /,
    *,
    yes: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Give a record whose key is damaged its name again; without a name, remove it.

    Lists leave such a record out, and print the command that mends it. What else belongs to it (its
    events, its progress) is kept under the right name, and is there again.

    * `headrace catalog mend static-consumer-groups 'or\\x01ders.billing' orders.billing`
    * `headrace catalog mend streams 'or\\x01ders' orders`

    Parameters
    ----------
    records
        What it is a record of, as the warning calls it.
    key
        The damaged key, as the warning shows it.
    name
        The name that it had.
    yes
        Remove it without asking.
    """
    if name is None:
        confirm(f"the record '{key}' of {records}", "what it holds", yes=yes)
    with options.look() as catalog:
        catalog.write(lambda tx: mending.mend(tx, records, key, name), locks=mending.locks(records))
    told = "is gone" if name is None else f"is called {name} again"
    options.show(Mended(records=records, key=key, name=name), f"'{key}' of {records} {told}")
