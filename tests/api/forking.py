"""Programs that fork while a log is open; each prints what it saw as JSON."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import headrace
import headrace.sync
from headrace.catalog import postgres_listener, wake
from headrace.errors import ForkedError
from headrace.log.open import open_log

FORK = multiprocessing.get_context("fork")
EVENTS = 200
LOOKS_S = 60.0
"""How often who is not woken looks by himself, where that must not be what helps."""


def show(**seen: Any) -> None:
    print(json.dumps(seen), flush=True)


def in_child(work: Callable[[], Any]) -> Any:
    """What work returns in a child that is forked off by hand."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps(f"{type(error).__name__}: {error}")
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(answer)


def refused(call: Callable[[], Any]) -> str:
    """How a call ended."""
    try:
        call()
    except ForkedError as error:
        return str(error)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def publish_on(hr: headrace.sync.Headrace, subject: str, count: int = EVENTS) -> int:
    for number in range(count):
        hr.publish(subject, b"%d" % number)
    return count


def stored(url: str) -> dict[str, int]:
    """How many events of each subject are in the log."""
    found: dict[str, int] = {}
    with headrace.sync.open(url) as hr:
        for batch in hr.read("s"):
            for subject in batch.column("subject").to_pylist():
                found[subject] = found.get(subject, 0) + 1
    return found


def closing_parent(url: str) -> None:
    """The parent closes its log, and its child goes on with the one that it has inherited."""
    told, closed, answers = FORK.Event(), FORK.Event(), FORK.Queue()

    def child() -> None:
        first = refused(lambda: hr.publish("s.child", b"before"))
        told.set()
        closed.wait()
        answers.put((first, refused(lambda: publish_on(hr, "s.child"))))

    with headrace.sync.open(url) as hr:
        hr.create_stream("s", ["s.>"])
        publish_on(hr, "s.parent", 10)
        process = FORK.Process(target=child)
        process.start()
        told.wait()
    closed.set()
    first, then = answers.get(timeout=30)
    process.join()
    show(first=first, then=then, stored=stored(url))


def blocking_calls(url: str) -> None:
    """Every call of the blocking API, in a child."""
    with headrace.sync.open(url) as hr:
        hr.create_stream("s", ["s.>"], partitions=1)
        hr.groups.create_static("s", "g", max_members=1, members=["m"])
        publish_on(hr, "s.parent", 3)
        log, appender = hr.client.log, hr.appender("s")
        appender.append([headrace.Event(subject="s.parent", value=b"appended")])
        appender.flush()
        reading = hr.read("s")
        next(reading)
        event = headrace.Event(subject="s.child", value=b"1")
        with hr.session("one") as session, hr.join("s", "g", "m") as member:
            delivery = next(iter(member))

            def child() -> dict[str, str]:
                calls: dict[str, Callable[[], Any]] = {
                    "publish": lambda: hr.publish("s.child", b"1"),
                    "append": lambda: hr.append("s", [event]),
                    "appender": lambda: appender.append([event]),
                    "flush": appender.flush,
                    "streams": hr.streams,
                    "read": lambda: list(hr.read("s")),
                    "reading": lambda: list(reading),
                    "session": lambda: hr.session("two").__enter__(),
                    "subscribe": lambda: session.subscribe("s.>"),
                    "member": lambda: next(iter(member)),
                    "ack": delivery.ack,
                    "groups": lambda: hr.groups.list(),
                    "shared groups": lambda: hr.shared_groups.list(),
                    "log": lambda: log.publish(event),
                    "log read": log.streams,
                    "wait": lambda: log.catalog.subscribe("x", print),
                }
                seen = {name: refused(call) for name, call in calls.items()}
                hr.__exit__(None, None, None)
                log.catalog.close()
                return seen

            seen = in_child(child)
            delivery.ack()
    show(seen=seen, stored=stored(url))


def asynchronous_calls(url: str) -> None:
    """Calls of the asynchronous API, in a child with an event loop of its own."""

    async def main() -> None:
        async with headrace.open(url) as hr:
            await hr.create_stream("s", ["s.>"], partitions=1)
            await hr.groups.create_static("s", "g", max_members=1, members=["m"])
            await hr.publish("s.parent", b"0")
            await hr.publish("s.parent", b"1")
            following = hr.read("s", follow=True)
            await anext(following)
            async with hr.join("s", "g", "m") as member:
                delivery = await anext(aiter(member))

                async def call_all() -> dict[str, str]:
                    calls: dict[str, Callable[[], Any]] = {
                        "publish": lambda: hr.publish("s.child", b"1"),
                        "streams": hr.streams,
                        "read": lambda: anext(hr.read("s")),
                        "following": lambda: anext(following),
                        "member": lambda: anext(aiter(member)),
                        "flush": member.flush,
                        "ack": delivery.ack,
                        "session": lambda: hr.session("x").__aenter__(),
                        "join": lambda: hr.join("s", "g", "m").__aenter__(),
                    }
                    seen = {name: await refused_soon(call) for name, call in calls.items()}
                    await asyncio.wait_for(following.close(), 5)
                    await asyncio.wait_for(member.close(), 5)
                    await asyncio.wait_for(hr.close(), 5)
                    return seen

                def child() -> dict[str, str]:
                    asyncio.set_event_loop(None)
                    asyncio._set_running_loop(None)
                    return asyncio.run(call_all())

                seen = in_child(child)
                await delivery.ack()
                await hr.publish("s.parent", b"2")
                await asyncio.wait_for(anext(following), 5)
        show(seen=seen, stored=await asyncio.to_thread(stored, url))

    asyncio.run(main())


