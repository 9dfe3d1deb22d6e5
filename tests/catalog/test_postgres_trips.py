"""Statements that go together: one round trip for many, and nothing else is different."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import headrace
from headrace.catalog import Tx, entries, open_catalog, postgres_pipeline
from headrace.catalog.postgres import PostgresCatalog
from headrace.catalog.postgres_calls import Exchange, Request, functions
from headrace.catalog.postgres_connections import PgConnection
from headrace.catalog.postgres_tx import tables_changed, tables_read
from headrace.catalog.streams import StreamConfig
from headrace.errors import CatalogError, CatalogTooNewError, DamagedBatchError, HeadraceError
from headrace.log.events import Event
from headrace.log.open import open_log
from headrace.log.query import Query
from tests.postgres_server import PostgresMachine, wire_to

LISTENER = "headrace-listen"


class Messages:
    """How often the server was asked something, but for the connection that hears news."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for where, name in (
            (PgConnection, "execute"),
            (postgres_pipeline, "run"),
            (Exchange, "send"),
        ):
            monkeypatch.setattr(where, name, self._counted(getattr(where, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread().name != LISTENER:
                self.count += 1
            return real(*args, **kwargs)

        return call

    def take(self) -> int:
        found, self.count = self.count, 0
        return found


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Messages:
    return Messages(monkeypatch)


@pytest.fixture
def catalog(postgres_url: str) -> Iterator[PostgresCatalog]:
    with closing(open_catalog(postgres_url)) as opened:
        assert isinstance(opened, PostgresCatalog)
        yield opened


def on_one_connection(url: str) -> str:
    """An address for a program that never makes a second connection, which asks the server, too."""
    return f"{url}{'&' if '?' in url else '?'}headrace_connections=2"


def put(key: str) -> Callable[[Tx], None]:
    return lambda tx: entries.store(tx, "b", key, key.encode())


def test_a_transaction_begins_with_its_first_statement_and_ends_with_the_last_ones(
    catalog: PostgresCatalog, messages: Messages
) -> None:
    catalog.write(put("warm"))
    messages.take()
    catalog.write(put("a"))
    assert messages.take() == 2  # it begins, and what waited goes with the commit

    def read_and_write(tx: Tx) -> int:
        tx.foresee(*(entries.asking("b", key) for key in ("a", "warm", "nothing")))
        found = [entries.get(tx, "b", key) for key in ("a", "warm", "nothing")]
        put("c")(tx)
        return sum(each is not None for each in found)

    assert catalog.write(read_and_write) == 2
    assert messages.take() == 2
    assert [entry.key for entry in catalog.entries.list("b")] == ["a", "c", "warm"]


def test_what_waits_is_done_before_anything_is_asked(catalog: PostgresCatalog) -> None:
    def run(tx: Tx) -> list[bytes | None]:
        found = []
        for value in (b"1", b"2"):
            entries.store(tx, "b", "k", value)
            entry = entries.get(tx, "b", "k")
            found.append(None if entry is None else entry.value)
        return found

    assert catalog.write(run) == [b"1", b"2"]


def test_what_was_foreseen_is_asked_again_once_its_table_has_changed(
    catalog: PostgresCatalog, messages: Messages
) -> None:
    catalog.write(put("k"))

    def run(tx: Tx) -> list[int]:
        wanted = [entries.asking("b", key) for key in ("k", "other")]
        tx.foresee(*wanted)
        messages.take()
        seen = [len(tx.rows(*wanted[0])), len(tx.rows(*wanted[1]))]
        assert messages.take() == 0
        tx.later("UPDATE leases SET told = told WHERE name = ?", ("nobody",))
        assert tx.row(*wanted[0]) is not None
        assert messages.take() == 0
        tx.later("DELETE FROM entries WHERE bucket = ? AND key = ?", ("b", "k"))
        seen.append(len(tx.rows(*wanted[0])))
        assert messages.take() == 1
        return seen

    assert catalog.write(run) == [1, 0, 0]


@pytest.mark.parametrize(
    ("sql", "read", "changed"),
    [
        ("SELECT a FROM x JOIN y ON x.i = y.i", {"x", "y"}, set()),
        ("SELECT a FROM x WHERE i = (SELECT i FROM z) FOR UPDATE", {"x", "z"}, set()),
        ("INSERT INTO x (a) SELECT a FROM y", {"y"}, {"x", "y"}),
        ("UPDATE x SET a = 1", set(), {"x"}),
        ("DELETE FROM x WHERE a = 1", {"x"}, {"x"}),
    ],
)
def test_the_tables_of_a_statement_are_known(sql: str, read: set[str], changed: set[str]) -> None:
    assert tables_read(sql) >= read
    assert tables_changed(sql) == changed


def test_what_fails_late_is_its_own_operations_failure_and_nobody_elses(
    catalog: PostgresCatalog,
) -> None:
    """Three writes share a commit; the statement of one fails only when it is sent."""
    outcomes: dict[str, BaseException | None] = {}
    over = threading.Semaphore(0)

    def tell(name: str) -> Callable[[object, BaseException | None], None]:
        def done(_: object, error: BaseException | None) -> None:
            outcomes[name] = error
            over.release()

        return done

    def fails(tx: Tx) -> None:
        put("torn")(tx)
        tx.later("INSERT INTO meta (key, value) VALUES (?, ?)", ("schema_version", "twice"))

    gate = threading.Event()
    catalog.submit(lambda _: gate.wait(10), done=tell("first"))
    for name, fn in (("a", put("a")), ("fails", fails), ("b", put("b"))):
        catalog.submit(fn, done=tell(name))
    gate.set()
    for _ in range(4):
        assert over.acquire(timeout=30)
    assert isinstance(outcomes.pop("fails"), CatalogError)
    assert set(outcomes.values()) == {None}
    assert [entry.key for entry in catalog.entries.list("b")] == ["a", "b"]
    catalog.write(put("after"))


def test_what_fails_in_the_commit_of_several_is_its_own_failure_too(
    catalog: PostgresCatalog,
) -> None:
    """The last of several writes fails with the commit: nobody knows whose statement it was."""
    outcomes: dict[str, BaseException | None] = {}
    over = threading.Semaphore(0)

    def tell(name: str) -> Callable[[object, BaseException | None], None]:
        def done(_: object, error: BaseException | None) -> None:
            outcomes[name] = error
            over.release()

        return done

    def gives_up(tx: Tx) -> None:
        put("given up")(tx)
        raise LookupError("nothing of this is wanted")

    def fails(tx: Tx) -> None:
        tx.later("INSERT INTO meta (key, value) VALUES (?, ?)", ("schema_version", "twice"))

    gate = threading.Event()
    catalog.submit(lambda _: gate.wait(10), done=tell("first"))
    for name, fn in (("a", put("a")), ("up", gives_up), ("b", put("b")), ("fails", fails)):
        catalog.submit(fn, done=tell(name))
    gate.set()
    for _ in range(5):
        assert over.acquire(timeout=30)
    assert isinstance(outcomes.pop("fails"), CatalogError)
    assert isinstance(outcomes.pop("up"), LookupError)
    assert set(outcomes.values()) == {None}
    assert [entry.key for entry in catalog.entries.list("b")] == ["a", "b"]


def test_writes_that_gather_cost_no_trip_each(catalog: PostgresCatalog, messages: Messages) -> None:
    catalog.write(put("warm"))
    over = threading.Semaphore(0)
    gate, reached = threading.Event(), threading.Event()

    def wait(_: Tx) -> None:
        reached.set()
        gate.wait(10)

    catalog.submit(wait, done=lambda *_: over.release())
    assert reached.wait(10)
    for number in range(10):
        catalog.submit(put(str(number)), done=lambda *_: over.release())
    messages.take()
    gate.set()
    for _ in range(11):
        assert over.acquire(timeout=30)
    assert messages.take() <= 4  # two transactions, which begin and end
    assert len(catalog.entries.list("b")) == 11


def test_who_waits_for_a_connection_to_a_server_far_away_has_one_made(
    synced_postgres: PostgresMachine, synced_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_catalog(synced_url).close()
    with wire_to(synced_postgres) as (wire, url):
        wire.delay_s = 0.15
        far = f"{url.removesuffix('postgres')}{synced_url.rpartition('/')[2]}"
        with closing(open_catalog(far)) as catalog:
            assert isinstance(catalog, PostgresCatalog)
            connect_s = catalog._pool._connect_s
            assert connect_s >= 0.6
            reading, over = threading.Event(), threading.Event()

            def hold(tx: Tx) -> None:
                reading.set()
                over.wait(20)

            holder = threading.Thread(target=catalog.read, args=(hold,))
            holder.start()
            assert reading.wait(10)
            connect, made_s = catalog._pool.connect, []

            def noted() -> PgConnection:
                made_s.append(time.monotonic())
                return connect()

            monkeypatch.setattr(catalog._pool, "connect", noted)
            begun_s = time.monotonic()
            catalog.read(lambda tx: tx.rows("SELECT 1"))
            over.set()
            holder.join()
            # It did not wait first, and then make one; nor did it make another one beside it.
            assert len(made_s) == 1
            assert made_s[0] - begun_s < connect_s / 2


def test_a_snapshot_is_one_message_and_leaves_the_connection_usable(
    catalog: PostgresCatalog, messages: Messages
) -> None:
    messages.take()
    wanted = [entries.asking("b", key) for key in ("x", "y")]
    for _ in range(3):
        assert catalog.read(lambda tx: tx.together(*wanted), snapshot=True) == [[], []]
        assert messages.take() == 1
    assert catalog.read(lambda tx: 7, snapshot=True) == 7  # it has asked nothing
    assert messages.take() == 0
    with pytest.raises(HeadraceError):
        catalog.read(lambda tx: tx.rows("SELECT nothing FROM nowhere"), snapshot=True)
    assert catalog.read(lambda tx: tx.rows("SELECT 1")) == [(1,)]
    catalog.write(put("x"))
    assert catalog.statistics()["connections_opened"] <= 1


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_reader_that_waits_gets_small_events_with_the_heads_and_large_ones_with_one_more(
    postgres_url: str, messages: Messages, size: int
) -> None:
    log = open_log(on_one_connection(postgres_url))
    with closing(log.catalog):
        log.create_stream("s", StreamConfig(subjects=("s.>",), partitions=4))
        keys = [f"k{number}" for number in range(20)]
        log.append("s", [Event(subject="s.x", value=b"old", key=key) for key in keys])
        reader = log.reader("s", Query(start="latest", follow=True))
        assert reader.next() is None
        for value in (b"1", b"2"):
            value *= size
            log.append("s", [Event(subject="s.x", value=value, key=key) for key in keys[:1]])
            log.append("s", [Event(subject="s.x", value=value, key=key) for key in keys])
            messages.take()
            found: list[tuple[str, bytes]] = []
            while batch := reader.next():
                found += [(row["key"], row["value"]) for row in batch.to_pylist()]
            asked = messages.take()
            assert sorted(found) == sorted((key, value) for key in (keys[0], *keys))
            # At the end it looks once more; large events are asked for in each of the segments.
            assert asked == 2 if size == 10 else 3 <= asked <= 7


def test_a_member_that_waits_gets_small_events_with_the_heads(
    postgres_url: str, messages: Messages
) -> None:
    async def run() -> tuple[list[int], list[bytes]]:
        asked, values = [], []
        async with headrace.open(postgres_url, housekeeping=False) as hr:
            await hr.create_stream("s", subjects=["s.>"], partitions=2)
            await hr.groups.create_static("s", "g", max_members=2, members=["m"])
            async with hr.join("s", "g", member="m") as member:
                deliveries = aiter(member)
                for number in range(8):
                    messages.take()
                    await hr.publish("s.x", str(number).encode(), key=str(number))
                    values.append((await anext(deliveries)).value)
                    asked.append(messages.take())
        return asked, values

    asked, values = asyncio.run(run())
    assert values == [str(number).encode() for number in range(8)]
    assert min(asked) == 2  # the publish, and the look at the heads


def test_what_was_read_with_the_heads_is_not_given_after_the_catalog_went_back(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(on_one_connection(postgres_url))
    with closing(log.catalog):
        log.create_stream("s", StreamConfig(subjects=("s.>",), partitions=2))
        keys = [f"k{number}" for number in range(8)]
        reader = log.reader("s", Query(start="latest", follow=True))
        log.append("s", [Event(subject="s.x", value=b"lost", key=key) for key in keys])
        first = reader.next()
        assert first is not None
        rest = sorted({*keys} - {*first.column("key").to_pylist()})
        assert rest
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute("DELETE FROM headrace.batches")
            admin.execute("UPDATE headrace.segments SET head = 0, bytes = 0")
        log.append("s", [Event(subject="s.x", value=b"kept", key=key) for key in rest])
        monkeypatch.setattr(log.catalog, "turns", log.catalog.turns + 1)
        found = reader.next()
        assert found is not None
        assert found.column("key").to_pylist() == rest
        assert {*found.column("value").to_pylist()} == {b"kept"}


def test_a_lone_batch_is_one_message_and_what_does_not_fit_goes_the_long_way(
    postgres_url: str, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    send = Exchange.send

    def sent(exchange: Exchange, request: Request, notices: Any) -> None:
        used.append(request.function.decode())
        send(exchange, request, notices)

    monkeypatch.setattr(Exchange, "send", sent)
    event = Event(subject="s.x", value=b"1", key="k")
    log = open_log(on_one_connection(postgres_url))
    with closing(log.catalog):
        log.create_stream("s", StreamConfig(subjects=("s.>",)))
        assert [log.append("s", [event])[0].start for _ in range(3)] == [0, 1, 2]
        messages.take()
        log.append("s", [event])
        assert messages.take() == 1
        log.append("s", [event], producer="p", sequence=1)
        one, many = functions().one_batch, functions().any_calls
        assert used == [one, one, one, one, many]
        other = open_log(postgres_url)
        with closing(other.catalog):
            other.split("s", 0, 2)
        (placed,) = log.append("s", [event])
        assert (placed.segment in (1, 2), placed.start) == (True, 0)
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute("UPDATE headrace.meta SET value = '99' WHERE key = 'schema_version'")
            with pytest.raises(CatalogTooNewError):
                log.append("s", [event])
            row = admin.execute("SELECT sum(head) FROM headrace.segments").fetchone()
            assert row == (6,)


def test_a_batch_and_those_behind_it_are_one_message(postgres_url: str, messages: Messages) -> None:
    log = open_log(on_one_connection(postgres_url))
    with closing(log.catalog):
        log.create_stream("s", StreamConfig(subjects=("s.>",)))
        for number in range(3):
            log.append("s", [Event(subject="s.x", value=b"%d" % number)] * 10)
        stream = log.stream("s")
        reader = log.reader("s", Query(start={0: 15}))
        messages.take()
        batch = reader.next()
        assert batch is not None
        assert messages.take() == 1
        assert batch.column("offset").to_pylist() == list(range(15, 30))
        log.catalog.write(lambda tx: tx.execute("DELETE FROM batches WHERE start_offset = 10"))
        with pytest.raises(DamagedBatchError, match="15 to 19"):
            log.reader("s", Query(start={0: 15})).next()
        assert stream.segments[0].head == 30


def test_the_end_of_a_snapshot_is_heard_with_the_answer_of_what_follows(
    catalog: PostgresCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.write(put("x"))
    sent: list[int] = []
    flush = postgres_pipeline.Pipeline.flush

    def flushed(pipeline: postgres_pipeline.Pipeline) -> None:
        sent.append(pipeline.syncs)
        flush(pipeline)

    monkeypatch.setattr(postgres_pipeline.Pipeline, "flush", flushed)
    asked = entries.asking("b", "x")
    following: list[Callable[[], object]] = [
        lambda: catalog.read(lambda tx: tx.rows(*asked)),
        lambda: catalog.read(lambda tx: list(tx.iterate(*asked))),
        lambda: catalog.read(lambda tx: tx.row(*asked), snapshot=True),
        lambda: catalog.write(put("y")),
    ]
    for follow in following:
        catalog.read(lambda tx: tx.rows(*asked), snapshot=True)
        sent.clear()
        assert follow() != []
        assert sent[0] == 2  # the end of the snapshot is still on its way
    with catalog._pool.connect() as other:
        catalog.read(lambda tx: tx.rows(*asked), snapshot=True)
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert len(catalog.read(lambda tx: tx.rows(*asked))) == 1
    catalog.write(put("z"))
    assert [entry.key for entry in catalog.entries.list("b")] == ["x", "y", "z"]


def test_a_connection_that_was_left_in_the_middle_is_not_used_again(
    catalog: PostgresCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a signal's handler raises while the answers are read."""
    wanted = [entries.asking("b", key) for key in ("x", "y")]
    with monkeypatch.context() as patched:
        patched.setattr(postgres_pipeline.Pipeline, "end", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            catalog.read(lambda tx: tx.together(*wanted))
    for _ in range(3):
        assert catalog.read(lambda tx: tx.together(*wanted)) == [[], []]
        assert catalog.read(lambda tx: tx.rows("SELECT 1")) == [(1,)]


def _interrupted(_: postgres_pipeline.Pipeline) -> None:
    raise KeyboardInterrupt


def test_all_streams_are_one_message(postgres_url: str, messages: Messages) -> None:
    log = open_log(on_one_connection(postgres_url))
    with closing(log.catalog):
        for number in range(20):
            log.create_stream(f"s{number}", StreamConfig(subjects=(f"s{number}.>",), partitions=2))
        messages.take()
        found = log.streams()
        assert messages.take() == 1
        assert len(found) == 20
        assert {len(stream.segments) for stream in found} == {2}


def test_joining_and_opening_a_session_ask_few_times(postgres_url: str, messages: Messages) -> None:
    async def run() -> tuple[int, int, int]:
        async with headrace.open(postgres_url, housekeeping=False) as hr:
            await hr.create_stream("s", subjects=["s.>"], partitions=4)
            await hr.groups.create_static("s", "g", max_members=4, members=["m"])
            await hr.publish("s.x", b"x", key="k")
        messages.take()
        async with headrace.open(postgres_url, housekeeping=False) as hr:
            opened = messages.take()
            async with hr.join("s", "g", member="m") as member:
                await anext(aiter(member))
                joined = messages.take()
            messages.take()
            async with hr.session("w") as session:
                await session.subscribe("$share/a/s.>", start="earliest")
                await anext(aiter(session))
                return opened, joined, messages.take()

    opened, joined, subscribed = asyncio.run(run())
    # Looks at news go beside, so that the numbers vary; one by one they were 5, 59 and 130.
    assert opened <= 4
    assert joined <= 24
    assert subscribed <= 36
