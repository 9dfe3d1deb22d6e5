"""A member of a shared group under torture; what it was given and told goes to a file.

``python -m tests.torture.shared_member CATALOG SESSION OUTPUT TEXT``.  Its marks, each with the
time of a clock that all processes share: ``+`` given, ``!`` told that it is acked, ``x`` told that
it does not count, ``~`` told of a trouble that passes, ``z`` it did not get to run for a while, and
``?`` an error that it cannot go on from.  It prints ``ready``, cuts its connections at the line
``cut``, and ends with its input.
"""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import headrace
from headrace.errors import AckUnsettledError, CatalogUnavailableError, Fenced, HeadraceError
from headrace.groups.shared.core.settings import BorrowerSettings, LeaderSettings

T = TypeVar("T")

AT_A_TIME = 8
STARVED_S = 0.5

OPTIONS = headrace.SharedOptions(
    borrower=BorrowerSettings(
        find_leader_ms=50,
        ping_ms=200,
        ping_timeout_ms=2000,
        resend_ms=200,
        settle_timeout_ms=60_000,
    ),
    # A borrower gives up well before the leader gives what it has to others, and so it does when
    # the leader dies and another one is found.
    leader=LeaderSettings(
        tick_ms=25,
        resend_ms=100,
        renew_segments_ms=100,
        borrower_timeout_ms=3500,
        revoke_timeout_ms=5000,
        lease_ttl_ms=3500,
        heartbeat_ms=500,
        commit_timeout_ms=500,
    ),
)


class Journal:
    """One line for everything that happens."""

    def __init__(self, path: Path) -> None:
        self._file: io.RawIOBase = path.open("ab", buffering=0)

    def write(self, mark: bytes, what: bytes) -> None:
        self._file.write(b"%s %d %s\n" % (mark, time.monotonic_ns(), what.replace(b"\n", b" ")))


async def ack(delivery: headrace.Delivery, journal: Journal, room: asyncio.Semaphore) -> None:
    try:
        await delivery.ack()
    except Fenced:
        journal.write(b"x", delivery.value)
    except AckUnsettledError:
        journal.write(b"~", b"unsettled %s" % delivery.value)
    except CatalogUnavailableError as error:
        journal.write(b"~", str(error).encode())
    except HeadraceError as error:
        journal.write(b"?", f"{type(error).__name__}: {error}".encode())
    else:
        journal.write(b"!", delivery.value)
    finally:
        room.release()


async def consume(session: headrace.Session, journal: Journal) -> None:
    room = asyncio.Semaphore(AT_A_TIME)
    deliveries = aiter(session)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await room.acquire()
            try:
                delivery = await anext(deliveries)
            except (Fenced, AckUnsettledError):
                room.release()
            except StopAsyncIteration:
                return
            except CatalogUnavailableError as error:
                # Somebody was frozen with the lock in hand, or cut off: it passes.
                room.release()
                journal.write(b"~", str(error).encode())
            except HeadraceError as error:
                journal.write(b"?", f"{type(error).__name__}: {error}".encode())
                return
            else:
                journal.write(b"+", delivery.value)
                tasks.create_task(ack(delivery, journal, room))


async def watch(journal: Journal) -> None:
    """Write down when this process did not get to run."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(STARVED_S / 5)
        if (late_s := time.monotonic() - before) > STARVED_S:
            journal.write(b"z", b"%d ms" % int(late_s * 1000))


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """A catalog that is cut off meanwhile is asked again."""
    while True:
        try:
            return await step()
        except CatalogUnavailableError:
            await asyncio.sleep(0.1)


async def main(url: str, name: str, output: str, text: str) -> None:
    loop = asyncio.get_running_loop()
    journal = Journal(Path(output))
    watching = asyncio.create_task(watch(journal))
    hr = await patiently(
        lambda: headrace.open(url, housekeeping=False, shared=OPTIONS).__aenter__()
    )
    try:
        session = await patiently(lambda: hr.session(name).__aenter__())
        if text not in session.subscriptions:
            await patiently(lambda: session.subscribe(text, start="earliest"))
        consuming = asyncio.create_task(consume(session, journal))
        print("ready", flush=True)
        peer = await hr._shared.peer()
        while (await loop.run_in_executor(None, sys.stdin.readline)).strip() == "cut":
            for connection in (*peer.listener.connections, *peer.peers.connections.values()):
                connection.abort()
        await session.close(grace_s=10)
        await asyncio.gather(consuming, return_exceptions=True)
    finally:
        await hr.close()
    watching.cancel()
    print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
