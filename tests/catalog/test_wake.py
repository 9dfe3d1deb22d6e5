"""News between processes: at once, of every channel, whoever else sleeps or dies."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.catalog import Catalog, Tx, open_catalog
from headrace.catalog.notifier import Notifier
from headrace.catalog.sqlite import SqliteCatalog
from headrace.catalog.wake import POLL_S, wake_folder
from tests.support import Process, process, wait_until


def notify(*channels: str) -> Callable[[Tx], None]:
    def tell(tx: Tx) -> None:
        tx.execute(
            "INSERT INTO meta (key, value) VALUES ('n', '1') "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
        for channel in channels:
            tx.notify(channel)

    return tell


def hear(waiter: Process, channel: str) -> int:
    """When the waiter heard of the channel."""
    while True:
        found, at_ns = waiter.line().split()
        if found == channel:
            return int(at_ns)


def ready(waiter: Process) -> None:
    # A listener wakes everybody once it listens; that is not the news that a test is after.
    while waiter.line() != "ready":
        pass


def latencies_ms(catalog: Catalog, waiter: Process, count: int) -> list[float]:
    found = []
    for number in range(count):
        catalog.write(notify(f"c{number % 2}"))
        done_ns = time.monotonic_ns()
        found.append((hear(waiter, f"c{number % 2}") - done_ns) / 1e6)
    return found


def sockets_in(folder: Path) -> list[str]:
    """The folder is there only while somebody listens."""
    return os.listdir(folder) if folder.exists() else []


def settle(catalog: Catalog, waiter: Process) -> None:
    """Swallow what the waiter prints for reasons of its own when it starts."""
    catalog.write(notify("settled"))
    hear(waiter, "settled")


def test_another_process_is_woken_at_once(catalog: Catalog, catalog_url: str) -> None:
    with process("tests.catalog.waiter", catalog_url, "settled", "c0", "c1") as waiter:
        ready(waiter)
        settle(catalog, waiter)
        found = latencies_ms(catalog, waiter, 30)
    assert statistics.median(found) < 200
    # Anything near a second would mean that the safety poll did it.
    assert sorted(found)[-3] < 800 * POLL_S


def test_only_the_channels_of_the_commit_are_woken(catalog: Catalog, catalog_url: str) -> None:
    with process("tests.catalog.waiter", catalog_url, "settled", "mine", "end") as waiter:
        ready(waiter)
        settle(catalog, waiter)
        catalog.write(notify("other"))
        catalog.write(notify("mine"))
        catalog.write(notify("end"))
        heard = []
        while "end" not in heard:
            heard.append(waiter.line().split()[0])
    assert "other" not in heard
    assert "mine" in heard


def test_a_failed_write_is_no_news(catalog: Catalog) -> None:
    heard: list[int] = []
    # The notifier alone: a catalog that listens also looks now and then, and wakes everybody.
    catalog.notifier.subscribe("c", lambda: heard.append(1))

    def fail(tx: Tx) -> None:
        tx.notify("c")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        catalog.write(fail)
    assert heard == []
    catalog.write(notify("c"))
    assert heard == [1]


def test_a_burst_of_many_channels_misses_none(catalog: Catalog, catalog_url: str) -> None:
    """More channels in one commit than a datagram or a payload holds, and many commits at once."""
    wide = [f"a-rather-long-name-of-a-channel-{number}" for number in range(600)]
    wanted = {wide[0], wide[-1], *(f"quick{number}" for number in range(60))}
    with process("tests.catalog.waiter", catalog_url, "settled", *sorted(wanted)) as waiter:
        ready(waiter)
        settle(catalog, waiter)
        started = time.monotonic()
        catalog.write(notify(*wide))
        for number in range(60):
            catalog.submit(notify(f"quick{number}"), lambda result, error: None)
        missing = set(wanted)
        while missing:
            missing.discard(waiter.line().split()[0])
        assert time.monotonic() - started < 10


def test_a_paused_process_hears_everything_when_it_goes_on(
    catalog: Catalog, catalog_url: str
) -> None:
    names = [f"c{number}" for number in range(80)]
    with process("tests.catalog.waiter", catalog_url, "settled", *names) as waiter:
        ready(waiter)
        settle(catalog, waiter)
        os.kill(waiter.pid, signal.SIGSTOP)
        for name in names:
            catalog.write(notify(name))
        os.kill(waiter.pid, signal.SIGCONT)
        missing = set(names)
        while missing:
            missing.discard(waiter.line().split()[0])


def test_a_paused_process_does_not_keep_news_from_others(
    catalog: Catalog, catalog_url: str
) -> None:
    names = ["settled", "c0", "c1"]
    with (
        process("tests.catalog.waiter", catalog_url, *names) as paused,
        process("tests.catalog.waiter", catalog_url, *names) as waiter,
    ):
        ready(paused)
        ready(waiter)
        settle(catalog, waiter)
        os.kill(paused.pid, signal.SIGSTOP)
        found = latencies_ms(catalog, waiter, 40)
        os.kill(paused.pid, signal.SIGCONT)
    assert statistics.median(found) < 200


def test_many_full_queues_do_not_keep_news_from_others(tmp_path: Path) -> None:
    """SQLite: sockets that nobody reads fill up, each for itself."""
    url = str(tmp_path / "catalog")
    catalog = open_catalog(url)
    catalog.subscribe("c", lambda: None)
    folder = wake_folder(tmp_path / "catalog")
    deaf = []
    for number in range(40):
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(str(folder / f"1-deaf{number}"))
        deaf.append(receiver)
    with process("tests.catalog.waiter", url, "settled", "c0", "c1") as waiter:
        ready(waiter)
        wide = [f"some-channel-or-other-{number}" for number in range(100)]
        for _ in range(40):
            catalog.write(notify(*wide))
        settle(catalog, waiter)
        found = latencies_ms(catalog, waiter, 20)
    catalog.close()
    for receiver in deaf:
        receiver.close()
    assert statistics.median(found) < 200


def test_the_socket_of_a_dead_process_is_cleared_away(tmp_path: Path) -> None:
    url = str(tmp_path / "catalog")
    catalog = open_catalog(url)
    folder = wake_folder(tmp_path / "catalog")
    with process("tests.catalog.waiter", url, "c") as waiter:
        ready(waiter)
        assert len(sockets_in(folder)) == 1
        os.kill(waiter.pid, signal.SIGKILL)
        # Its socket refuses once the process is gone for good.
        waiter.kill()
    catalog.write(notify("c"))
    wait_until(lambda: catalog.write(notify("c")) or not sockets_in(folder), "a clean folder")
    catalog.close()


def test_a_closed_catalog_leaves_no_socket(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path / "catalog")
    catalog.subscribe("c", lambda: None)
    folder = wake_folder(tmp_path / "catalog")
    assert len(list(folder.iterdir())) == 1
    catalog.close()
    assert sockets_in(folder) == []


def test_news_of_a_committer_that_died_before_it_told_is_found(tmp_path: Path) -> None:
    """SQLite: a commit without datagrams, while another process keeps sending its own."""
    catalog = open_catalog(tmp_path / "catalog")
    silent = open_catalog(tmp_path / "catalog")
    chatty = open_catalog(tmp_path / "catalog")
    assert isinstance(silent, SqliteCatalog)
    silent._sockets.send = lambda *news: None  # type: ignore[method-assign]
    heard = threading.Event()
    catalog.subscribe("c", heard.set)
    stop = threading.Event()

    def chat() -> None:
        while not stop.wait(0.05):
            chatty.write(notify("other"))

    thread = threading.Thread(target=chat)
    thread.start()
    heard.clear()
    silent.write(notify("c"))
    assert heard.wait(5 * POLL_S)
    stop.set()
    thread.join()
    for each in (catalog, silent, chatty):
        each.close()


def test_a_catalog_whose_wake_folder_vanished_goes_on(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path / "catalog")
    catalog.subscribe("c", lambda: None)
    shutil.rmtree(wake_folder(tmp_path / "catalog"))
    catalog.write(notify("c"))
    catalog.close()


def test_a_folder_with_a_long_name_still_wakes(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("long" * 20)
    catalog = open_catalog(folder)
    assert len(os.fsencode(wake_folder(folder))) > 108, "more than an address can hold"
    with process("tests.catalog.waiter", str(folder), "settled", "c0", "c1") as waiter:
        ready(waiter)
        settle(catalog, waiter)
        found = latencies_ms(catalog, waiter, 5)
    catalog.close()
    assert statistics.median(found) < 500


def test_who_waits_learns_that_the_catalog_was_closed(catalog: Catalog) -> None:
    woken = threading.Event()

    def wait() -> None:
        with catalog.waiting("c") as news:
            waiting.set()
            news(None)
            news(None)
            woken.set()

    waiting = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(10)
    catalog.write(notify("c"))
    catalog.close()
    assert woken.wait(10)
    thread.join()


def test_unsubscribed_callbacks_are_not_called() -> None:
    notifier = Notifier()
    heard: list[str] = []
    first = notifier.subscribe("c", lambda: heard.append("first"))
    second = notifier.subscribe("c", lambda: heard.append("second"))
    notifier.news(["c", "d"])
    first()
    first()
    notifier.news(["c"])
    second()
    notifier.everybody()
    assert heard == ["first", "second", "second"]


def test_idle_waiting_costs_next_to_no_cpu(catalog: Catalog) -> None:
    with catalog.waiting("c") as wait:
        wait(0.2)
        threads = [t for t in threading.enumerate() if t.name.startswith("headrace-")]
        before_s = _cpu_s(*threads)
        assert not wait(2.5)
        assert _cpu_s(*threads) - before_s < 0.05


def _cpu_s(*threads: threading.Thread) -> float:
    """Processor time of this thread and of these. Others run other tests' servers."""
    clocks = [time.pthread_getcpuclockid(t.ident) for t in threads if t.ident is not None]
    return time.thread_time() + sum(time.clock_gettime(clock) for clock in clocks)


