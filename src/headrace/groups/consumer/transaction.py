"""Transactions: output and ack commit together, or neither does.

The claim is checked in the same commit, so a fenced owner writes nothing; and what is acked
already cannot be acked by a transaction again, so an event whose delivery timed out and was
handed out twice has its output once.  Such a commit is always synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from headrace.catalog import Tx
from headrace.catalog.producers import Placed
from headrace.errors import CatalogUnavailableError, Fenced, HeadraceError
from headrace.groups.consumer.types import UnitAck
from headrace.groups.host import Host
from headrace.groups.progress import Progress
from headrace.groups.ranges import AckedRanges
from headrace.log.append import ATTEMPTS_MAX, Outcome, Stale, Write
from headrace.log.events import Event, Events, Headers, batch_of, check_event, now_us
from headrace.log.log import discard, to_batch

if TYPE_CHECKING:
    from headrace.groups.consumer.run import Run, Runtime

T = TypeVar("T")

SMALL_BYTES = 256 * 1024
"""Output up to this size is prepared where it stands; more, on a thread."""


class Answer(Protocol):
    """What a transaction acks: one delivery, or a batch."""

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The offsets of its events."""
        ...

    def begin(self) -> None:
        """The commit is under way: it neither times out nor takes another answer."""
        ...

    def committed(self) -> None:
        """The ack is stored."""
        ...

    def failed(self) -> None:
        """Nothing was stored: it can be answered again."""
        ...


def acked(ranges: Iterable[tuple[int, int]]) -> Progress:
    """Progress that says that these ranges are acked, and nothing else."""
    found = AckedRanges()
    for lo, hi in ranges:
        found.ack_range(lo, hi)
    return Progress.of(found, {})


async def commit(
    host: Host, write: Write, stage: Callable[[Tx], None], locks: Iterable[str]
) -> Outcome:
    """Commit a write together with ``stage``, again if its segments were sealed meanwhile."""

    def run(tx: Tx) -> Outcome:
        stage(tx)
        return write.run(tx)

    for _ in range(ATTEMPTS_MAX):
        if write.is_small(SMALL_BYTES):
            write.prepare()
        else:
            await host.in_thread(write.prepare)
        try:
            return await host.in_transaction(run, sorted({*write.locks, *locks}), sync=True)
        except Stale as stale:
            await host.in_thread(write.again, stale)
        except HeadraceError as error:
            await host.in_thread(discard, write, error)
            raise
    raise CatalogUnavailableError("the stream was scaled again and again; try later")


class AckTransaction:
    """Appends that commit with an ack when the block ends; nothing happens if it raises."""

    def __init__(self, runtime: Runtime, run: Run, answer: Answer) -> None:
        self._runtime = runtime
        self._run = run
        self._answer = answer
        self._write = runtime.host.log.write_of()
        self._write.transaction = True
        self.placed: tuple[Placed, ...] = ()
        """Where the output is, once the block has ended."""

    def publish(
        self,
        subject: str,
        value: bytes,
        *,
        key: str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
        epoch: tuple[int, ...] | None = None,
    ) -> None:
        """Add one event, for the stream that captures its subject."""
        event = Event(
            subject=subject,
            value=value,
            key=key,
            headers=headers,
            timestamp=timestamp,
            epoch=epoch,
        )
        batch = batch_of([check_event(event)], now_us())
        self._write.add(self._runtime.host.log.routes.stream_for(subject), batch)

    def append(
        self, stream: str, data: Events, *, expected_heads: Mapping[int, int] | None = None
    ) -> None:
        """Add events for a stream."""
        self._write.add(stream, to_batch(data), expected=expected_heads)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        runtime, run = self._runtime, self._run
        self._answer.begin()
        ack = UnitAck(run.owned, acked(self._answer.ranges))
        try:
            if run.dirty or run.storing:
                # The event before it of its key may be acked and not stored yet.  If that ack
                # were lost, and this one not, the key's events would come in the wrong order.
                await run.stored()
            outcome = await commit(
                runtime.host,
                self._write,
                lambda tx: runtime.acks.stage(tx, ack),
                runtime.acks.locks(run.owned),
            )
        except Fenced as fenced:
            self._answer.failed()
            runtime.lost(run, fenced)
            raise
        except BaseException:
            self._answer.failed()
            raise
        self.placed = outcome.placed
        self._answer.committed()
        if runtime.acks.repeats_transactions and run.gone is None:
            await run.stored()
