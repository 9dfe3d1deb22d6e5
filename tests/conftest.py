"""Real parts for every test: SQLite folders, a PostgreSQL server, an S3-speaking server."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from headrace import compiled
from headrace.catalog import Catalog, open_catalog
from headrace.catalog.postgres_options import FSYNC_VARIABLE
from headrace.host import loads
from headrace.log.log import Log
from headrace.store import Store, open_store
from tests import java_classes, rewriting, unzipped
from tests.blank_catalog import BlankCatalog
from tests.lanes import Lanes, begin_with_the_longest
from tests.leftovers import RunFolder
from tests.postgres_server import PostgresMachine, packaged_server, postgres_machine
from tests.support import close_what_spark_kept

# Property tests: a slow machine is not a failure.
settings.register_profile("slow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slow")

_buckets = itertools.count(1)
os.environ.setdefault(FSYNC_VARIABLE, "off")
java_classes.use()


_run_folder = pytest.StashKey[RunFolder]()
_archiving = pytest.StashKey[subprocess.Popen[bytes] | None]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_run_folder] = RunFolder()
        config.stash[_archiving] = None
        unzipped.make()
        if config.args_source is config.ArgsSource.TESTPATHS and config.getoption("numprocesses"):
            config.stash[_archiving] = java_classes.make()
            rewriting.make()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Fail a run after which temporary folders of ours are left."""
    yield
    if _run_folder not in session.config.stash:
        return  # one of several processes; the one that started them looks
    if (archiving := session.config.stash[_archiving]) is not None:
        archiving.wait(120)
    folder = session.config.stash[_run_folder]
    said = session.config.get_terminal_writer()
    if left := folder.close(failed=session.exitstatus != 0):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        said.line(f"\n{len(left)} temporary folders are left: {', '.join(left[:20])}", red=True)
    if folder.path.exists():
        said.line(f"\ntemporary files of this run: {folder.path}")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    return Lanes(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # the order of several processes; a lone run keeps its own
        begin_with_the_longest(items)


def pytest_collection_finish() -> None:
    """What was made until now stays to the end: collecting garbage need not walk it every time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A PostgreSQL server of this test run's own."""
    with packaged_server() as server:
        with psycopg.connect(server.get_uri(), autocommit=True) as admin:
            # No test cuts the power, and catalogs are made and dropped by the hundred.
            # Those that do have a server that syncs, `synced_postgres`.
            admin.execute("ALTER SYSTEM SET fsync = off")
            admin.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(scope="module", params=["compiled", "not compiled"])
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the compiled parts, and without them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "not compiled":
            patch.setattr(compiled, "kernels", None)
        yield


@pytest.fixture(params=["on the event loop", "on threads"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With every load counted as swift (true), or as too slow for the event loop."""
    here: bool = request.param == "on the event loop"
    monkeypatch.setattr(loads, "HELD_UP_S", 60.0 if here else -1.0)
    return here


@pytest.fixture(scope="session")
def blank_catalog(postgres_server: Any) -> BlankCatalog:
    return BlankCatalog(postgres_server.get_uri())


@pytest.fixture
def postgres_url(
    request: pytest.FixtureRequest, postgres_server: Any, blank_catalog: BlankCatalog
) -> Iterator[str]:
    """A database without a catalog; whatever the test left in it is removed.

    Where the fixture ``catalog`` would make one before the test begins, an empty one is there.
    """
    blank_catalog.prepare(wanted="catalog" in request.fixturenames)
    yield postgres_server.get_uri()
    close_what_spark_kept()
    blank_catalog.clear()


@pytest.fixture(params=["sqlite", "postgres"])
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a catalog that does not exist yet, on each database in turn."""
    if request.param == "sqlite":
        return str(tmp_path / "catalog")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def reopen(catalog_url: str) -> Iterator[Callable[[], Catalog]]:
    """Opens the test's catalog once more, as another process would; closed after the test."""
    opened: list[Catalog] = []

    def again() -> Catalog:
        opened.append(open_catalog(catalog_url))
        return opened[-1]

    yield again
    for catalog in opened:
        catalog.close()


@pytest.fixture
def catalog(reopen: Callable[[], Catalog]) -> Catalog:
    return reopen()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.fixture
def log(catalog: Catalog, store: Store) -> Log:
    return Log(catalog, store)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A server on this machine that speaks S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_store(s3_endpoint: str) -> Store:
    """A store below a prefix of a fresh bucket."""
    bucket = f"bucket-{next(_buckets)}"
    made = urllib.request.Request(f"{s3_endpoint}/{bucket}", method="PUT")
    with urllib.request.urlopen(made, timeout=10) as answer:
        assert answer.status == 200
    return open_store(f"s3://{bucket}/below", s3_options(s3_endpoint))


def s3_options(endpoint: str) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "access_key_id": "someone",
        "secret_access_key": "hush",
        "region": "us-east-1",
        "allow_http": "true",
    }


@pytest.fixture(scope="session")
def synced_postgres() -> Iterator[PostgresMachine]:
    """A PostgreSQL server that syncs to disk and listens on TCP."""
    with postgres_machine() as machine:
        yield machine


@pytest.fixture
def synced_url(synced_postgres: PostgresMachine) -> Iterator[str]:
    """A database of its own on the server that syncs."""
    name = f"test{next(_buckets)}"
    synced_postgres.execute(f"CREATE DATABASE {name}")
    yield f"{synced_postgres.url.removesuffix('postgres')}{name}"
    synced_postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
