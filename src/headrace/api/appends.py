"""Appends on an event loop: how they are checked, and how small ones of one turn become one."""

from __future__ import annotations

import asyncio
from functools import partial

import pyarrow as pa

from headrace.catalog.committer import Operation
from headrace.catalog.producers import Placed
from headrace.errors import HeadraceError
from headrace.host.commit import SMALL_BYTES
from headrace.host.host import Host
from headrace.log.append import Outcome, Write
from headrace.log.events import Event, Events
from headrace.log.joined import Joined, join
from headrace.log.log import to_batch

Answer = asyncio.Future[tuple[Placed, ...]]


async def checked(host: Host, data: Events) -> pa.RecordBatch:
    """What a caller appends as one checked batch; a thread does that unless it is little."""
    if isinstance(data, Event) or _is_small(data):
        return to_batch(data)
    return await host.in_thread(to_batch, data)


def _is_small(data: Events) -> bool:
    if not isinstance(data, pa.Table | pa.RecordBatch):
        return False
    # Only of a slice do the buffers tell too much.
    return bool(data.get_total_buffer_size() < SMALL_BYTES or data.nbytes < SMALL_BYTES)


class Apart(HeadraceError):
    """Internal: appends could not be joined; each has to be written by itself."""


class Appends:
    """The appends of one turn."""

    def __init__(self) -> None:
        self._waiting: dict[Write, Answer] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, write: Write) -> Answer:
        """The future gives where the events are, or raises ``Apart`` or ``Stale``."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._waiting[write] = answer
        return answer

    def take(self) -> list[Operation]:
        """All of them, prepared, in as few operations as may be."""
        waiting, self._waiting = self._waiting, {}
        operations = []
        for writes in join(list(waiting)):
            answers = [waiting[write] for write in writes]
            try:
                joined = Joined(writes)
                joined.write.prepare()
            except Exception as error:
                # Of several, one is at fault, and only that one is to hear of it.
                _fail(answers, error if len(writes) == 1 else Apart(str(error)))
                continue
            tell = partial(_tell, joined, answers)
            write = joined.write
            operations.append(Operation(write.run, tuple(write.locks), True, tell))
        return operations


def _tell(
    joined: Joined, answers: list[Answer], outcome: Outcome, error: BaseException | None
) -> None:
    if error is not None:
        _fail(answers, error)
        return
    for answer, placed in zip(answers, joined.placed(outcome), strict=True):
        if not answer.done():
            answer.set_result(placed)


def _fail(answers: list[Answer], error: BaseException) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
