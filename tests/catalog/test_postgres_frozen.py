"""Programs that are frozen or cut off in the middle: they hold up nobody for long."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import closing

import psycopg
import pytest

from headrace.catalog import Tx, open_catalog
from headrace.catalog.streams import StreamConfig
from headrace.errors import CatalogUnavailableError
from headrace.log.events import Event
from headrace.log.log import Log
from tests.machines import allowed, network, on, server_on
from tests.postgres_server import PostgresMachine, wire_to
from tests.support import process, wait_until

LIMIT_S = 5.0
IDLE = "headrace_idle_timeout_s=1"
"""Shorter than by default, so that the tests are."""


def values(log: Log) -> list[bytes]:
    return [value for batch in log.read("s") for value in batch.column("value").to_pylist()]


STATEMENTS = [("append", 1), *(("transaction", n) for n in range(1, 5))]


@pytest.mark.parametrize(("what", "at"), STATEMENTS)
def test_a_program_frozen_at_any_statement_holds_up_nobody(
    synced_url: str, what: str, at: int
) -> None:
    with closing(open_catalog(synced_url)) as catalog:
        log = Log(catalog, None)
        log.create_stream("s", StreamConfig(subjects=("s.>",)))
        with process("tests.catalog.freezing", f"{synced_url}?{IDLE}", str(at), what) as frozen:
            assert frozen.line() == "frozen"
            begun_s = time.monotonic()
            log.append("s", Event(subject="s.a", value=b"after"))
            assert time.monotonic() - begun_s < LIMIT_S
        assert values(log)[-1] == b"after"


@pytest.mark.skipif(not allowed(), reason="this system does not allow network namespaces")
def test_a_machine_that_is_cut_off_at_any_statement_holds_up_nobody() -> None:
    with (
        network() as net,
        server_on(net) as (server, url),
        closing(open_catalog(server.url)) as catalog,
    ):
        log = Log(catalog, None)
        log.create_stream("s", StreamConfig(subjects=("s.>",)))
        for what, at in STATEMENTS:
            machine = net.machine()
            settings = f"{url}?{IDLE}", str(at), what, "waits"
            command = on(machine, sys.executable, "-m", "tests.catalog.freezing", *settings)
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
                assert program.stdout is not None
                assert program.stdout.readline() == "frozen\n"
                net.cut(machine)
                begun_s = time.monotonic()
                log.append("s", Event(subject="s.a", value=b"after"))
                assert time.monotonic() - begun_s < LIMIT_S, (what, at)
                program.kill()
            assert values(log)[-1] == b"after"


def test_whoever_is_kept_waiting_is_told_for_what_and_by_whom(synced_url: str) -> None:
    with (
        closing(open_catalog(synced_url)) as holder,
        closing(open_catalog(f"{synced_url}?headrace_lock_timeout_s=0.3")) as waiting,
    ):
        held, release = threading.Event(), threading.Event()

        def hold(tx: Tx) -> None:
            tx.row("SELECT 1")
            held.set()
            while not release.wait(0.2):
                tx.row("SELECT 1")

        thread = threading.Thread(target=lambda: holder.write(hold, locks=("stream:1",)))
        thread.start()
        assert held.wait(10)
        with pytest.raises(CatalogUnavailableError, match=r"stream:1 is held by 'headrace .*:\d+'"):
            waiting.write(lambda tx: tx.row("SELECT 1"), locks=("stream:1",))
        release.set()
        thread.join()
        assert waiting.write(lambda tx: tx.row("SELECT 1"), locks=("stream:1",)) == (1,)


def test_an_answer_that_does_not_come_is_an_error_after_the_limit(
    synced_postgres: PostgresMachine, synced_url: str
) -> None:
    name = synced_url.rpartition("/")[2]
    with wire_to(synced_postgres) as (wire, url):
        far = f"{url.removesuffix('postgres')}{name}"
        settings = "headrace_call_timeout_s=0.5&headrace_reconnect_s=0.5&headrace_dead_after_s=1"
        with closing(open_catalog(f"{far}?{settings}&connect_timeout=1")) as catalog:
            log = Log(catalog, None)
            log.create_stream("s", StreamConfig(subjects=("s.>",)))
            wire.cut = True
            begun_s = time.monotonic()
            with pytest.raises(CatalogUnavailableError):
                log.append("s", Event(subject="s.a", value=b"cut off"))
            assert time.monotonic() - begun_s < 20
            wire.cut = False
            log.append("s", Event(subject="s.a", value=b"healed"))
            assert values(log)[-1] == b"healed"


def listening_port(admin: psycopg.Connection[tuple[int]]) -> int | None:
    row = admin.execute(
        "SELECT client_port FROM pg_stat_activity WHERE application_name LIKE 'headrace %' "
        "AND datname = current_database() AND (query LIKE 'LISTEN%' OR query LIKE '%sum(head)%')"
    ).fetchone()
    return None if row is None else row[0]


def test_a_listener_whose_packets_are_dropped_is_noticed_and_nothing_is_late(
    synced_postgres: PostgresMachine, synced_url: str
) -> None:
    name = synced_url.rpartition("/")[2]
    with (
        wire_to(synced_postgres) as (wire, url),
        closing(open_catalog(f"{url.removesuffix('postgres')}{name}")) as catalog,
        closing(open_catalog(synced_url)) as other,
        psycopg.connect(synced_url, autocommit=True) as admin,
    ):
        heard = threading.Event()
        catalog.subscribe("c", heard.set)
        wait_until(lambda: listening_port(admin), "a listener")
        port = listening_port(admin)
        assert port is not None
        wire.swallow(port)
        latest_s = 0.0
        for _ in range(3):
            heard.clear()
            begun_s = time.monotonic()
            other.write(lambda tx: tx.notify("c"))
            assert heard.wait(10)
            latest_s = max(latest_s, time.monotonic() - begun_s)
        assert latest_s < 4.0
        wait_until(lambda: catalog.statistics()["listener_reconnects"] > 0, "it to be noticed")
        heard.clear()
        begun_s = time.monotonic()
        wait_until(lambda: listening_port(admin) not in (None, port), "another listener")


def test_a_listener_whose_catalog_was_dropped_does_not_ask_for_it_all_the_time(
    synced_url: str,
) -> None:
    with (
        closing(open_catalog(synced_url)) as catalog,
        psycopg.connect(synced_url, autocommit=True) as admin,
    ):
        catalog.subscribe("c", lambda: None)
        wait_until(lambda: listening_port(admin), "a listener")
        admin.execute("DROP SCHEMA headrace CASCADE")

        def tried() -> float:
            return catalog.statistics()["listener_reconnects"]

        wait_until(tried, "it to be noticed")
        before, begun_s = tried(), time.monotonic()
        wait_until(lambda: tried() > before, "another try")
        time.sleep(1.0)
        assert tried() - before <= 2 + time.monotonic() - begun_s


def test_news_that_a_dying_publisher_did_not_send_is_found(synced_url: str) -> None:
    with (
        closing(open_catalog(synced_url)) as catalog,
        psycopg.connect(synced_url, autocommit=True) as admin,
    ):
        log = Log(catalog, None)
        stream = log.create_stream("s", StreamConfig(subjects=("s.>",)))
        heard = threading.Event()
        catalog.subscribe(f"stream:{stream.id}", heard.set)
        wait_until(lambda: listening_port(admin), "a listener")
        listened_s = time.monotonic()  # the next look is the one that the one after it tells from
        wait_until(lambda: catalog._listener.heard_s > listened_s, "a look")  # type: ignore[attr-defined]
        heard.clear()
        admin.execute("UPDATE headrace.segments SET head = head + 1")  # and no NOTIFY
        assert heard.wait(5)
