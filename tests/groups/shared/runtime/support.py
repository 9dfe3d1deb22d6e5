"""What tests of running shared groups have in common: quick timers, and consumers that count."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import headrace
from headrace import testing
from headrace.errors import Fenced, HeadraceError
from headrace.groups.shared.core.settings import BorrowerSettings, LeaderSettings
from tests.support import until as until

PATIENCE_S = 30.0

QUICK_BORROWER = BorrowerSettings(
    find_leader_ms=50,
    ping_ms=200,
    ping_timeout_ms=2500,
    resend_ms=100,
    unsubscribe_timeout_ms=1000,
    unsubscribe_resend_ms=50,
)
QUICK_LEADER = LeaderSettings(
    tick_ms=25,
    resend_ms=100,
    renew_segments_ms=100,
    borrower_timeout_ms=3500,
    revoke_timeout_ms=5000,
    lease_ttl_ms=2500,
    heartbeat_ms=400,
    commit_timeout_ms=500,
)
QUICK = headrace.SharedOptions(borrower=QUICK_BORROWER, leader=QUICK_LEADER)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a test by a clock that jumps to whatever is next; one that hangs fails."""

    async def limited() -> Any:
        async with asyncio.timeout(60):
            return await work

    return testing.run(limited(), autojump=True)


def open_log(url: Any, *, quick: bool = True) -> headrace.Headrace:
    """A log whose shared groups have quick timers, or those that people get."""
    return headrace.open(url, housekeeping=False, shared=QUICK if quick else None)


class Worker:
    """A session that consumes, acks, and writes down what counted."""

    def __init__(
        self,
        hr: headrace.Headrace,
        name: str,
        *texts: str,
        start: Any = "now",
        soon: bool = True,
        takes_s: float = 0.0,
    ) -> None:
        """`takes_s` is how long it works on an event; otherwise that takes no time at all."""
        self.session = hr.session(name)
        self.texts = texts
        self.start = start
        self.soon = soon
        self.takes_s = takes_s
        self.delivered: Counter[bytes] = Counter()
        self.acked: Counter[bytes] = Counter()
        self.order: dict[str, list[bytes]] = {}
        self.count = 0
        self.fenced = 0
        self.ended: HeadraceError | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Worker:
        await self.session.__aenter__()
        for text in self.texts:
            if text not in self.session.subscriptions:
                await self.session.subscribe(text, start=self.start)
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End as a well-behaved worker does: between two events."""
        await self.session.close(grace_s=5)
        await self.stop()

    async def stop(self) -> None:
        """Stop consuming; the session stays as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _work(self) -> None:
        deliveries = aiter(self.session)
        while True:
            try:
                delivery = await anext(deliveries)
                self.delivered[delivery.value] += 1
                self.order.setdefault(delivery.subject, []).append(delivery.value)
                if self.takes_s:
                    await asyncio.sleep(self.takes_s)
                if self.soon:
                    delivery.ack_soon()
                else:
                    await delivery.ack()
                self.acked[delivery.value] += 1
                self.count += 1
            except Fenced:
                self.fenced += 1
            except StopAsyncIteration:
                return
            except HeadraceError as error:
                self.ended = error
                return


async def publish(
    hr: headrace.Headrace, stream: str, count: int, keys: int = 50, first: int = 0
) -> list[bytes]:
    """Append numbered events; returns their values."""
    values = [b"%s-%d" % (stream.encode(), first + number) for number in range(count)]
    for begin in range(0, count, 500):
        await hr.append(
            stream,
            [
                headrace.Event(
                    subject=f"{stream}.{number % keys}",
                    value=values[number],
                    key=str(number % keys),
                )
                for number in range(begin, min(count, begin + 500))
            ],
        )
    return values


def count(*workers: Worker) -> int:
    """How many acks there were, over all workers."""
    return sum(worker.count for worker in workers)


def has_units(count: int, worker: Worker) -> bool:
    """Whether a worker has so many units."""
    return len(worker.session.units) == count


def more_than(least: int, *workers: Worker) -> bool:
    """Whether there were more acks than that."""
    return count(*workers) > least


def total(*workers: Worker) -> Counter[bytes]:
    """What was acked, over all workers."""
    found: Counter[bytes] = Counter()
    for worker in workers:
        found += worker.acked
    return found