def protocol_calls(url: str) -> None:
    """Calls of reader groups, epochs and regions, in a child with an event loop of its own."""

    async def main() -> None:
        event = headrace.Event(subject="e.x", value=b"")
        async with headrace.open(url) as hr:
            await hr.create_stream("s", ["s.>"])
            await hr.create_stream("e", ["e.>"], epochs=headrace.Epochs())
            await hr.create_stream("l", ["l.>"], epochs=headrace.Epochs(stored=False))
            await hr.publish("s.parent", b"0")
            group = await hr.reader_groups.create("r", streams=["s"])
            async with (
                group.reader("r1") as reader,
                hr.epoch_publisher("e", "eu") as publisher,
                hr.epochs("e", name="report", start="earliest") as epochs,
                hr.live_publisher("l", "eu") as live,
                hr.live_epochs("l") as heard,
            ):
                delivery = await anext(aiter(reader))
                await publisher.append(0, event, advance_to=1)
                epoch = await anext(aiter(epochs))
                calls: dict[str, Callable[[], Any]] = {
                    "reader": lambda: anext(aiter(reader)),
                    "ack": delivery.ack,
                    "another reader": lambda: group.reader("r2").__aenter__(),
                    "info": group.info,
                    "checkpoint": lambda: group.checkpoint("c"),
                    "reset": group.reset,
                    "reader groups": hr.reader_groups.list,
                    "append": lambda: publisher.append(2, event),
                    "advance": lambda: publisher.advance_to(5),
                    "give up": publisher.close,
                    "epoch ack": epoch.ack,
                    "epoch rows": epoch.table,
                    "transaction": lambda: epoch.transaction().__aenter__(),
                    "next epoch": lambda: anext(aiter(epochs)),
                    "status": lambda: hr.epoch_status("e"),
                    "another publisher": lambda: hr.epoch_publisher("e", "us").__aenter__(),
                    "live append": lambda: live.append(3, event),
                    "next live epoch": lambda: anext(aiter(heard)),
                    "regions": hr.regions.status,
                    "seek": lambda: hr.seek("r", "earliest"),
                }
                ends = [reader.close, publisher.leave, epochs.close, live.leave, heard.close]

                async def call_all() -> dict[str, str]:
                    seen = {name: await refused_soon(call) for name, call in calls.items()}
                    for end in (*ends, hr.close):
                        await asyncio.wait_for(end(), 5)
                    return seen

                def child() -> dict[str, str]:
                    asyncio.set_event_loop(None)
                    asyncio._set_running_loop(None)
                    return asyncio.run(call_all())

                seen = in_child(child)
                await delivery.ack()
                await epoch.ack()
                await publisher.advance_to(7)
            frontier = (await hr.epoch_status("e")).frontier
        show(seen=seen, frontier=frontier, stored=await asyncio.to_thread(stored, url))

    asyncio.run(main())


async def refused_soon(call: Callable[[], Any]) -> str:
    """How a call ended; one that waits is stopped."""
    try:
        await asyncio.wait_for(call(), 5)
    except ForkedError as error:
        return str(error)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def busy_parent(url: str) -> None:
    """Forks while other threads publish and read; each child refuses, opens one and publishes."""
    over = threading.Event()
    published = [0, 0]

    def publish(number: int) -> None:
        while not over.is_set():
            hr.publish("s.parent", b"x")
            published[number] += 1

    def read() -> None:
        while not over.is_set():
            hr.client.log.streams()

    def child() -> list[Any]:
        inherited = refused(lambda: hr.publish("s.child", b"lost"))
        with headrace.sync.open(url) as own:
            return [inherited, publish_on(own, "s.child", 5)]

    with headrace.sync.open(url) as hr:
        hr.create_stream("s", ["s.>"])
        threads = [threading.Thread(target=publish, args=(n,)) for n in range(2)]
        threads.append(threading.Thread(target=read))
        for thread in threads:
            thread.start()
        began = time.monotonic()
        children = [in_child(child) for _ in range(20)]
        took_s = time.monotonic() - began
        over.set()
        for thread in threads:
            thread.join()
    show(children=children, published=sum(published), stored=stored(url), took_s=took_s)