@pytest.mark.parametrize("silent", [False, True])
def test_an_event_loop_brings_the_news_itself(tmp_path: Path, silent: bool) -> None:
    """At once, or with its next look if the committer died before it could tell."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        listening, writing = SqliteCatalog(tmp_path), SqliteCatalog(tmp_path)
        if silent:
            writing._sockets.send = lambda *news: None  # type: ignore[method-assign]
        try:
            listening.serve_on(loop)
            heard: asyncio.Queue[int] = asyncio.Queue()

            def hear() -> None:
                heard.put_nowait(threading.get_ident())

            # From a thread as from the loop itself: both have to begin without waiting in vain.
            await asyncio.to_thread(listening.subscribe, "orders", hear)
            listening.subscribe("others", hear)
            await asyncio.to_thread(writing.write, notify("orders"))
            assert await asyncio.wait_for(heard.get(), 20) == threading.get_ident()
            assert listening._sockets._thread is None
        finally:
            listening.leave_loop()
            listening.close()
            writing.close()
        assert sockets_in(wake_folder(tmp_path)) == []

    asyncio.run(work())


def test_only_the_commits_of_others_are_looked_for(tmp_path: Path) -> None:
    """SQLite: a program's own commits, such as renewed leases, wake nobody for nothing."""
    catalog, other = open_catalog(tmp_path / "catalog"), open_catalog(tmp_path / "catalog")
    assert isinstance(catalog, SqliteCatalog)
    catalog.entries.put("b", "k", b"v")
    seen = catalog._others()
    catalog.entries.put("b", "k", b"w")
    assert catalog._others() == seen
    other.entries.put("b", "k", b"x")
    assert catalog._others() > seen
    seen = catalog._others()
    other.entries.put("b", "k", b"y")
    catalog.entries.put("b", "k", b"z")  # its own commit must not hide the other's
    assert catalog._others() > seen
    for each in (catalog, other):
        each.close()


def test_news_of_a_stream_that_nobody_knows_is_counted(catalog: Catalog) -> None:
    heard = catalog.heard
    assert heard is not None
    catalog.write(notify("lease:x"))
    assert catalog.heard == heard
    catalog.write(notify("stream:77"))
    assert catalog.heard == heard + 1
