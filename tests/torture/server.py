"""A PostgreSQL server of the torture's own, and what can be done to its connections."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.postgres_server import packaged_server
from tests.torture.ordeal import Server

READY_TIMEOUT_S = 60.0
AIM_TRIES_MAX = 40


@contextmanager
def running_postgres(folder: Path) -> Iterator[str]:
    """Start a server in a new folder; yields the address of its first database."""
    with packaged_server(folder) as server:
        yield server.get_uri()


def create_database(server_url: str, name: str) -> str:
    """Create a database; returns its address."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return urlsplit(server_url)._replace(path=f"/{name}").geturl()


class PostgresFaults(Server):
    """Connections of one database that are ended, interrupted and killed."""

    def __init__(self, server_url: str, database: str) -> None:
        self._url = server_url
        self._database = database

    def terminate(self, rng: random.Random) -> bool:
        """End a connection as ``pg_terminate_backend`` does, in a transaction if there is one."""
        with self._connect() as admin:
            pid = self._pick(admin, rng, "state <> 'idle'")
            if pid is not None:
                admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        return pid is not None

    def cancel(self, rng: random.Random) -> bool:
        """Interrupt a running statement, as a timeout would."""
        with self._connect() as admin:
            pid = self._pick(admin, rng, "state = 'active'")
            if pid is not None:
                admin.execute("SELECT pg_cancel_backend(%s)", (pid,))
        return pid is not None

    def crash(self, rng: random.Random) -> bool:
        """Kill a server process; the server ends every connection and recovers from its log."""
        with self._connect() as admin:
            pid = self._pick(admin, rng, "true")
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    def _pick(
        self, admin: psycopg.Connection[tuple[int]], rng: random.Random, condition: str
    ) -> int | None:
        for _ in range(AIM_TRIES_MAX):
            rows = admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s "
                f"AND application_name LIKE 'headrace %%' AND {condition} ORDER BY pid".encode(),
                (self._database,),
            ).fetchall()
            if rows:
                return int(rng.choice(rows)[0])
            time.sleep(0.002)
        return None

    def _connect(self) -> psycopg.Connection[tuple[int]]:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                return psycopg.connect(self._url, autocommit=True)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
