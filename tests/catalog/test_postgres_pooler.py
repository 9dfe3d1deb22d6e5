"""PgBouncer in front of PostgreSQL: session mode works, transaction mode is refused at opening."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

import headrace.sync
from headrace.catalog import postgres_connections
from headrace.errors import UnsafeServerError
from tests.postgres_server import free_port
from tests.support import wait_until

pytestmark = pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="PgBouncer is not installed"
)

CONFIG = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = trust
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = {clients}
unix_socket_dir =
logfile = {folder}/log
"""


@contextmanager
def pooler(server: str, mode: str, size: int, clients: int = 1000) -> Iterator[str]:
    """The address of a pooler in a mode, with so many connections to the server at most, which
    takes so many programs."""
    folder = Path(tempfile.mkdtemp(prefix="pooler-"))
    port, behind = free_port(), urlsplit(server)
    config, users = folder / "pgbouncer.ini", folder / "users"
    config.write_text(
        CONFIG.format(
            server=behind.port, port=port, mode=mode, size=size, clients=clients, folder=folder
        )
    )
    users.write_text('"postgres" ""\n')
    who = ["-u", "nobody"] if os.geteuid() == 0 else []
    if who:
        for path in (folder, config, users):
            shutil.chown(path, "nobody")
    run = subprocess.Popen(
        ["pgbouncer", *who, str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"postgresql://postgres@127.0.0.1:{port}{behind.path}"
    try:
        wait_until(lambda: _answers(url), "the pooler")
        yield url
    finally:
        run.terminate()
        run.wait()
        postgres_connections._keeps_sessions.discard(url)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture
def server(synced_url: str) -> str:
    with headrace.sync.open(synced_url) as hr:
        hr.create_stream("orders", ["orders.>"])
    return synced_url


@contextmanager
def others_at_work(url: str, count: int) -> Iterator[None]:
    """Programs that have nothing to do with Headrace, and share the pooler."""
    over = threading.Event()

    def work() -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            while not over.is_set():
                connection.execute("SELECT pg_sleep(0.002)")

    with ThreadPoolExecutor(count + 1) as threads:
        running = [threads.submit(work) for _ in range(count)]
        try:
            yield
        finally:
            over.set()
    for each in running:
        each.result()


@pytest.mark.parametrize("others", [0, 6])
def test_transaction_mode_is_refused_and_others_do_not_get_our_settings(
    server: str, others: int
) -> None:
    with pooler(server, "transaction", 10) as url, others_at_work(url, others):
        for _ in range(5):
            with (
                pytest.raises(UnsafeServerError, match="pool_mode = session"),
                headrace.sync.open(url),
            ):
                raise AssertionError("it was opened")
        with ExitStack() as stack:  # every connection of the pooler to the server
            for _ in range(10 - others):
                one = stack.enter_context(psycopg.connect(url))
                assert one.execute("SHOW search_path").fetchone() == ('"$user", public',)


@pytest.mark.parametrize("clients", [1000, 4])
def test_more_publishing_programs_than_the_pooler_has_connections_take_turns(
    server: str, clients: int
) -> None:
    """Opening holds one connection, and does not wait for a second that others hold; a pooler that
    takes no more programs is waited for."""

    def publish(number: int) -> None:
        with headrace.sync.open(url) as hr:
            hr.publish("orders.new", b"%d" % number)

    with pooler(server, "session", 3, clients) as url:
        with ThreadPoolExecutor(9) as threads:
            list(threads.map(publish, range(9)))
        with headrace.sync.open(url) as hr:
            rows = [row for batch in hr.read("orders") for row in batch.to_pylist()]
        assert sorted(row["value"] for row in rows) == [b"%d" % number for number in range(9)]
