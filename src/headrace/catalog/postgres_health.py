"""How a PostgreSQL catalog is: its settings, how far away it is, and whether news arrives."""

from __future__ import annotations

import statistics
import threading
import time
import uuid

import msgspec

from headrace.catalog import schema
from headrace.catalog.lineage import RECORD, Turn, turns
from headrace.catalog.postgres import PostgresCatalog
from headrace.catalog.transaction import Tx

LOOKS = 5
NEWS_S = 5.0


class Health(msgspec.Struct, frozen=True):
    """What was found; times in milliseconds."""

    version: str
    fsync: bool
    synchronous_commit: str
    """As the database has it; commits that must last override ``off``."""
    standby: bool
    pooled: bool
    """Whether something stands between this program and the server."""
    round_trip_ms: float
    news_ms: float | None
    """From a commit until this program heard of it; None: it did not."""
    connections_left: int
    turns: tuple[Turn, ...]
    """When the catalog was found to have another history."""


def examine(catalog: PostgresCatalog) -> Health:
    """Look at the server; changes nothing, and tells itself some news."""
    server, pooled = catalog.server()

    def ask(tx: Tx) -> tuple[str, int, float, str | None]:
        row = tx.row(
            "SELECT current_setting('server_version'), "
            "current_setting('max_connections')::bigint "
            "- current_setting('superuser_reserved_connections')::bigint "
            "- (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')"
        )
        assert row is not None
        took = []
        for _ in range(LOOKS):
            begun_s = time.perf_counter()
            tx.row("SELECT 1")
            took.append(time.perf_counter() - begun_s)
        known = schema.get_setting(tx, RECORD)
        return str(row[0]), int(row[1]), statistics.median(took) * 1000, known

    version, left, trip_ms, known = catalog.read(ask)
    return Health(
        version=version,
        fsync=server.fsync,
        synchronous_commit=server.synchronous_commit,
        standby=server.standby,
        pooled=pooled,
        round_trip_ms=trip_ms,
        news_ms=None if server.standby else _news_ms(catalog),
        connections_left=left,
        turns=() if known is None else tuple(turns(known)),
    )


def _news_ms(catalog: PostgresCatalog) -> float | None:
    channel = f"doctor:{uuid.uuid4().hex}"
    heard = threading.Event()
    unsubscribe = catalog.subscribe(channel, heard.set)
    try:
        catalog.wait_for_listener()
        time.sleep(0.2)  # whoever begins to listen wakes everybody once
        heard.clear()
        begun_s = time.perf_counter()
        catalog.tell_as_another(channel)
        return (time.perf_counter() - begun_s) * 1000 if heard.wait(NEWS_S) else None
    finally:
        unsubscribe()
