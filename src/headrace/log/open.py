"""Opening a log: a catalog, and the store that belongs to it.

A catalog remembers which store its files are in, so that nobody opens it with another by
accident.  A folder catalog has one beside it unless told otherwise; a PostgreSQL catalog without
a store keeps every batch inside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from headrace.catalog import Catalog, Tx, open_catalog, private, schema
from headrace.catalog.sqlite import SqliteCatalog
from headrace.errors import CatalogError, NotACatalogError, StoreError
from headrace.log import reserve
from headrace.log.log import Log
from headrace.store import Store, check_store_url, open_store

SETTING = "store"
BESIDE = "beside"
_SECRET = re.compile(r"secret|password|token|sas|_key$|sig$")
"""The recorded name of the store in the catalog's own folder, wherever that is moved."""


def open_log(
    url: str | Path,
    store: str | Path | None = None,
    *,
    store_options: Mapping[str, str] | None = None,
    create: bool = True,
) -> Log:
    """Open the catalog at ``url`` and its store."""
    if store is not None:
        check_store_url(store)
    try:
        catalog = open_catalog(url, create=create)
    except CatalogError:
        if not reserve.spend_to_open(url):
            raise
        catalog = open_catalog(url, create=create)
    try:
        log = Log(catalog, _open_store(catalog, store, store_options))
        reserve.fill(catalog)
        return log
    except BaseException:
        catalog.close()
        raise


def look_log(url: str | Path, store: str | Path | None = None) -> Log:
    """Open another region's catalog and store to read them; nothing there is changed."""
    catalog = open_catalog(url, create=False, look=True)
    try:
        if catalog.read(lambda tx: schema.get_setting(tx, "catalog_id")) is None:
            raise NotACatalogError(f"{catalog.where} was never used")
        folder = catalog.folder / "store" if isinstance(catalog, SqliteCatalog) else None
        recorded = catalog.read(lambda tx: schema.get_setting(tx, SETTING))
        if store is not None:
            return Log(catalog, open_store(store))
        if recorded == BESIDE and folder is not None:
            return Log(catalog, open_store(folder) if folder.is_dir() else None)
        return Log(catalog, None if recorded in (None, BESIDE) else open_store(recorded))
    except BaseException:
        catalog.close()
        raise


def _open_store(
    catalog: Catalog, store: str | Path | None, options: Mapping[str, str] | None
) -> Store | None:
    folder = catalog.folder / "store" if isinstance(catalog, SqliteCatalog) else None
    recorded = catalog.read(lambda tx: schema.get_setting(tx, SETTING))
    wanted = _name(store, folder)
    if recorded is None:
        recorded = wanted or (BESIDE if folder is not None else None)
        if recorded is None:
            return None
        opened = _open(recorded, folder, options)
        _record(catalog, recorded)
        return opened
    if wanted is not None and wanted != recorded:
        shown = folder if recorded == BESIDE else recorded
        raise StoreError(
            f"{catalog.where} keeps its files in {shown}, not in {store}; "
            "open it without a store, or with that one"
        )
    return _open(recorded, folder, options)


def _open(recorded: str, folder: Path | None, options: Mapping[str, str] | None) -> Store:
    if recorded != BESIDE or folder is None:
        return open_store(recorded, options)
    private.make_folder(folder, inside=True)
    return open_store(folder, options)


def _name(store: str | Path | None, folder: Path | None) -> str | None:
    if store is None:
        return None
    text = str(store)
    if "://" in text and urlsplit(text).scheme != "file":
        _refuse_secrets(text)
        return text.rstrip("/") if urlsplit(text).netloc else text
    path = Path(urlsplit(text).path if "://" in text else text).expanduser().resolve()
    return BESIDE if folder is not None and path == folder.resolve() else str(path)


def _refuse_secrets(url: str) -> None:
    """What is in the address of a store is recorded, and shown to everybody who opens the log."""
    parts = urlsplit(url)
    names = [key.lower() for key, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if ":" in parts.netloc.rpartition("@")[0] or any(_SECRET.search(name) for name in names):
        raise StoreError(
            f"the address of the {parts.scheme} store holds a secret, which would be recorded; "
            "give it by the environment, or as store_options (--store-option name=value)"
        )


def _record(catalog: Catalog, name: str) -> None:
    def record(tx: Tx) -> None:
        if schema.get_setting(tx, SETTING) is None:
            schema.put_setting(tx, SETTING, name)

    catalog.write(record, locks=("settings",))