def prefork(url: str) -> None:
    """A server that opens its log when it is loaded, and then forks workers with logs of their own.

    The parent closes its log while they publish, and some workers are killed.
    """
    ready, go, answers = FORK.Barrier(5), FORK.Event(), FORK.Queue()

    def worker(number: int) -> None:
        with headrace.sync.open(url) as own:
            publish_on(own, f"s.{number}", 10)
            ready.wait(30)
            go.wait(30)
            answers.put((number, publish_on(own, f"s.{number}")))
            answers.close()
            answers.join_thread()
            if number % 2:
                os._exit(9)

    with headrace.sync.open(url) as hr:
        hr.create_stream("s", ["s.>"])
        publish_on(hr, "s.parent", 10)
        workers = [FORK.Process(target=worker, args=(number,)) for number in range(4)]
        for process in workers:
            process.start()
        ready.wait(30)
        go.set()
    told = dict(answers.get(timeout=30) for _ in workers)
    for process in workers:
        process.join()
    show(told=told, stored=stored(url))


def preloading_server(url: str) -> None:
    """A server that opens its log before it forks, by hand, and replaces workers that die.

    Each worker tries the inherited log first, then opens one of its own and serves until it is
    told to stop; the server goes on with its own log meanwhile.
    """
    hr = headrace.sync.open(url).__enter__()
    hr.create_stream("s", ["s.>"])

    def serve(number: int, said: int) -> None:
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        inherited = refused(lambda: hr.publish("s.lost", b"1"))
        told = 0
        with headrace.sync.open(url) as own:
            os.write(said, json.dumps(["ready", number, inherited]).encode() + b"\n")
            while not stopped.is_set():
                told += publish_on(own, f"s.{number}", 1)
                if told <= 50:
                    os.write(said, json.dumps(["told", number, told]).encode() + b"\n")
        os.write(said, json.dumps(["ended", number, told]).encode() + b"\n")
        os._exit(0)

    def start(number: int) -> int:
        pid = os.fork()
        if pid == 0:
            serve(number, writing)
        return pid

    reading, writing = os.pipe()
    heard: dict[str, dict[int, Any]] = {"ready": {}, "told": {}, "ended": {}}
    with open(reading) as lines:

        def hear(kind: str, numbers: set[int], least: int = 0) -> None:
            while any(count_of(kind, number) < least for number in numbers):
                what, number, value = json.loads(lines.readline())
                heard[what][number] = value

        def count_of(kind: str, number: int) -> int:
            return int(heard[kind].get(number, -1))

        workers = {number: start(number) for number in range(3)}
        hear("told", {0, 1, 2}, 20)
        os.kill(workers[0], signal.SIGKILL)
        os.waitpid(workers.pop(0), 0)
        workers[3] = start(3)  # forked while the server and others are at work
        publish_on(hr, "s.server")
        hear("told", {3}, 20)
        for pid in workers.values():
            os.kill(pid, signal.SIGTERM)
        hear("ended", {1, 2, 3})
        statuses = [os.waitpid(pid, 0)[1] for pid in workers.values()]
    hr.__exit__(None, None, None)
    show(
        ready=heard["ready"],
        told=heard["told"],
        ended=heard["ended"],
        statuses=statuses,
        stored=stored(url),
    )


_own: headrace.sync.Headrace


def _open_own(url: str) -> None:
    global _own
    _own = headrace.sync.open(url).__enter__()


def _task(number: int) -> int:
    _own.publish("s.task", b"%d" % number)
    return number


def worker_pool(url: str) -> None:
    """A pool of workers as task queues have it: each opens its log, and is replaced after a while.

    The parent has a log open all the time, and publishes between the tasks.
    """
    with headrace.sync.open(url) as hr:
        hr.create_stream("s", ["s.>"])
        with FORK.Pool(3, _open_own, (url,), maxtasksperchild=20) as pool:
            done = []
            for number in pool.imap_unordered(_task, range(EVENTS)):
                hr.publish("s.parent", b"%d" % number)
                done.append(number)
    show(done=sorted(done), stored=stored(url))


def exiting_child(url: str) -> None:
    """A child that ends as programs do, with everything that runs at the exit."""
    wake.POLL_S = postgres_listener.PROBE_S = LOOKS_S
    with headrace.sync.open(url) as hr:
        hr.create_stream("s", ["s.>"])
        following = hr.read("s", follow=True)
        hr.publish("s.parent", b"1")
        next(following)
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        _, status = os.waitpid(pid, 0)
        with headrace.sync.open(url) as other:
            other.publish("s.parent", b"2")
        began = time.monotonic()
        batch = next(following)
        woken_s = time.monotonic() - began
    show(status=status, rows=batch.num_rows, woken_s=woken_s, stored=stored(url))


def in_a_transaction(url: str) -> None:
    """A fork in the middle of a transaction of its own thread."""
    log = open_log(url)
    seen = {}

    def write(tx: Any) -> None:
        seen["own"] = in_child(lambda: refused(lambda: open_log(url)))

    log.catalog.write(write)
    log.catalog.entries.put("b", "k", b"v")
    entry = log.catalog.entries.get("b", "k")
    log.catalog.close()
    show(own=seen["own"], kept=entry is not None)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
